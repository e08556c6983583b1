"""A nursery of warm processes: imports everything once, then forks one process for each requested command.

Five processes that import torch cost ten seconds on two cores; forked here they cost a tenth. `Nursery` runs this file
as a program, with OPENBLAS_NUM_THREADS=1: only a process of a single thread may be forked. Requests and answers are
JSON lines:

→ {"argv": ["join", …], "output": "file", "file": path or null, "namespace": path or null, "clock": path or null,
   "environment": {…}}                                   ← {"ready": pid}, once, and {"started": pid} for each request
                                                        ← {"ended": pid, "code": exit code, negative for a signal}

A child is an independent process in every other respect, but it knows which counts of graphs earlier children have made
(swarm/compute/graph_counts.py): processes of one run need the same counts. All children die with the nursery, and it
with its parent.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from peers.chaos import clock
from peers.chaos.namespace import enter
from peers.launching.cold import Cold
from peers.launching.process import Launcher, LaunchFailed, Process, die_with_parent, open_output
from swarm.compute.graph_counts import KNOWN

_START_S = 120.0
"""Limit in seconds for a nursery that hangs. Importing everything takes seconds."""
_COMMANDS = ("coordinate", "join", "reference")
_WARM = (
    "torch",
    "torch._dynamo",  # imported by computations on tensors without memory
    "swarm.net.host",
    "hivemind.utils.multiaddr.codecs.cid",  # multiaddr loads this codec at its first address
    "hivemind.utils.multiaddr.codecs.ip4",
    "hivemind.utils.multiaddr.codecs.ip6",
    "hivemind.utils.multiaddr.codecs.uint16be",
    "uvloop",
    "encodings.ascii",
    "importlib.readers",  # finds the libp2p daemon
    "peers.run.invite_text",
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


class Nursery(Launcher):
    """The client of the nursery. Create it in the main thread: the nursery dies with the thread that created it."""

    def __init__(self) -> None:
        """Start the nursery, which imports in the background. The first `start` waits for it."""
        single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "peers.launching.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the parent process
            env=os.environ | single,
        )
        self._living: dict[int, Process] = {}
        self._started: list[Process] = []
        self._ready = self._gone = False
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the nursery, whose forks are the processes."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until everything is imported. Raises LaunchFailed."""
        with self._changed:
            self._wait(lambda: self._ready)

    def start(
        self,
        argv: Sequence[str],
        output: Path,
        *,
        file: Path | None = None,
        namespace: str | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Path | None = None,
    ) -> Process:
        """Start a process, as `Launcher.start` says. `clock`: the file with the offset of the process's clock."""
        assert self._process.stdin is not None
        order = {
            "argv": list(argv),
            "output": str(output),
            "file": None if file is None else str(file),
            "namespace": namespace,
            "clock": None if clock is None else str(clock),
            "environment": dict(environment or {}),
        }
        try:
            os.close(open_output(str(output)))  # create the file now, because the process opens it only later
        except OSError as error:
            raise LaunchFailed(f"cannot write {output}: {error}") from None
        with self._changed:
            self._wait(lambda: self._ready)
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                raise LaunchFailed(f"the process that starts others has ended: {error}") from None
            self._wait(lambda: bool(self._started))
            return self._started.pop()

    def close(self) -> None:
        """End the nursery and, immediately, all its processes."""
        self._process.kill()
        self._process.wait()

    def _wait(self, reached: Callable[[], bool]) -> None:
        """Wait for a condition. Raises LaunchFailed."""
        if not self._changed.wait_for(lambda: self._gone or reached(), _START_S) or self._gone:
            raise LaunchFailed("the nursery of processes " + ("has ended" if self._gone else "does not answer"))

    def _listen(self) -> None:
        stdout: IO[bytes] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            answer = json.loads(line)
            with self._changed:
                if "ended" in answer:
                    self._living.pop(answer["ended"]).ended(answer["code"])
                elif "started" in answer:
                    child = Process(answer["started"])
                    self._living[child.pid] = child
                    self._started.append(child)
                else:
                    self._ready = True
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            for child in self._living.values():  # the kernel has killed them
                child.ended(-signal.SIGKILL)
            self._changed.notify_all()


def nursery_or_cold() -> Launcher:
    """A nursery; or cold starts if a nursery is impossible: outside Linux, or if importing starts threads."""
    if sys.platform != "linux":
        return Cold()
    nursery = Nursery()
    try:
        nursery.wait_ready()
    except LaunchFailed:
        nursery.close()
        return Cold()
    return nursery


def main() -> None:
    die_with_parent()
    clock.install()
    for name in _WARM:
        importlib.import_module(name)
    importlib.import_module("peers.cli").prepare(*_COMMANDS)
    gc.collect()
    gc.freeze()  # otherwise garbage collection in a child would visit all these objects, and copy their pages
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: a fork would copy their locks"
    wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    counted, counting = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer.fileno(), selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        selector.register(counted, selectors.EVENT_READ)
        _say({"ready": os.getpid()})
        rest = b""
        while True:
            for key, _ in selector.select():
                if key.fd == wakeup:
                    os.read(wakeup, 4096)
                    _report_ended()
                    continue
                if key.fd == counted:
                    for line in os.read(counted, 65_536).splitlines():
                        KNOWN.learn(line)
                    continue
                more = os.read(sys.stdin.fileno(), 65_536)
                if not more:
                    return
                *lines, rest = (rest + more).split(b"\n")
                for line in lines:
                    _say({"started": _fork(json.loads(line), counting)})


def _fork(order: Mapping[str, Any], counting: int) -> int:
    """Fork a process that writes its counts of graphs to `counting`."""

    def tell(line: bytes) -> None:
        with contextlib.suppress(OSError):  # full: a later child counts anew
            os.write(counting, line)  # at once: such short lines are never torn

    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        die_with_parent()
        os.setpgid(0, 0)
        nothing, written = os.open(os.devnull, os.O_RDONLY), open_output(order["output"])
        for source, target in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(source, target)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.update(order["environment"])
        KNOWN.tell = tell
        tempfile.tempdir = None  # the environment may name another folder now
        if order["namespace"] is not None:
            enter(order["namespace"])
        if order["clock"] is not None:
            clock.follow(Path(order["clock"]))
        try:
            _run(order["file"], order["argv"])
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(file: str | None, argv: list[str]) -> None:
    if file is None:
        from peers.cli import main as swarm_peer

        swarm_peer(argv)
    else:
        sys.argv = [file, *argv]
        runpy.run_path(file, run_name="__main__")


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


if __name__ == "__main__":
    main()
