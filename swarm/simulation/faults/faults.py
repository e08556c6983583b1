"""Faults: their kinds, the moments at which they occur, their targets, and their effects on a world.

A fault waits for its moment (a phase of the run, at a process with a role, for the n-th time) and then occurs. The
table of fault × phase × role lists the meaningful moments, and why the others are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarm.protocol.io import LeaveRequested
from swarm.protocol.timeouts import OWN_PACE
from swarm.simulation.checks.watch import GOODBYE
from swarm.simulation.faults.stranger import Stranger
from swarm.simulation.kernel.network import Burst
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.runs.world import World
from swarm.simulation.toy.sim_peer import SimPeer

PHASES = (
    "joining",
    "before open",
    "forward",
    "backward",
    "weights",
    "reduce",
    "prepared",
    "deciding",
    "applying",
    "evaluating",
    "checkpointing",
)
ROLES = ("coordinator", "first", "middle", "last", "standby")
KINDS = (
    "crash",
    "restart",
    "last replica",
    "leave",
    "exception",
    "bit flip",
    "not finite",
    "stall",
    "swallow",
    "slow",
    "decision unsent",
    "decision half sent",
    "drop",
    "duplicate",
    "reorder",
    "delay",
    "partition",
    "one-way partition",
    "coordinator cut off",
    "flap",
    "stranger",
)

_WORKING = ("forward", "backward", "weights", "reduce")
_ON_LINKS = ("drop", "duplicate", "reorder", "delay", "partition", "one-way partition", "coordinator cut off", "flap")

GROUP_KINDS = (
    "member restart",
    "member stall",
    "members cut",
    "one-way members cut",
    "member cut off",
    "cut from peers",
    "members late",
)
"""Faults in runs with several coordinators.

* `member cut off`: one member is cut off from all others.
* `cut from peers`: one member is cut off from some peers.
* `members late`: the members' messages to each other are late, repeated and out of order.
"""
GROUP_PHASES = (*PHASES, "voted")
GROUP_ROLES = ("leader", "follower")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    kind: str
    phase: str
    role: str

    def __str__(self) -> str:
        return f"{self.kind} / {self.phase} / {self.role}"


@dataclass(frozen=True, slots=True)
class SimFault:
    """One planned fault.

    * `occurrence`: how often the moment passes before the fault occurs.
    * `delay`: seconds after the moment.
    * `seconds`: duration of the fault (stall, partition, bad weather), or of the absence of the machine (restart).
    """

    cell: Cell
    occurrence: int
    delay: float
    seconds: float


def nonsense(cell: Cell) -> str | None:
    """The reason why this combination does not exist. None if it does."""
    kind, phase, role = cell.kind, cell.phase, cell.role
    if kind == "stranger":
        return None if role == "coordinator" else "a stranger sends to all processes, so its role does not matter"
    if kind in ("decision unsent", "decision half sent"):
        return None if (phase, role) == ("deciding", "coordinator") else "only the coordinator decides"
    if role == "coordinator":
        if kind == "crash":
            return "a run without its coordinator cannot continue; `restart` covers its return"
        if kind in ("last replica", "exception"):
            return "the coordinator holds no stage and computes nothing"
        if kind in ("partition", "one-way partition"):
            return "that is `coordinator cut off`"
    if role == "standby":
        if kind in ("last replica", "exception"):
            return "a standby holds no stage"
        if kind in ("slow", "partition", "one-way partition") and phase != "joining":
            return "a standby computes nothing and talks to no peer until it joins"
    if kind in ("bit flip", "not finite") and role in ("coordinator", "standby"):
        return "it holds no gradient"
    if kind == "bit flip" and phase != "reduce":
        return "a gradient goes wrong while it is reduced"
    if kind == "not finite" and phase not in ("forward", "backward", "reduce"):
        return "only a computed or reduced value can be non-finite"
    if phase == "weights" and (role in ("coordinator", "standby") or kind in _ON_LINKS):
        return "weight gradients are computed locally, and nothing is sent"
    if kind == "swallow" and (role in ("coordinator", "standby") or phase not in _WORKING):
        return "only a process with work can swallow it"
    if kind == "exception" and phase not in ("forward", "backward", "weights", "applying"):
        return "only a computation can raise an exception"
    return None


CELLS = tuple(cell for cell in itertools.starmap(Cell, itertools.product(KINDS, PHASES, ROLES)) if not nonsense(cell))
"""All meaningful combinations of fault × phase × role. Each of them must occur."""


GROUP_CELLS = tuple(itertools.starmap(Cell, itertools.product(GROUP_KINDS, GROUP_PHASES, GROUP_ROLES)))


class Injector:
    """Watches the phases of a run and causes the faults. `respawn` starts the next incarnation of a process that
    died.
    """

    def __init__(self, world: World, faults: tuple[SimFault, ...], respawn: Callable[[Process, float], None]) -> None:
        self.struck: list[Cell] = []
        self.quiet_at = 0.0
        """The time when the last fault ends."""
        self._world = world
        self._respawn = respawn
        self._waiting: dict[str, list[list[object]]] = {}
        self._random = Random(world.random.random())
        for fault in faults:
            phase = "decided" if fault.cell.kind == "decision unsent" else fault.cell.phase
            self._waiting.setdefault(phase, []).append([fault, fault.occurrence])
        world.on_phase = self._phase

    def _phase(self, phase: str, process: Process) -> None:
        waiting = self._waiting.get(phase)
        if not waiting:
            return
        for entry in waiting[:]:
            fault, left = entry
            assert isinstance(fault, SimFault) and isinstance(left, int)
            target = self._target(fault.cell, process)
            if target is None:
                continue
            if left > 0:
                entry[1] = left - 1
                continue
            waiting.remove(entry)
            if fault.cell.kind == "decision half sent":
                self._half_sent(fault)
            elif fault.cell.kind == "decision unsent":
                self._strike((fault, target))
            else:
                self._world.at(self._world.now + fault.delay, None, (self._strike, (fault, target)))

    def _target(self, cell: Cell, process: Process) -> Process | None:
        """The process that the fault hits when `process` reaches the fault's phase."""
        world = self._world
        if cell.role == "coordinator":
            return world.coordinator
        if cell.role in GROUP_ROLES and cell.phase == "voted":
            return process if (process is world.coordinator) == (cell.role == "leader") else None
        if cell.role in GROUP_ROLES:
            leads = cell.role == "leader"
            those = [p for p in self._members() if (p is world.coordinator) == leads]
            return self._random.choice(those) if those else None
        if cell.role == "standby":
            if cell.phase == "joining":
                return process if isinstance(process, SimPeer) and process.spare else None
            idle = [p for p in world.alive() if isinstance(p, SimPeer) and p.stage is None]
            return idle[0] if idle else None
        if process.role == cell.role:
            return process
        if cell.phase == "deciding":
            those = [p for p in world.alive() if p.role == cell.role]
            return self._random.choice(those) if those else None
        return None

    def _half_sent(self, fault: SimFault) -> None:
        """The coordinator dies while it sends a decision."""
        world = self._world

        def armed(phase: str, process: Process) -> None:
            if phase == "decided":
                world.on_phase = self._phase
                world.crash_at_action = world.actions + 2 + fault.occurrence
                world.on_crash_point = lambda _: self._strike((fault, process))
            self._phase(phase, process)

        world.on_phase = armed

    def _strike(self, blow: tuple[SimFault, Process]) -> None:
        fault, target = blow
        world, kind = self._world, fault.cell.kind
        if kind == "decision half sent" and world.coordinator is not None:
            target = world.coordinator
        if not target.alive:
            return
        self.struck.append(fault.cell)
        self.quiet_at = max(self.quiet_at, world.now + fault.seconds)
        if world.trace is not None:
            world.note(f"*** fault: {fault.cell} hits {target.label} for {fault.seconds:.3f} s")
        target.disturbed_at = world.now
        if kind not in ("leave", "slow") or target is world.coordinator or (kind == "leave" and target.leaving):
            world.watch.leaving.disturbed = True  # a process that is asked twice leaves at once
        match kind:
            case "crash":
                self.kill(target, None)
            case "restart" | "decision unsent" | "decision half sent":
                self.kill(target, fault.seconds)
            case "last replica":
                self._kill_stage(target, fault.seconds)
            case "leave":
                for process in target.mates:
                    process.leaving = True
                    process.accept(LeaveRequested(GOODBYE))
                if target is world.coordinator:
                    world.at(world.now + fault.seconds, None, (self._restart_when_gone, target))
                else:
                    self._keep_staffed(fault.seconds)
            case "exception":
                assert isinstance(target, SimPeer)
                target.fails_next = True
            case "bit flip":
                assert isinstance(target, SimPeer)
                target.reduce.flips_next = True
            case "not finite":
                assert isinstance(target, SimPeer)
                spoil = target.spoil_step if fault.cell.phase == "reduce" else target.overflow
                spoil(for_good=fault.occurrence % 2 == 1)
            case "stall":
                for process in target.mates:
                    process.stall()
                    world.at(world.now + fault.seconds, None, (_resume, process))
            case "swallow":
                assert isinstance(target, SimPeer)
                target.swallow(self._random.choice(("work", "frames")), world.now + fault.seconds)
            case "slow":
                factor = self._random.choice((3.0, 8.0, 30.0))
                target.slowness *= factor
                if factor > OWN_PACE:
                    world.watch.leaving.disturbed = True  # it may be fenced for that
                world.at(world.now + fault.seconds, None, (_recover, (target, factor)))
            case "drop" | "duplicate" | "reorder" | "delay":
                self._burst(kind, target, fault.seconds)
            case "partition" | "one-way partition" | "flap":
                self._cut(kind, target, fault.seconds)
            case "coordinator cut off":
                self._cut_coordinator(target, fault.seconds)
            case "member restart":
                self.kill(target, fault.seconds)
            case "member stall":
                target.stall()
                world.at(world.now + fault.seconds, None, (_resume, target))
            case "members late":
                for member in self._members():
                    late = Burst(member.pid, world.now + fault.seconds)
                    late.reorder, late.duplicate = 0.4 * self._random.random(), 0.3
                    world.network.burst(late)
                    member.disturbed_at = world.now + fault.seconds
            case "members cut" | "one-way members cut" | "member cut off" | "cut from peers":
                self._cut_member(kind, target, fault.seconds)
            case "stranger":
                stranger = Stranger(world, fault.seconds)
                world.add(stranger)
                stranger.start()

    def kill(self, target: Process, away: float | None) -> None:
        """Kill a process. It returns after `away` seconds; None: it returns only if a stage would otherwise have no
        peer.
        """
        for process in target.mates:
            process.disturbed_at = self._world.now
        self._world.crash(target)
        if away is not None or not isinstance(target, SimPeer):
            self._respawn(target.mates[0], away or 0.1)
        else:
            self._keep_staffed(0.5)

    def _restart_when_gone(self, target: Process) -> None:
        if not target.alive and not target.replaced:
            self._respawn(target, 0.05)
        elif target.alive:
            self._world.at(self._world.now + 0.1, None, (self._restart_when_gone, target))

    def _kill_stage(self, target: Process, away: float) -> None:
        assert isinstance(target, SimPeer)
        those = [p for p in self._world.alive() if isinstance(p, SimPeer) and p.stage == target.stage]
        for process in [mate for each in those for mate in each.mates]:
            process.disturbed_at = self._world.now
            self._world.crash(process)
        self._keep_staffed(away)

    def keep_staffed(self, after: float) -> None:
        """A peer was expelled or dismissed. Ensure that every stage can be held."""
        self.quiet_at = max(self.quiet_at, self._world.now)
        self._keep_staffed(after)

    def _keep_staffed(self, after: float) -> None:
        """Volunteers return during a run: check later that every stage can be held."""
        self._world.at(self._world.now + after, None, (self._staff, None))

    def _staff(self, _: None) -> None:
        world = self._world
        if any(p.finished for p in world.processes):
            return
        peers = [p for p in world.alive() if isinstance(p, SimPeer)]
        lacking = [s for s in range(world.settings.stages) if not any(p.stage == s for p in peers)]
        idle = sum(p.stage is None and all(map(p.fits, lacking)) for p in peers)
        dead = [p for p in world.processes if isinstance(p, SimPeer) and not p.alive and not p.replaced]
        dead = [p for p in dead if p.mates[0] is p and not world.watch.is_expelled(p.actor)]
        for process in dead[: max(0, len(lacking) - idle)]:
            self._respawn(process, 0.0)
        if world.finished_at > world.now and world.now < self.quiet_at + 10.0:
            self._keep_staffed(0.5)

    def _burst(self, kind: str, target: Process, seconds: float) -> None:
        burst = Burst(target.pid, self._world.now + seconds)
        strength = self._random.random()
        if kind == "drop":
            burst.drop = 0.1 + 0.6 * strength
        elif kind == "duplicate":
            burst.duplicate = 0.2 + 0.6 * strength
        elif kind == "reorder":
            burst.reorder = 0.01 + 0.2 * strength
        else:
            burst.delay = 0.02 + 0.4 * strength
        self._world.network.burst(burst)
        target.disturbed_at = self._world.now + seconds

    def _cut(self, kind: str, target: Process, seconds: float) -> None:
        others = [p for p in self._world.network.connected(target) if p.role != "coordinator"]
        if kind == "flap" or not others:
            others = self._world.network.connected(target) or others
        if not others:
            return
        other = self._random.choice(others)
        world = self._world
        for process in (target, other):
            process.disturbed_at = world.now + seconds
        if kind == "flap":
            world.network.flap(target, other, min(seconds, 0.3))
            return
        noticed = self._random.choice((None, 0.02, 0.2, 1.0))
        a, b = (target, other) if self._random.random() < 0.5 else (other, target)
        heal = world.now + seconds
        world.network.partition(a, b, heal, one_way=kind == "one-way partition", noticed_after=noticed)

    def _members(self) -> list[Process]:
        """The living coordinators of a group."""
        return [p for p in self._world.alive() if p.role == "coordinator"]

    def _cut_member(self, kind: str, target: Process, seconds: float) -> None:
        """Cut one coordinator of a group off from another one, from all others, or from some peers."""
        world, rng = self._world, self._random
        if kind == "cut from peers":
            peers = [p for p in world.network.connected(target) if isinstance(p, SimPeer)]
            those: list[Process] = list(rng.sample(peers, rng.randrange(1, len(peers) + 1))) if peers else []
        else:
            those = [p for p in self._members() if p is not target]
            those = those if kind == "member cut off" or not those else [rng.choice(those)]
        one_way = kind == "one-way members cut" or (kind != "members cut" and rng.random() < 0.3)
        noticed = rng.choice((None, 0.02, 0.2))
        outwards = rng.random() < 0.5
        for other in those:
            other.disturbed_at = world.now + seconds
            a, b = (target, other) if outwards else (other, target)
            world.network.partition(a, b, world.now + seconds, one_way=one_way, noticed_after=noticed)

    def _cut_coordinator(self, target: Process, seconds: float) -> None:
        """Cut a peer off from the coordinator, or the coordinator from all peers."""
        world = self._world
        assert world.coordinator is not None
        those = world.network.connected(target) if target is world.coordinator else [target]
        noticed = self._random.choice((None, 0.02, 0.2))
        for process in those:
            process.disturbed_at = world.now + seconds
            world.network.partition(
                world.coordinator, process, world.now + seconds, one_way=False, noticed_after=noticed
            )


def _resume(process: Process) -> None:
    process.resume()


def _recover(slowed: tuple[Process, float]) -> None:
    process, factor = slowed
    process.slowness /= factor
    process.disturbed_at = process.world.now
