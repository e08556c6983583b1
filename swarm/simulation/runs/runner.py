"""Runs plans: a single seed, a replay with its trace, many seeds in several processes, and a crash at every event.

`run_seed(scenario, seed)` is the whole simulator in one call; everything else repeats it.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swarm.protocol.admissions import Device
from swarm.protocol.controls import ADMIT, Controls
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.ids import Actor
from swarm.protocol.io import LeaveRequested
from swarm.protocol.messages import Command, Means
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import PauseChanged
from swarm.protocol.raft.member import GroupMember
from swarm.simulation.checks.watch import GOODBYE
from swarm.simulation.faults.faults import Cell, Injector
from swarm.simulation.faults.lie import SLOW, Lie
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Pause, Plan, small_settings
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.runs.world import World
from swarm.simulation.toy.member_disk import MemberDisk
from swarm.simulation.toy.organiser import Organiser
from swarm.simulation.toy.process_group import ProcessGroup, seat_name
from swarm.simulation.toy.scribe import LogWriter, Scribe
from swarm.simulation.toy.sim_coordinator import Record, SimCoordinator
from swarm.simulation.toy.sim_member import SimMember
from swarm.simulation.toy.sim_peer import SimPeer
from swarm.simulation.toy.sim_storage import Disk
from swarm.simulation.toy.toy_model import LADDERS, Cycle, initial_state, state_digest

MAX_EVENTS = 60_000
TRACE_TAIL = 60
_PATIENCE_S = 240.0
"""Virtual seconds that a run may take after the last fault has ended."""
_ROAMS_EVERY_S = 0.01
_COORDINATOR = Actor("coord", 0)


class CrashPoint(NamedTuple):
    """Kill `victim` (a peer id) when the run reaches the event or action with this number."""

    victim: str
    event: int = 0
    action: int = 0
    returns_after: float | None = None


class Volunteer(NamedTuple):
    """A peer to be started. `host`: the existing process to start it in; None: a new one."""

    name: str
    disk: Disk
    speed: float
    spare: bool
    lie: Lie | None = None
    means: Means = Means()
    host: SimPeer | None = None


@dataclass(slots=True)
class Outcome:
    """The result of one run. `invariant`: the broken one; empty if none."""

    scenario: str
    seed: int
    invariant: str = ""
    detail: str = ""
    trace: list[str] = field(default_factory=list, repr=False)
    struck: list[Cell] = field(default_factory=list, repr=False)
    events: int = 0
    actions: int = 0
    virtual_s: float = 0.0
    rollbacks: int = 0
    caught_up: int = 0
    """Number of steps that were applied from fetched sums."""

    @property
    def ok(self) -> bool:
        return not self.invariant


class Run:
    """One world with the processes of its plan."""

    def __init__(self, plan: Plan, *, tracing: bool = False, scribe: Scribe | None = None) -> None:
        self.plan = plan
        visits = Cycle(plan.blocks) if plan.blocks else None
        self.world = World(
            plan.settings,
            plan.seed,
            visits=visits,
            choosing=plan.choosing,
            unlike=plan.unlike,
            diverging=plan.diverging,
            pausing=bool(plan.pauses),
            first_round=plan.first_round,
            piece_s=plan.piece_s,
            spoils=plan.spoils,
            tracing=tracing,
        )
        self.world.scribe = scribe
        self._incarnations: Counter[str] = Counter()
        self._disks: dict[str, Disk] = {}
        """Disks of further peers in shared processes, by name."""
        self.world.network.weather = plan.weather
        self.world.watch.leaving.disturbed = any(lie is not None for lie in plan.lies)
        self.injector = Injector(self.world, plan.faults, self.respawn)
        record = Record(commands=_admissions(plan))
        for command in record.commands:
            self.world.watch.commanded(command)
        if plan.settings.imported:
            record.archived = 0
            self.world.archive |= {(stage, 0): initial_state(stage) for stage in range(plan.settings.stages)}
        self._group = (
            tuple(Actor(f"coord{i + 1}", 0) for i in range(plan.coordinators)) if plan.coordinators > 1 else ()
        )
        if self._group:
            self._found_group(record)
        else:
            self._start_coordinator(record)
        staff, respawn = self.injector.keep_staffed, self.respawn
        self.organiser = Organiser(self.world, plan.wishes, staff, respawn) if plan.wishes else None
        rng = self.world.random
        at_start = len(plan.speeds) - plan.spares
        for index, speed in enumerate(plan.speeds):
            spare = index >= at_start
            at = 0.03 + (0.05 if rng.random() < 0.7 else 0.5) * rng.random() if spare else 0.02 * rng.random()
            if spare and plan.arrivals:
                at = plan.arrivals[index - at_start]
            lie = plan.lies[index] if index < len(plan.lies) else None
            means = plan.means[index] if plan.means else Means()
            peer = Volunteer(f"peer{index + 1}", Disk(), speed, spare, lie, means)
            self.world.at(at, None, (self._start_peer, peer))

        for pause in plan.pauses:
            self.world.at(pause.at, None, (self._pause, pause))

    def _pause(self, pause: Pause) -> None:
        """A peer's machine is hot or busy for a while, if the peer is present."""
        name, world = f"peer{pause.peer + 1}", self.world
        for process in world.alive():
            if process.actor.peer == name:
                process.accept(PauseChanged("83 °C (limit 80 °C)"))
                world.at(world.now + pause.seconds, process, PauseChanged(""))

    def respawn(self, process: Process, away: float) -> None:
        """Start the process again after `away` seconds, as a supervisor or its owner would."""
        at = self.world.now + away
        process.replaced = True
        if isinstance(process, SimPeer):
            peer = Volunteer(process.actor.peer, process.storage.disk, process.speed, True, process.lie, process.means)
            self.world.at(at, None, (self._start_peer, peer))
        elif isinstance(process, SimMember):
            self.world.at(at, None, (self._start_member, (process.actor, process.disk)))
        elif isinstance(process, SimCoordinator):
            self.world.at(at, None, (self._start_coordinator, process.record))

    def _flap(self, process: SimPeer) -> None:
        """An insider's process restarts or loses a connection, and soon does so again."""
        world, rng = self.world, self.world.random
        if not process.alive or world.finished_at <= world.now or process.leaving:
            return
        others = [p for p in world.network.connected(process) if p.alive]
        if rng.random() < 0.3 or not others:
            self.injector.kill(process, rng.choice((0.05, 0.3, 1.0)))
            return  # the new process continues
        world.network.flap(process, rng.choice(others), rng.choice((0.02, 0.1, 0.5)))
        world.at(world.now + rng.random(), None, (self._flap, process))

    def _roam(self, process: SimPeer) -> None:
        """An insider's device leaves, or is killed as soon as it takes part in a reduction, and comes back."""
        world, rng = self.world, self.world.random
        if world.finished_at <= world.now or process.replaced:
            return
        if not process.alive:
            self.respawn(process, rng.choice((0.02, 0.1)))
            return
        process.disturbed_at = world.now
        if process.leaving:
            pass  # it comes back once it has left
        elif rng.random() < 0.02:
            process.leaving = True
            process.accept(LeaveRequested(GOODBYE))
        elif process.reduces:
            self.injector.kill(process, rng.choice((0.02, 0.1)))
            return
        world.at(world.now + _ROAMS_EVERY_S, None, (self._roam, process))

    def crash_at(self, point: CrashPoint) -> None:
        """Kill a process at an exact point of the run. If the victim's name is empty, kill the process that acts
        there.
        """
        world = self.world

        def strike(acting: Process | None) -> None:
            those = [p for p in world.alive() if p.actor.peer == point.victim] if point.victim else [acting]
            for process in those:
                if process is not None:
                    self.injector.kill(process, point.returns_after)

        world.crash_at_event, world.crash_at_action = point.event, point.action
        world.on_crash_point = strike

    def _start_coordinator(self, record: Record) -> None:
        world = self.world
        core = CoordinatorCore(
            _COORDINATOR,
            self.plan.settings,
            record.term,
            record.last_decision,
            record.archived,
            record.rolled_back_in,
            LADDERS if self.plan.choosing else None,
            Controls.of(record.commands),
            record.soundness,
            tuple({version for _, version in self.world.archive if version <= (record.archived or 0)}),
        )
        world.watch.archived = record.archived or 0
        coordinator = SimCoordinator(world, _COORDINATOR, core, record)
        world.add(coordinator)
        world.coordinator = coordinator
        if world.trace is not None:
            decided = record.last_decision.step if record.last_decision else -1
            world.note(f"*** coordinator starts: term {record.term}, decided {decided}, archive {record.archived}")
        world.network.introduce(coordinator, 0.05)
        coordinator.start()

    def _found_group(self, record: Record) -> None:
        world = self.world
        disks = {actor: MemberDisk() for actor in self._group}
        world.archives = []
        for actor, disk in disks.items():
            if record.archived is not None:  # every organiser's machine has the initial archive
                disk.archive = dict(world.archive)
                digests = [state_digest(*key, state) for key, state in sorted(disk.archive.items())]
                disk.files[0] = tuple(digests)
            world.archives.append(disk.archive)
            self._start_member((actor, disk))
        world.coordinator = world.processes[0]

    def _start_member(self, member: tuple[Actor, MemberDisk]) -> None:
        actor, disk = member
        world = self.world
        ladders = LADDERS if self.plan.choosing else None
        core = GroupMember(actor, self._group, self.plan.settings, disk.stored(), disk.files, ladders)
        process = SimMember(world, actor, core, disk)
        world.add(process)
        if world.trace is not None:
            world.note(f"*** {process.label} starts: ballot {disk.ballot}, {disk.committed} entries committed")
        world.network.introduce(process, 0.05)
        process.start()

    def _open_seat(self, host: SimPeer, number: int) -> None:
        """Start a further peer in the process of `host`, after a short time."""
        name = seat_name(host.actor.peer, number)
        disk = self._disks.setdefault(name, Disk())
        seat = Volunteer(name, disk, host.speed, spare=True, host=host)
        self.world.at(self.world.now + 0.02 + 0.1 * self.world.random.random(), None, (self._start_peer, seat))

    def _start_peer(self, peer: Volunteer) -> None:
        name, disk, speed, spare, lie, means, host = peer
        world = self.world
        if host is not None and not host.alive:
            return
        if host is not None and host.stalled:
            world.at(world.now + 0.05, None, (self._start_peer, peer))
            return
        self._incarnations[name] += 1
        actor = Actor(name, self._incarnations[name])
        core = PeerCore(
            actor,
            self._group[0] if self._group else _COORDINATOR,
            self.plan.settings,
            saved=disk.preferred(),
            visits=world.visits,
            base_capacity=self.plan.base_capacity,
            group=self._group,
        )
        process = SimPeer(world, actor, core, disk, speed)
        process.spare = spare
        process.lie = lie
        process.means = means
        if lie is not None and lie.about == "slow":
            process.slowness *= SLOW
        if lie is not None and lie.about == "flapping":
            world.at(world.now + 0.2 + world.random.random(), None, (self._flap, process))
        if lie is not None and lie.about == "roaming":
            world.at(world.now + world.random.random(), None, (self._roam, process))
        core.offers(means)
        if self.plan.grows:
            process.house = host.house if host is not None and host.house is not None else ProcessGroup(self._open_seat)
            process.house.came(process)
            core.offers(process.house.means(process))
            process.leaving = host is not None and host.leaving
        world.add(process)
        if world.trace is not None:
            world.note(f"*** {process.label} starts")
        process.start()

    def finish(self) -> None:
        """Run to the end and check the result. Raises Violation."""
        world = self.world
        world.run(_PATIENCE_S + 60.0, MAX_EVENTS, self._over)
        if not self._over():
            raise Violation("progress", f"the run did not end within {world.now:.0f} virtual seconds")
        if world.watch.diverged:
            return
        peers = [p for p in world.processes if isinstance(p, SimPeer) and not p.is_liar and (p.alive or p.finished)]
        world.watch.at_the_end(peers)

    def _over(self) -> bool:
        return self.world.finished_at <= self.world.now


def _admissions(plan: Plan) -> list[Command]:
    """The commands of the record that name the pass of each peer."""
    found = []
    for index, person in enumerate(plan.people):
        device = Device(f"{person:032x}", len(plan.people), f"peer{index + 1}")
        found.append(Command(index + 1, ADMIT, device.value, "simulated", "", f"admission {index + 1}"))
    return found


def run_plan(
    plan: Plan, *, tracing: bool = False, crash: CrashPoint | None = None, scribe: Scribe | None = None
) -> Outcome:
    """One run, from the start to the end or to the first broken invariant. `scribe`: receives the coordinators'
    events.
    """
    outcome = Outcome(plan.scenario, plan.seed)
    run = Run(plan, tracing=tracing, scribe=scribe)
    world = run.world
    if crash is not None:
        run.crash_at(crash)
    try:
        run.finish()
    except Violation as violation:
        outcome.invariant, outcome.detail = violation.invariant, violation.detail
    except Exception as error:  # any error of a core is a failure of the seed
        outcome.invariant, outcome.detail = "contract", f"{type(error).__name__}: {error}"
        world.note(traceback.format_exc())
    outcome.events, outcome.actions, outcome.virtual_s = world.events, world.actions, world.now
    outcome.struck = run.injector.struck
    outcome.rollbacks = world.watch.rollbacks
    outcome.caught_up = world.watch.caught_up
    outcome.trace = world.trace or []
    return outcome


def run_seed(scenario: str, seed: int, *, tracing: bool = False, log: Path | None = None) -> Outcome:
    """The run of a seed. It is the same every time and in every process.

    `log`: a folder for the event logs of its coordinators, as SEED/ACTOR/events.jsonl. Raises FileExistsError if the
    folder already contains such logs.
    """
    if log is None:
        return run_plan(plan_of(scenario, seed), tracing=tracing)
    writer = LogWriter(log / str(seed))
    try:
        return run_plan(plan_of(scenario, seed), tracing=tracing, scribe=writer)
    finally:
        writer.close()


def run_seeds(scenario: str, seeds: Iterable[int], jobs: int = 1, log: Path | None = None) -> Iterator[Outcome]:
    """The outcomes of many seeds, in order, computed by `jobs` processes. `log`: as for `run_seed`."""
    if jobs <= 1:
        for seed in seeds:
            yield run_seed(scenario, seed, log=log)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run_one, ((scenario, seed, log) for seed in seeds), chunksize=50)


def _run_one(job: tuple[str, int, Path | None]) -> Outcome:
    scenario, seed, log = job
    return run_seed(scenario, seed, log=log)


def crash_points(plan: Plan) -> list[CrashPoint]:
    """A crash of every actor at every event of `plan`, and of each actor before each of its own actions."""
    calm = run_plan(plan)
    if not calm.ok:
        raise Violation(calm.invariant, f"without any fault: {calm.detail}")
    peers = [f"peer{index + 1}" for index in range(len(plan.speeds))]
    points = []
    for event in range(1, calm.events):
        for victim in peers:
            points += [CrashPoint(victim, event=event), CrashPoint(victim, event=event, returns_after=0.02)]
        points.append(CrashPoint(_COORDINATOR.peer, event=event, returns_after=0.1))
    points += [CrashPoint("", action=action, returns_after=0.05) for action in range(1, calm.actions)]
    return points


def crash_plan() -> Plan:
    """The run of the exhaustive test: two stages of two replicas, one step and the events after it."""
    settings = small_settings(stages=2, microbatches=2, steps=1, replicas=2)
    return Plan("crash-everywhere", 0, settings, 0, (1.0, 1.0, 1.0, 1.0), ())


def run_crash(point: CrashPoint) -> Outcome:
    """Run one case of the exhaustive crash test: a run with one crash."""
    return run_plan(crash_plan(), crash=point)
