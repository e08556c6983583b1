"""A nursery of warm processes: imports everything once, then forks one process for each requested command.

Five processes that import torch cost ten seconds on two cores; forked here they cost a tenth. `Nursery` runs this file
as a program, with OPENBLAS_NUM_THREADS=1: only a process of a single thread may be forked. Requests and answers are
JSON lines:

→ {"argv": ["join", …], "output": "file", "namespace": path or null, "clock": path or null}     ← {"started": pid}
                                                        ← {"ended": pid, "code": exit code, negative for a signal}

A child is an independent process in every other respect. All children die with the nursery, and it with its parent.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from peers.chaos import clock
from peers.chaos.namespace import enter

_START_S = 120.0
"""A limit against hangs, in seconds: importing everything takes seconds."""
_WARM = (
    "torch",
    "torch._dynamo",  # computing on tensors without memory imports it
    "hivemind",
    "hivemind.utils.multiaddr.codecs.cid",  # multiaddr loads a codec when it meets its first address
    "hivemind.utils.multiaddr.codecs.ip4",
    "hivemind.utils.multiaddr.codecs.ip6",
    "hivemind.utils.multiaddr.codecs.uint16be",
    "uvloop",
    "peers.commands.coordinate",
    "peers.commands.join",
    "peers.commands.reference",
    "peers.dashboard.companion",
    "peers.dashboard.place",
    "peers.runtime.bootstrap",
    "peers.coordinator.process",
    "peers.runtime.device",
    "peers.report.progress",
    "peers.runtime.memory_limits",
    "peers.run.reference",
    "peers.run.resolved_run",
    "peers.run.verdict",
    "peers.stage.heap",
    "peers.stage.process",
    "peers.stage.seats",
)
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, eq=False)
class Child:
    """A process of the nursery. Process ids are reused within the hour, so its end is recorded here."""

    pid: int
    code: int | None = None
    """Exit code, negative for a signal; None while it lives."""


class Nursery:
    """The client of the nursery. Make it in the main thread: the nursery dies with the thread that made it."""

    def __init__(self) -> None:
        single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "peers.chaos.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent process
            env=os.environ | single,
        )
        self._living: dict[int, Child] = {}
        self._started: list[Child] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._started, _START_S), "the nursery does not start"
            self._started.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self, argv: Sequence[str], output: Path, *, namespace: str | None = None, clock: Path | None = None
    ) -> Child:
        """Fork a process that runs `swarm-peer ARGV…`.

        `namespace`: path of its network namespace. `clock`: file with the offset of its clock.
        """
        assert self._process.stdin is not None
        shift = None if clock is None else str(clock)
        order = {"argv": list(argv), "output": str(output), "namespace": namespace, "clock": shift}
        with self._changed:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: self._started, _START_S), "the nursery does not answer"
            return self._started.pop()

    def close(self) -> None:
        """All its processes die at once."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        stdout: IO[bytes] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            answer = json.loads(line)
            with self._changed:
                if "ended" in answer:
                    self._living.pop(answer["ended"]).code = answer["code"]
                else:
                    child = Child(next(iter(answer.values())))
                    self._living[child.pid] = child
                    self._started.append(child)
                self._changed.notify_all()


def main() -> None:
    _die_with_parent()
    clock.install()
    for name in _WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would visit all of this, and copy its pages
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a fork would copy their locks"
    wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer.fileno(), selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        _say({"ready": os.getpid()})
        rest = b""
        while True:
            for key, _ in selector.select():
                if key.fd == wakeup:
                    os.read(wakeup, 4096)
                    _report_ended()
                    continue
                more = os.read(sys.stdin.fileno(), 65_536)
                if not more:
                    return
                *lines, rest = (rest + more).split(b"\n")
                for line in lines:
                    _say({"started": _fork(json.loads(line))})


def _fork(order: Mapping[str, Any]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _die_with_parent()
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        file = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        if order["namespace"] is not None:
            enter(order["namespace"])
        if order["clock"] is not None:
            clock.follow(Path(order["clock"]))
        from peers.cli import main as swarm_peer

        try:
            swarm_peer(order["argv"])
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
