"""A swarm on this machine for measurements: coordinator and peers are processes with separate homes."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.chaos.internet import Place
from peers.launching.cold import Cold
from peers.launching.process import Launcher, Process
from swarm.events import Event, PassOpened, StepDecided, read_log

PEERS = [sys.executable, "-P", "-m", "peers"]
_ROOT = Path(__file__).parents[1]
_PATH = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
"""The module path for child processes. `benchmarks` is not installed, so peers that are files of it find the others
this way.
"""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": _PATH}


def script(name: str) -> list[str]:
    """The command that runs a file of this folder, whatever the working directory."""
    return [sys.executable, "-P", str(Path(__file__).with_name(f"{name}.py"))]


_GONE_S = 30.0


class LocalSwarm:
    """The swarm. It is started by `with`; whatever still runs at the end is killed. Output goes to files in
    `folder`.
    """

    def __init__(
        self,
        folder: Path,
        run_file: Path,
        peers: Sequence[Sequence[str]],
        places: Sequence[Place] = (),
        launcher: Launcher | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        """`peers`: the command of each peer, without invite and home. `places`: where they run, the coordinator first;
        without them, all use the loopback interface. `launcher`: None for cold starts, as users have them.
        `overrides`: of the run file, as the coordinator's option `--set` takes them.
        """
        self._launcher = launcher or Cold()
        self._namespaces = [place.namespace for place in places] or [None] * (len(peers) + 1)
        self._listening = places[0].listening if places else ()
        self.folder = folder
        self._temporary = tempfile.TemporaryDirectory(prefix="local-swarm-", ignore_cleanup_errors=True)
        self._environment = _ENVIRONMENT | {"TMPDIR": self._temporary.name}  # peers of two swarms do not take turns
        self._run_file = run_file
        self._commands = peers
        self._overrides = [f"--set={override}" for override in overrides]
        self.coordinator: Process | None = None
        self.peers: list[Process] = []
        self.spawned_at: list[float] = []
        """Unix seconds at which each peer's process was started."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        invite = self.folder / "invite"
        command = [*PEERS, "coordinate", str(self._run_file), "--home", str(self.folder / "coordinator")]
        command += ["--invite-file", str(invite), "--no-dashboard", "--devices=1000", *self._listening]
        command += self._overrides
        self.coordinator = self._start(command, "coordinator", self._namespaces[0])
        self._await(invite)
        for words in self._commands:
            self.join(words)
        return self

    def join(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start one more peer, at any time. `words`: its command, without invite and home. `environment`: what is
        different in its environment.
        """
        number = len(self.peers)
        invite = (self.folder / "invite").read_text().strip()
        self.spawned_at.append(time.time())
        command = [*words, invite, "--home", str(self.folder / f"peer-{number}")]
        namespace = self._namespaces[number + 1] if number < len(self._commands) else None
        self.peers.append(self._start(command, f"peer-{number}", namespace, environment))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.peers, self.coordinator):
            if process is not None and process.code is None:
                process.send(signal.SIGKILL)
                process.wait(_GONE_S)
        self._temporary.cleanup()

    def finish(self, timeout: float, failing: Collection[int] = ()) -> None:
        """Wait for the run's end. If a process fails, raises RuntimeError with the end of its output.

        `failing`: numbers of peers that may fail. Those that still run at the end are killed.
        """
        assert self.coordinator is not None
        deadline = time.monotonic() + timeout
        while self.coordinator.code is None:
            for number, process in enumerate(self.peers):
                if process.code not in (None, 0, -signal.SIGKILL) and number not in failing:  # killed: on purpose
                    raise RuntimeError(self._failure(f"peer-{number}", process.code))
            if time.monotonic() > deadline:
                raise RuntimeError(self._failure("coordinator", None))
            time.sleep(0.2)
        if self.coordinator.code != 0:
            raise RuntimeError(self._failure("coordinator", self.coordinator.code))
        for number, process in enumerate(self.peers):
            if number in failing and process.code is None:  # it may start again and again
                process.send(signal.SIGKILL)
            process.wait(30)

    def _failure(self, name: str, code: int | None) -> str:
        output = (self.folder / f"{name}.out").read_text(errors="replace")[-2000:]
        return f"{name} ended with {code}:\n{output}" if code is not None else f"{name} has not ended:\n{output}"

    def events(self, name: str = "coordinator") -> list[tuple[float, Event]]:
        return list(read_log(self.folder / name / "events.jsonl"))

    def step_seconds(self, steps: int, first: int | None = None) -> float:
        """The median seconds from opening to decision of the steps from `first` on; None: of the second half, because
        peers learn from the first steps when to pad (peers/stage/padding.py). Every one of `steps` was run once.
        """
        first = steps // 2 if first is None else first
        return statistics.median(self.seconds_by_step(steps)[first:])

    def seconds_by_step(self, steps: int) -> list[float]:
        """For each step, the seconds from opening to decision. Every one of `steps` was run once."""
        events = self.events()
        opened = [at for at, event in events if isinstance(event, PassOpened) and event.pass_kind == "train"]
        decided = [at for at, event in events if isinstance(event, StepDecided)]
        assert len(opened) == len(decided) == steps, "a step was run twice: not a measurement"
        return [b - a for a, b in zip(opened, decided, strict=True)]

    def _start(
        self,
        command: Sequence[str],
        name: str,
        namespace: str | None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        ours = list(command[: len(PEERS)]) == PEERS
        file = None if ours else Path(command[len(script("")) - 1])
        argv = command[len(PEERS if ours else script("")) :]
        output = self.folder / f"{name}.out"
        changed = self._environment | dict(environment or {})
        return self._launcher.start(argv, output, file=file, namespace=namespace, environment=changed)

    def _await(self, invite: Path) -> None:
        deadline = time.monotonic() + 60
        while not invite.exists():
            assert self.coordinator is not None
            if self.coordinator.code is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "coordinator.out").read_text(errors="replace")[-2000:])
            time.sleep(0.05)
