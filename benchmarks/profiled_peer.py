"""A peer that notes where its CPU time goes: `profiled_peer.py NOTES join …`; for benchmarks/profile.py only.

NOTES is a JSONL file with one line per step applied: CPU-seconds so far of the compute thread's parts, of the whole
process and of its libp2p daemon. A part inside another one is counted once, in the inner one.
"""

# ruff: noqa: E402 - the heap is set up first, as `join` does
from __future__ import annotations

from peers.stage.heap import keep_freed_memory

keep_freed_memory()

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.cli import main
from peers.stage import driver, resources
from swarm.compute.body import BodyFormat
from swarm.compute.optimizer import StageOptimizer
from swarm.compute.reduction import Reduction
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.events import ResourcesMeasured

PARTS: dict[str, Sequence[tuple[type, str]]] = {
    "forward": [(Stage, "forward")],
    "backward": [(Stage, "backward"), (Stage, "weights")],
    "codec and frames": [
        (BodyFormat, name) for name in ("pack_forward", "pack_backward", "unpack_forward", "unpack_backward")
    ],
    "exact sums": [(Accumulator, name) for name in ("add_one", "end")],
    "reduction": [(Reduction, name) for name in ("part", "sum", "store", "assemble")],
    "optimizer": [(StageOptimizer, "apply")],
}

_seconds: defaultdict[str, float] = defaultdict(float)
_inner: list[float] = []
"""CPU-seconds spent in parts inside each open part, innermost last."""


def _noted(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        _inner.append(0.0)
        try:
            return function(*arguments, **named)
        finally:
            spent = time.thread_time() - began
            _seconds[part] += spent - _inner.pop()
            if _inner:
                _inner[-1] += spent

    return run


def _measure(version: int, peak_retained_bytes: int) -> ResourcesMeasured:
    measured = _resources(version, peak_retained_bytes)
    with notes.open("a") as file:
        file.write(json.dumps({"parts": dict(_seconds), **asdict(measured)}) + "\n")
    return measured


if __name__ == "__main__":
    notes = Path(sys.argv.pop(1))
    for part, functions in PARTS.items():
        for owner, name in functions:
            setattr(owner, name, _noted(part, getattr(owner, name)))
    _resources = resources.measure
    setattr(driver, "measure", _measure)  # noqa: B010 - who imports it does not export it
    main()
