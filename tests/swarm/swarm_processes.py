"""A swarm of real processes on the loopback interface: started, watched through their event logs, killed.

Every wait has a deadline and fails at once, with the processes' last words, when somebody died who should not have.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from peers.demo.event_tail import EventTail
from peers.launching.nursery import Nursery
from peers.launching.process import Process as Launched
from peers.run.home import Home
from peers.run.verdict import archived_digests
from swarm.events import ControlGiven, Event, PeerJoined, ProcessStarted, StepApplied, StepDecided
from swarm.manifest import RunManifest

DEADLINE_S = 180.0
"""A hang guard: so long may a process take for a step beside three other swarms, and for what is no step."""

EVEN = "--pace=0.02,0.04"
"""An option for peers that all need work in every step, also on a busy machine.

Their shares follow measured speeds from the second step on, and from the fourth step on a slow peer may have no share.
A pace is the least time of a microbatch: peers with the same pace are about equally fast.
"""

DEVICES = 64
"""That may join with the printed invite: more than any swarm here has."""
_POLL_S = 0.01

E = TypeVar("E", bound=Event)


@dataclasses.dataclass
class Process:
    """One `swarm-peer` process and what it wrote. `log` covers all lives in the same home."""

    name: str
    home: Path
    output: Path
    nursery: Nursery
    namespace: str | None = None
    """Of an emulated internet; None: it lives on this machine's."""
    _child: Launched | None = None
    _known: list[tuple[float, Event]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._tail = EventTail(Home(self.home).events)

    def start(self, argv: Sequence[str]) -> None:
        """Run a command that works in this home."""
        self.run([*argv, "--home", str(self.home)])

    def run(self, argv: Sequence[str]) -> None:
        """Run a command that has no home."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        self._child = self.nursery.start(argv, self.output, namespace=self.namespace)

    @property
    def pid(self) -> int:
        """Of its last life; 0 when it has never run."""
        return 0 if self._child is None else self._child.pid

    @property
    def code(self) -> int | None:
        """Of its last life; None while it runs, or when it has never run."""
        return None if self._child is None else self._child.code

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def wait_stopped(self) -> None:
        """Until a process has stopped itself: its log tells of the moment just before it does."""
        self.wait(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED, "the stop")

    def resume(self) -> None:
        """Continue a process that stops itself."""
        self.wait_stopped()
        self.signal(signal.SIGCONT)

    @property
    def log(self) -> list[tuple[float, Event]]:
        self._known += self._tail.read()
        return list(self._known)

    def of(self, kind: type[E], **fields: object) -> list[E]:
        """Its events of a kind with these field values, oldest first."""
        return [event for _, event in self.log if _matches(event, kind, fields)]  # type: ignore[misc]

    def commanded(self) -> list[ControlGiven]:
        """What the organiser has commanded, as its log says: not that a device was let in."""
        return [event for event in self.of(ControlGiven) if event.command != "admit"]

    def at(self, kind: type[E], **fields: object) -> float:
        """When the first such event was written."""
        return next(at for at, event in self.log if _matches(event, kind, fields))

    def at_last(self, kind: type[E]) -> float:
        """When the last such event was written, 0 if none was."""
        return max((at for at, event in self.log if isinstance(event, kind)), default=0.0)

    @property
    def actor(self) -> str:
        """How logs name its present life."""
        return self.of(ProcessStarted)[-1].actor

    def wait_for(self, kind: type[E], count: int = 1, *, alive: bool = True, **fields: object) -> E:
        """The `count`-th such event. `alive`: fail when the process ends before."""
        found: list[E] = []

        def there() -> bool:
            found[:] = self.of(kind, **fields)
            return len(found) >= count

        self.wait(there, f"{kind.__name__} {fields or ''}", alive=alive)
        return found[count - 1]

    def wait_end(self, within_s: float = DEADLINE_S) -> int:
        """Its exit code, once it has ended. Steps that it decides or applies meanwhile begin the time anew."""
        self.wait(lambda: self.code is not None, "the end of the process", alive=False, within_s=within_s)
        assert self.code is not None
        return self.code

    def wait(self, reached: Callable[[], bool], what: str, *, alive: bool = True, within_s: float = DEADLINE_S) -> None:
        """Until it is so. With the usual deadline, a process that gets on with its steps may take longer.

        pytest's own limit ends the test of a run that never stops.
        """
        steps, end = self._steps_in(self._known), time.monotonic() + within_s
        while not reached():
            if alive and self.code is not None and not reached():
                raise AssertionError(f"{self.name} ended with {self.code} before {what}:\n{self.words()}")
            if time.monotonic() > end:
                known, steps = steps, self._steps_in(self.log)
                if within_s < DEADLINE_S or steps == known:
                    raise AssertionError(f"{self.name}: no {what} within {within_s:g} s:\n{self.words()}")
                end = time.monotonic() + within_s
            time.sleep(_POLL_S)

    @staticmethod
    def _steps_in(log: list[tuple[float, Event]]) -> int:
        """How often the log of a process tells that it has decided or applied a step."""
        return sum(isinstance(event, StepDecided | StepApplied) for _, event in log)

    def words(self) -> str:
        """What it printed, the end of it."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else "(nothing)"


class Swarm:
    """A coordinator and its peers, each with a home of its own under `folder`."""

    def __init__(self, nursery: Nursery, folder: Path, run_file: Path, manifest: RunManifest, *sets: str) -> None:
        self.folder = folder
        self.run_file = run_file
        self.manifest = manifest
        self.sets = sets
        self.peers: dict[str, Process] = {}
        self.others: dict[str, Process] = {}
        self._nursery = nursery
        self.coordinator = self._process("coordinator")

    # ------------------------------------------------------------ starting

    def coordinate(self, *more: str) -> None:
        """Start the coordinator, or start it again: it listens where it listened before."""
        invite = self._invite_file
        again = [f"--listen={self._address}"] if invite.exists() else ["--listen=/ip4/127.0.0.1/tcp/0"]
        invite.unlink(missing_ok=True)
        sets = [f"--set={text}" for text in self.sets]
        words = [
            "coordinate",
            str(self.run_file),
            f"--invite-file={invite}",
            f"--devices={DEVICES}",
            *again,
            *sets,
            *more,
        ]
        shown = any(word.startswith("--dashboard") for word in more)
        self.coordinator.start(words if shown else [*words, "--no-dashboard"])
        self.coordinator.wait(invite.exists, "an invite")

    def move(self, *more: str) -> None:
        """Start the coordinator again, at another port."""
        self._invite_file.unlink()
        self.coordinate(*more)

    def restore(self, copy: Path) -> None:
        """Put a copy of the coordinator's home, which is dead, in its place, event log and all."""
        shutil.rmtree(self.coordinator.home)
        copy.rename(self.coordinator.home)
        self.coordinator = self._process("coordinator")

    def bootstrap(self) -> str:
        """Start a bare DHT node; returns its address."""
        node = self.others["bootstrap"] = self._process("bootstrap")
        node.start(["bootstrap", "--json"])
        node.wait(lambda: node.output.exists() and b"\n" in node.output.read_bytes(), "addresses")
        addresses = json.loads(node.output.read_text().splitlines()[0])["addresses"]
        return str(addresses[0])

    def join(self, name: str, *more: str, capacity: float | None = 1.0, invite: str = "") -> Process:
        """Start a peer, in its home of before if it had one. `capacity` None: it measures itself.

        `invite`: another than the printed one.
        """
        peer = self.peers.setdefault(name, self._process(name))
        given = () if capacity is None else (f"--capacity={capacity}",)
        peer.start(["join", invite or self.invite, "--threads=1", "--max-memory=1GB", "--device=cpu", *given, *more])
        return peer

    def run_command(self, *argv: str) -> Process:
        """Run a command to its end, as a fork of the nursery; `output` has what it printed."""
        command = self.others[argv[0]] = self._process(argv[0])
        command.run(argv)
        command.wait_end()
        return command

    def assert_refused(self, name: str, invite: str, code: int, says: str, *more: str) -> None:
        """A device that tries to join ends with that code and says why."""
        before = self.peers[name].output.read_text() if name in self.peers else ""
        peer = self.join(name, *more, invite=invite)
        assert peer.wait_end() == code, peer.words()
        assert says in peer.output.read_text().removeprefix(before), peer.words()

    def join_stages(
        self, names: Sequence[str], options: dict[str, Sequence[str]] | None = None, *, alike: Sequence[str] = ()
    ) -> None:
        """Start peers so that the first gets stage 0, the next stage 1, and so on in turn.

        Who has options is started after all before it have a stage. All others have the options `alike`: they start
        together, and get their names in the order in which they came.
        """
        options = options or {}
        together: list[str] = []
        for name in names:
            if name in options or name in self.peers:  # who comes back keeps its name
                self._join_together(together, alike)
                together = []
                self._join_together([name], options.get(name, alike))
            else:
                together.append(name)
        self._join_together(together, alike)

    def _join_together(self, names: Sequence[str], more: Sequence[str] = ()) -> None:
        """Start peers at once. They are named anew, in the order in which they have got their stages.

        On a busy machine a peer may be lost and come back meanwhile: the coordinator tells that it has joined, again.
        """
        lives = [self._lives(name) for name in names]
        started = [self.join(name, *more) for name in names]

        def there() -> bool:
            joined = self._joined()
            return all(
                len(peer.of(ProcessStarted)) > before and peer.actor in joined
                for peer, before in zip(started, lives, strict=True)
            )

        self.coordinator.wait(there, f"{names} among the peers")
        if len(names) > 1:
            by_actor = {process.actor: process for process in started}
            came = [actor for actor in self._joined() if actor in by_actor]
            for name, actor in zip(names, came, strict=True):
                self.peers[name] = by_actor[actor]
                self.peers[name].name = name

    def _joined(self) -> list[str]:
        """Who has got a stage, as the coordinator tells, in that order: each once."""
        return list(dict.fromkeys(event.actor for event in self.coordinator.of(PeerJoined)))

    def _lives(self, name: str) -> int:
        """How often a peer has started."""
        return len(self.peers[name].of(ProcessStarted)) if name in self.peers else 0

    def rejoin(self, name: str, sibling: str, *more: str) -> None:
        """Start a killed peer again while its `sibling`, which stops itself, stands still: so there are steps left."""
        assert self.peers[name].wait_end() == -signal.SIGKILL
        self.peers[sibling].wait_stopped()
        before = self._lives(name)
        self.join(name, *more).wait_for(ProcessStarted, before + 1)
        self.coordinator.wait_for(PeerJoined, actor=self.peers[name].actor)
        self.peers[sibling].resume()

    @property
    def invite(self) -> str:
        return self._invite_file.read_text().strip()

    @property
    def _invite_file(self) -> Path:
        return self.folder / "invite"

    @property
    def _address(self) -> str:
        from swarm.net.invite import parse

        port = next(a for a in parse(self.invite).addresses if a.startswith("/ip4/127.0.0.1/")).split("/")[4]
        return f"/ip4/127.0.0.1/tcp/{port}"

    def on_host(self, name: str, namespace: str | None) -> None:
        """A peer that joins later is a host of an emulated internet."""
        self.peers[name] = self._process(name)
        self.peers[name].namespace = namespace

    def _process(self, name: str) -> Process:
        return Process(name, self.folder / name, self.folder / f"{name}.out", self._nursery)

    # ------------------------------------------------------------ ending

    def finish(self, names: Sequence[str] | None = None) -> None:
        """Wait for the end of the run: the coordinator and these peers (all, if not named) leave by themselves."""
        assert self.coordinator.wait_end() == 0, self.words()
        for name in self.peers if names is None else names:
            self.peers[name].wait_end(30.0)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            if process.pid:
                process.wait_end()

    @property
    def processes(self) -> list[Process]:
        return [self.coordinator, *self.peers.values(), *self.others.values()]

    def words(self) -> str:
        return "\n".join(f"--- {process.name} ({process.code})\n{process.words()}" for process in self.processes)

    # ------------------------------------------------------------ what must hold

    def assert_equal(self, reference: Sequence[str]) -> None:
        """The archived state of the last version has the digests of the single-process run."""
        version, digests = archived_digests(self.coordinator.home, self.manifest)
        assert version == self.manifest.run.steps
        assert digests == tuple(reference), self.words()

    def assert_command_says_equal(self, *, whole: bool = True) -> None:
        """`swarm-peer reference --against` trains the same, from the record of what the swarm has chosen.

        `whole`: the archive holds the last step of the manifest, which nobody has changed.
        """
        sets = [f"--set={text}" for text in self.sets]
        argv = ("reference", str(self.run_file), *sets, "--against", str(self.coordinator.home))
        command = self.run_command(*argv)
        assert command.code == 0, command.words()
        if whole:
            assert archived_digests(self.coordinator.home, self.manifest)[0] == self.manifest.run.steps

    def assert_replicas_identical(self) -> dict[int, dict[int, set[str]]]:
        """After every step, all that applied it on a stage have the same digest; returns them, by stage and step."""
        applied: dict[int, dict[int, set[str]]] = {}
        for peer in self.peers.values():
            stage: int | None = None
            for _, event in peer.log:
                if isinstance(event, ProcessStarted):
                    stage = None
                elif isinstance(event, PeerJoined):
                    stage = event.stage
                elif isinstance(event, StepApplied):
                    assert stage is not None
                    applied.setdefault(stage, {}).setdefault(event.step, set()).add(event.digest)
        assert set(applied) == set(range(self.manifest.model.stages))
        for stage, steps in applied.items():
            assert set(steps) == set(range(self.manifest.run.steps)), f"stage {stage}"
            for step, digests in steps.items():
                assert len(digests) == 1, f"stage {stage} step {step}: {digests}\n{self.words()}"
        return applied


def _matches(event: Event, kind: type[Event], fields: dict[str, object]) -> bool:
    return isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
