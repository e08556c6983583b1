"""A peer that notes where its CPU time goes: `profiled_peer.py NOTES join …`; for benchmarks/profile.py only.

NOTES is a JSONL file with one line per step applied: CPU-seconds so far of the parts of a step's arithmetic, of the
whole process and of its libp2p daemon. A part inside another one is counted once, in the inner one.
"""

from __future__ import annotations

from peers.stage.heap import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()  # before torch is imported, as `join` does

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.cli import main
from peers.stage import driver, resources
from swarm.compute.body import BodyFormat
from swarm.compute.digest import Hashing
from swarm.compute.optimizer import StageOptimizer
from swarm.compute.reduction import Reduction
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.events import ResourcesMeasured

PARTS: dict[str, Sequence[tuple[type, str]]] = {
    "forward": [(Stage, "forward")],
    "backward": [(Stage, "backward"), (Stage, "weights")],
    "codec and frames": [
        (BodyFormat, name) for name in ("begin_forward", "begin_backward", "unpack_forward", "unpack_backward")
    ],
    "exact sums": [(Accumulator, name) for name in ("add_one", "end")],
    "reduction": [*((Reduction, name) for name in ("part", "sum", "store", "assemble")), (Hashing, "_hash")],
    "optimizer": [(StageOptimizer, name) for name in ("apply", "checksum", "condition")],
}
"""By part: the functions whose time it is. `begin_forward` and `begin_backward` return a function that completes the
frame, which is noted too.
"""

_seconds: defaultdict[str, float] = defaultdict(float)
_adding = threading.Lock()


class _Open(threading.local):
    """The open parts of a thread."""

    def __init__(self) -> None:
        self.inner: list[float] = []
        """CPU-seconds spent in parts inside each open part, innermost last."""


_open = _Open()


def note_parts() -> None:
    """Change this process: note the time of all functions of PARTS."""
    for part, functions in PARTS.items():
        for owner, name in functions:
            setattr(owner, name, _noted(part, getattr(owner, name)))


def _noted(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        began, inner = time.thread_time(), _open.inner
        inner.append(0.0)
        try:
            done = function(*arguments, **named)
        finally:
            spent = time.thread_time() - began
            with _adding:
                _seconds[part] += spent - inner.pop()
            if inner:
                inner[-1] += spent
        return _noted(part, done) if part == "codec and frames" and callable(done) else done

    return run


def _measure(version: int, peak_retained_bytes: int, daemon_pid: int | None) -> ResourcesMeasured:
    measured = _resources(version, peak_retained_bytes, daemon_pid)
    with notes.open("a") as file:
        file.write(json.dumps({"parts": dict(_seconds), **asdict(measured)}) + "\n")
    return measured


if __name__ == "__main__":
    notes = Path(sys.argv.pop(1))
    note_parts()
    _resources = resources.measure
    setattr(driver, "measure", _measure)  # noqa: B010 - who imports it does not export it
    main()
