"""Plays a scenario: starts the machines, causes the faults at their moments, and records the events."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path

from peers.chaos.churning import Churning
from peers.chaos.fault import PlannedFault
from peers.chaos.holders import LEADER, holders, leader, stage_named
from peers.chaos.internet import Internet, Place
from peers.chaos.machine import EmulatedMachine, Seen
from peers.chaos.moment import COORDINATOR
from peers.chaos.namespace import mount_memory
from peers.chaos.scenario import BOOTSTRAP, Scenario
from peers.chaos.schedule import Schedule
from peers.chaos.small_run import write_run
from peers.chaos.striker import Striker
from peers.chaos.vitals import Vitals
from peers.launching.nursery import Nursery
from peers.run.resolved_run import resolve_run
from swarm.events import (
    Event,
    FrameRecovered,
    LoopBlocked,
    MicrobatchAccumulated,
    MicrobatchForwarded,
    PassOpened,
    PeerJoined,
    ResourcesMeasured,
    RunFinished,
    TrafficMeasured,
)
from swarm.manifest import RunManifest

_MANY: frozenset[type[Event]] = frozenset(
    (FrameRecovered, LoopBlocked, MicrobatchAccumulated, MicrobatchForwarded, ResourcesMeasured, TrafficMeasured)
)
"""Frequent kinds of events that no report mentions. They are not kept."""
_OF_PROCESSES = ("kill", "restart", "stop", "continue", "slow", "leave")
_DEVICES = 1000
"""The number of devices that may join with the printed invite, including further seats."""
_POLL_S = 0.005
_START_S = 90.0
_SETTLE_S = 20.0
_REFERENCE_S = 600.0
"""A lower bound, in seconds, of the time that the reference may take. A long play has more steps, so the reference may
take as long as the play.
"""


class ScenarioFailed(RuntimeError):
    """The swarm of a scenario does not start, or writes no events any more; the message has the last output of a
    process.
    """


@dataclass(frozen=True, slots=True)
class Struck:
    fault: PlannedFault
    at: float
    """The time of the fault, Unix seconds."""
    nobody: str = ""
    """The selector of the fault, if it matched no host."""


@dataclass(frozen=True, slots=True)
class Ended:
    host: str
    at: float
    """Unix seconds, when it was seen."""
    code: int


@dataclass
class Played:
    """What was observed of a play, from outside."""

    scenario: Scenario
    folder: Path
    machines: dict[str, EmulatedMachine]
    struck: list[Struck] = field(default_factory=list)
    accidents: list[str] = field(default_factory=list)
    """Processes that ended by themselves with an error."""
    vitals: Vitals = field(default_factory=Vitals)
    ends: list[Ended] = field(default_factory=list)
    """Processes that ended before the director stopped all processes."""
    first_step_at: float = 0.0
    ended_at: float = 0.0
    finished: bool = False
    waiting: list[PlannedFault] = field(default_factory=list)
    """Faults whose moment did not come."""
    manifest: RunManifest | None = None
    verdict: dict[str, object] = field(default_factory=dict)
    """The output of `swarm-peer reference --against --json`; empty if it was not asked or failed."""

    def actors(self, host: str) -> frozenset[str]:
        """The actor names of all processes of a host in the logs; empty if the name is not a host."""
        return frozenset(self.machines[host].lives) if host in self.machines else frozenset()

    @property
    def coordinator(self) -> list[Seen]:
        """The events of all coordinators' logs, in the order of time."""
        first, *others = (self.machines[name].log for name in self.scenario.coordinators)
        return first if not others else list(merge(first, *others, key=lambda seen: seen.at))


class Director:
    """Plays one scenario: call `play` once. `say` gets a line for people, and the seconds since the first step, None
    before it.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        nursery: Nursery,
        internet: Internet,
        say: Callable[[str, float | None], None],
    ) -> None:
        self._scenario = scenario
        self._nursery = nursery
        self._folder = folder
        self._internet = internet
        self._say = say
        self._places: dict[str, Place] = {}
        self._machines: dict[str, EmulatedMachine] = {}
        self._played = Played(scenario, folder, self._machines)
        self._schedule = Schedule(scenario.faults, self._played.actors)
        self._striker = Striker(scenario.network, internet, self._machines)
        self._churning: Churning | None = None
        self._run_file = folder / "RUN.toml"
        self._heard_at = 0.0
        self._noticed: set[tuple[str, float]] = set()
        self._sets: list[str] = []
        """Overrides of the run file."""
        self._entry: tuple[str, ...] = ()
        """The options with which every peer joins."""

    def play(self) -> Played:
        """Play the scenario. Raises ScenarioFailed, InternetError, OSError. No process and no host is left behind."""
        with self._internet:
            try:
                self._settle_in()
                self._start()
                self._train()
                self._end()
                if self._scenario.expect.equal:
                    self._compare()
            finally:
                for machine in self._machines.values():
                    machine.kill()
        return self._played

    # ------------------------------------------------------------ phases

    def _settle_in(self) -> None:
        if self._scenario.run_file is None:
            self._run_file, prepare = write_run(self._folder)
            self._command("prepare", prepare, 60.0)
        else:
            self._run_file = self._scenario.run_file
        forgotten = _MANY - {expected.sight.kind for expected in self._scenario.expect.events}
        for name, plan in self._scenario.hosts.items():
            place = self._places[name] = self._internet.add(plan)
            machine = EmulatedMachine(name, self._folder, self._nursery, place.namespace, plan.disk, forgotten)
            machine.skew(plan.clock_s)
            self._machines[name] = machine
            machine.home.path.mkdir(parents=True)
            if plan.disk is not None and place.namespace is not None:
                mount_memory(str(machine.home.path), plan.disk)
        sets = list(self._scenario.sets)
        if len(self._coordinators) > 1:
            ids = [self._peer_id(machine) for machine in self._coordinators]
            sets.append(f"coordinator.group={ids}")
        self._sets = [f"--set={text}" for text in sets]
        self._played.manifest = resolve_run(self._run_file, sets).manifest

    def _start(self) -> None:
        entry: tuple[str, ...] = ()
        if self._scenario.bootstrap:
            node = self._launch(BOOTSTRAP, ["bootstrap", "--json", *self._places[BOOTSTRAP].joining])
            self._wait_for(lambda: node.output.exists() and b"\n" in node.output.read_bytes(), "addresses", node)
            addresses = json.loads(node.output.read_text().splitlines()[0])["addresses"]
            entry = (f"--bootstrap={_reachable(addresses, self._places[BOOTSTRAP].address)}",)
        invite = self._folder / "invite"
        sets = self._sets
        words = ["coordinate", str(self._run_file), "--no-dashboard", f"--devices={_DEVICES}", *sets, *entry]
        coordinator = self._coordinate(COORDINATOR, words, invite)
        self._entry = (invite.read_text().strip(), *entry)
        for name in self._scenario.coordinators[1:]:
            self._coordinate(name, [*words, f"--invite={self._entry[0]}"], self._folder / f"invite-{name}")
        for number, name in enumerate(self._scenario.peers, 1):
            peer = self._join(name)
            self._wait_for(lambda n=number: self._count(PeerJoined) >= n or self._opened, "admission", peer)  # type: ignore[misc]
        self._wait_for(lambda: self._opened, "the first step", coordinator)
        self._played.first_step_at = next(
            s.at for s in self._played.coordinator if isinstance(s.event, PassOpened) and s.event.pass_kind == "train"
        )
        if self._scenario.churn is not None:
            peers = [m for name, m in self._machines.items() if name not in (*self._scenario.coordinators, BOOTSTRAP)]
            self._churning = Churning(self._scenario.churn, peers, self._played.first_step_at)
        self._tell("the first step is opened")

    def _train(self) -> None:
        self._heard_at = time.time()
        while not self._over():
            self._read()
            now = time.time()
            for fault in self._schedule.due(now):
                self._strike(fault)
            turn = None if self._churning is None else self._churning.turn(now, self._played.coordinator)
            if turn is not None:
                self._strike(turn)
            self._notice_ends()
            self._played.vitals.sample(self._machines.values(), now)
            if now - self._heard_at > self._scenario.patience_s:
                self._tell(
                    f"the coordinator has logged nothing for {self._scenario.patience_s:g} s: the play is given up"
                )
                break
            time.sleep(_POLL_S)
        self._played.ended_at = time.time()

    def _end(self) -> None:
        """Wait for the processes that leave by themselves, then stop all others."""
        self._read()
        self._played.finished = any(isinstance(seen.event, RunFinished) for seen in self._played.coordinator)
        self._played.waiting = self._schedule.waiting
        deadline = time.time() + (_SETTLE_S if self._played.finished else 0.0)
        for machine in self._machines.values():
            machine.slow(1.0)
            machine.resume()
        rest = [m for name, m in self._machines.items() if name != BOOTSTRAP]
        while any(machine.running for machine in rest) and time.time() < deadline:
            time.sleep(_POLL_S)
        self._notice_ends()
        for machine in self._machines.values():
            machine.kill()
        self._wait_for(lambda: not any(m.running for m in self._machines.values()), "the end of all processes", rest[0])
        self._read()
        for machine in self._machines.values():
            if machine.disk is not None and machine.home.events.exists():  # its disk vanishes when this process ends
                shutil.copyfile(machine.home.events, self._folder / f"{machine.name}-events.jsonl")

    def _compare(self) -> None:
        finished = [m for m in self._coordinators if any(isinstance(seen.event, RunFinished) for seen in m.log)]
        against = str((finished or self._coordinators)[0].home.path)
        words = ["reference", str(self._run_file), *self._sets, "--against", against, "--threads", "1", "--json"]
        try:
            seconds = max(_REFERENCE_S, self._played.ended_at - self._played.first_step_at)
            told = self._command("reference", words, seconds, good=(0, 3))
        except ScenarioFailed as error:
            self._played.accidents.append(str(error))
            return
        self._played.verdict = json.loads(told.splitlines()[-1])

    # ------------------------------------------------------------ faults

    def _strike(self, fault: PlannedFault) -> None:
        written, fault = fault, self._of_now(fault)
        at = time.time()
        nobody = bool(written.hosts) and not (fault.who or (fault.between and all(fault.between)))
        if nobody:
            pass  # a fault of links without named hosts concerns all links
        elif fault.kind == "join":
            for host in fault.who:
                self._join(host)
        else:
            for host in fault.who:
                self._refuse_unborn(fault, self._machines[host])
            self._striker.strike(fault)
        self._played.struck.append(Struck(fault, at, str(written) if nobody and fault.takes_back is None else ""))
        self._schedule.struck(fault, at)
        self._tell(f"{fault.name}: {written}, which is not a host now" if nobody else f"{fault.name}: {fault}")

    def _of_now(self, fault: PlannedFault) -> PlannedFault:
        """The fault with actual hosts in place of its selectors: the leader, or the holders of a stage. A reversal
        affects the hosts of the fault that it reverses.
        """
        if fault.takes_back is not None:
            before = next(s.fault for s in self._played.struck if s.fault.name == fault.takes_back)
            return replace(fault, who=before.who, between=before.between)
        between = fault.between and (self._all_meant(fault.between[0]), self._all_meant(fault.between[1]))
        return replace(fault, who=self._all_meant(fault.who), between=between)

    def _refuse_unborn(self, fault: PlannedFault, machine: EmulatedMachine) -> None:
        """Refuse a fault whose host has not been started. Raises ScenarioFailed."""
        if fault.kind in _OF_PROCESSES and not machine.pid:
            raise ScenarioFailed(f"fault {fault.name!r}: {machine.name} has not started yet: let it come later")
        by_process = fault.kind == "fill" and not fault.undoes and self._places[machine.name].namespace is None
        if by_process and not machine.running:
            raise ScenarioFailed(
                f"fault {fault.name!r}: {machine.name} does not run, and without root only a process has a full disk"
            )

    def _all_meant(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host for name in names for host in self._meant(name))

    def _meant(self, name: str) -> tuple[str, ...]:
        """The hosts that a name in a fault stands for now."""
        if name == LEADER:
            return (leader(self._coordinators),)
        stage = stage_named(name)
        return (name,) if stage is None else holders(self._machines.values(), self._played.coordinator, stage)

    # ------------------------------------------------------------ machines

    def _coordinate(self, name: str, words: list[str], invite: Path) -> EmulatedMachine:
        machine = self._launch(name, [*words, f"--invite-file={invite}", *self._places[name].listening])
        self._wait_for(invite.exists, "an invite", machine)
        return machine

    def _peer_id(self, machine: EmulatedMachine) -> str:
        words = ["id", "--json", "--home", str(machine.home.path)]
        return str(json.loads(self._command(f"id-{machine.name}", words, 30.0))["peer_id"])

    def _launch(self, name: str, argv: list[str]) -> EmulatedMachine:
        machine = self._machines[name]
        machine.start([*argv, *self._scenario.hosts[name].options])
        self._internet.started(name, machine.pid)
        return machine

    def _join(self, name: str) -> EmulatedMachine:
        common = ["--threads=1", "--max-memory=1GB", "--device=cpu"]
        if (pace := self._scenario.pace) is not None:
            common.append(f"--pace={pace.forward_s},{pace.backward_s}")
        return self._launch(name, ["join", *self._entry, *common, *self._places[name].joining])

    def _command(self, name: str, argv: list[str], seconds: float, good: tuple[int, ...] = (0,)) -> str:
        """Run a command to its end on this machine and return its output. Raises ScenarioFailed."""
        output = self._folder / f"{name}.txt"
        child = self._nursery.start(argv, output)
        deadline = time.time() + seconds
        while (code := child.code) is None and time.time() < deadline:
            time.sleep(_POLL_S)
        text = output.read_text(errors="replace")
        if code not in good:
            ended = "has not ended" if code is None else f"ended with {code}"
            raise ScenarioFailed(f"swarm-peer {name} {ended}:\n{text[-2000:]}")
        return text

    def _read(self) -> None:
        """Read all logs, and pass every event to the schedule."""
        for name, machine in self._machines.items():
            for seen in machine.read():
                self._schedule.see(name, seen.event, seen.at)
                self._played.vitals.told(machine, seen.event)
                if name in self._scenario.coordinators:
                    self._heard_at = time.time()

    def _wait_for(self, reached: Callable[[], bool], what: str, machine: EmulatedMachine) -> None:
        deadline = time.time() + _START_S
        while not reached():
            self._read()
            if machine.ended and not reached():
                raise ScenarioFailed(f"{machine.name} ended with {machine.code} before {what}:\n{machine.words()}")
            if time.time() > deadline:
                raise ScenarioFailed(f"{machine.name}: no {what} within {_START_S:g} s:\n{machine.words()}")
            time.sleep(_POLL_S)

    def _notice_ends(self) -> None:
        """Record ends that were not ordered as accidents, unless the scenario allows them."""
        for name, machine in self._machines.items():
            code = machine.code
            if code is None or (name, machine.started_at) in self._noticed:
                continue
            self._noticed.add((name, machine.started_at))
            self._played.ends.append(Ended(name, time.time(), code))
            if machine.ended and code != 0:
                self._tell(f"{name} ended with {code} by itself")
                if name not in self._scenario.expect.may_end:
                    words = machine.words().replace("\n", "\n  ")
                    self._played.accidents.append(f"{name} ended with {code} by itself:\n  {words}")

    @property
    def _coordinators(self) -> list[EmulatedMachine]:
        return [self._machines[name] for name in self._scenario.coordinators]

    def _over(self) -> bool:
        ends, running = self._scenario.ends_s, any(machine.running for machine in self._coordinators)
        by_themselves = not running and any(machine.ended for machine in self._coordinators)
        return by_themselves or (ends is not None and time.time() > self._played.first_step_at + ends)

    @property
    def _opened(self) -> bool:
        """True once the first step has opened. Moments count from then, even if some peers are still starting."""
        events = (seen.event for seen in self._played.coordinator)
        return any(isinstance(event, PassOpened) and event.pass_kind == "train" for event in events)

    def _count(self, kind: type[Event]) -> int:
        return sum(isinstance(seen.event, kind) for seen in self._played.coordinator)

    def _tell(self, line: str) -> None:
        first = self._played.first_step_at
        self._say(line, time.time() - first if first else None)


def _reachable(addresses: list[str], address: str) -> str:
    return next(found for found in addresses if f"/{address}/" in found)
