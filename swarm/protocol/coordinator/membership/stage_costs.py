"""The cost of the stages and the speed of the members, learned from measurements. Placement and moves use them.

A microbatch takes `cost ÷ speed` seconds at a peer. Peers report the seconds per microbatch in their stage (Status),
and at the start their own estimate of their speed (Join: `capacity`). For a peer that was measured, the measured speed
counts; for other stages it is converted by what these cost all peers that have run them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor

_NONE: frozenset[int] = frozenset()
REMEMBERED = 64
"""Number of peers whose measurements give the cost of a stage, the newest ones."""
LEAST_COST_S = 1e-9
"""Lower bound of a stage's cost, whatever speed a peer reports."""
MOST_COST_S = 1e9
"""Upper bound of a stage's cost, whatever capacity a peer reports: sums and quotients of costs stay finite."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A peer that holds a stage, or is about to."""

    actor: Actor
    speed: float
    """Microbatches/s, forward and backward, in a stage of cost 1."""
    movable: bool = True
    """True if it has the version and has been in its stage for long enough."""
    ready: bool = True
    """True if it has the version. A worker without it is on the way: its place is taken, but no peer leaves for it."""
    uplink: float = math.inf
    """Bytes/s that it can send."""
    barred: frozenset[int] = frozenset()
    """Stages that it is not moved to: those that it never gets (`StageCosts.barred`), and its owner's others; while it
    pauses, all.
    """


@dataclass(frozen=True, slots=True)
class Lineup:
    """The workers and costs of the stages. `crews[s]` serve stage `s`, whose microbatch costs `costs[s]` > 0."""

    crews: tuple[tuple[Worker, ...], ...]
    costs: tuple[float, ...]
    replicas: int
    """Planned number of peers in a stage. Below it, the stage comes first and gives no peer away."""
    most: int
    """Largest number of peers in a stage."""
    frames: tuple[float, ...] = ()
    """Bytes that a peer of each stage sends for a microbatch, forward and back: half as many in the first and last
    stage as in between. Empty: uplinks do not count.
    """

    def rate(self, worker: Worker, stage: int) -> float:
        """Microbatches/s of a worker in a stage: the lower of its computing rate and its sending rate."""
        computed = worker.speed / self.costs[stage]
        if not self.frames or not self.frames[stage]:
            return computed
        return min(computed, worker.uplink / self.frames[stage])

    def rates(self) -> list[float]:
        """Microbatches/s, by stage."""
        return [sum(self.rate(worker, stage) for worker in crew) for stage, crew in enumerate(self.crews)]


class StageCosts:
    """Call `learn` after every decided step; the other methods are queries."""

    def __init__(
        self,
        stages: int,
        stage_memory: tuple[int, ...] = (),
        stage_frames: tuple[float, ...] = (),
        stage_least: tuple[int, ...] = (),
    ) -> None:
        """For a peer of each stage, if known: `stage_memory`, bytes that it needs; `stage_least`, those that do when
        it computes layer by layer again; `stage_frames`, bytes that it sends per microbatch of the stage.
        """
        self._stage_memory = stage_memory
        self._stage_least = stage_least or stage_memory
        self._stage_frames = stage_frames
        self._seen: list[dict[str, float]] = [{} for _ in range(stages)]
        """By stage: {peer: seconds per microbatch × capacity}"""
        self._carried: dict[Actor, float] = {}
        """Bytes/s that the second fastest link from an actor carries, as the receivers report."""
        self._costs: tuple[float, ...] = ()
        """As known after the last `learn`."""
        self._crews: dict[int, tuple[list[Member], tuple[Worker, ...]]] = {}
        """By stage, for newcomers: the members, and the same members as workers of the planner."""

    def learn(self, members: Members) -> None:
        """Record the measurements. A peer counts once for a stage, even after it has left."""
        for member in members:
            seconds, stage = member.seconds_per_microbatch, member.stage
            if seconds is None or stage is None or not member.has_worked:
                continue
            seen = self._seen[stage]
            seen.pop(member.actor.peer, None)
            seen[member.actor.peer] = min(max(seconds * member.capacity, LEAST_COST_S), MOST_COST_S)
            if len(seen) > REMEMBERED:
                del seen[next(iter(seen))]
        self._carried = _second_fastest(members) if self._stage_frames else {}
        self._crews.clear()
        self._costs = ()
        costs = self.costs()
        for member in members:
            seconds, stage = member.seconds_per_microbatch, member.stage
            if seconds is not None and stage is not None and member.has_worked:
                member.measure(costs[stage] / seconds)
                member.measurements += 1

    def costs(self) -> tuple[float, ...]:
        """Cost of each stage: seconds per microbatch for a peer of speed 1. The median, if not measured."""
        if not self._costs:
            known = [median(seen.values()) if seen else None for seen in self._seen]
            usual = median(cost for cost in known if cost is not None) if any(known) else 1.0
            self._costs = tuple(usual if cost is None else cost for cost in known)
        return self._costs

    def speed(self, member: Member) -> float:
        """The speed measured in any stage, else the member's own estimate."""
        return member.capacity if member.speed is None else member.speed

    def uplink(self, member: Member) -> float:
        """Bytes/s: the rate that the member offered when it came, or the rate of its second fastest link if that is
        higher.

        A link that is probed at the same time as others looks slow. A single fast link is no evidence: it may end in
        the same house, or its receiver may lie. Infinite if the member has offered no rate.
        """
        offered = member.offered_uplink
        return math.inf if offered is None else max(offered, self._carried.get(member.actor, 0.0))

    def rate(self, member: Member, stage: int) -> float:
        """Microbatches/s of a member in a stage, as the planner computes it."""
        computed = self.speed(member) / self.costs()[stage]
        if not self._stage_frames or not self._stage_frames[stage]:
            return computed
        return min(computed, self.uplink(member) / self._stage_frames[stage])

    def sent(self, stage: int) -> float:
        """Bytes/s that a peer of speed 1 sends in a stage; 0 if unknown."""
        return self._stage_frames[stage] / self.costs()[stage] if self._stage_frames else 0.0

    def barred(self, members: Members, member: Member) -> frozenset[int]:
        """Stages that a member never gets.

        Either they need more memory than the other peers in its process leave, or one of these peers holds the stage
        already: if the process died, both replicas would be gone.
        """
        if member.memory is None and member.seating is None:
            return _NONE
        others = members.companions(member)
        elsewhere, memory = {other.stage for other in others}, member.memory
        return frozenset(s for s in range(len(self._seen)) if s in elsewhere or not self.has_room(memory, others, s))

    def has_room(self, memory: int | None, beside: Iterable[Member], stage: int) -> bool:
        """Return True if `stage` fits into `memory` bytes `beside` other members' stages. True if sizes are unknown."""
        needs = self._stage_memory
        if memory is None or not needs:
            return True
        others = [needs[m.stage] for m in beside if m.stage is not None]
        if not others:  # it computes its layers again if that is what it takes
            needs = self._stage_least
        return needs[stage] <= memory - sum(others)

    def lineup(
        self,
        members: Members,
        replicas: int,
        most: int,
        ready: Callable[[Member], bool] = lambda member: True,
        movable: Callable[[Member], bool] = lambda member: False,
    ) -> Lineup:
        """The lineup for the planner. `ready` and `movable`: as in Worker."""
        crews, taken = [], members.stages_of_people()
        for stage in range(len(self._seen)):
            workers = []
            for m in members.crew(stage):
                if m.lost_at is None:
                    barred = self.barred(members, m) | taken.get(members.people.of(m.actor.peer), _NONE)
                    if m.paused:
                        barred = frozenset(range(len(self._seen)))  # it would work nowhere
                    workers.append(Worker(m.actor, self.speed(m), movable(m), ready(m), self.uplink(m), barred))
            crews.append(tuple(workers))
        return Lineup(tuple(crews), self.costs(), replicas, most, self._stage_frames)

    def newcomers_lineup(self, members: Members, replicas: int, most: int) -> Lineup:
        """As `lineup`, without `ready` and `movable`. Many newcomers may come at once, so the crews are cached."""
        crews = []
        for stage in range(len(self._seen)):
            those = members.crew(stage)
            before = self._crews.get(stage)
            if before is None or before[0] is not those:
                workers = tuple(
                    Worker(m.actor, self.speed(m), False, uplink=self.uplink(m)) for m in those if m.lost_at is None
                )
                self._crews[stage] = before = those, workers
            crews.append(before[1])
        return Lineup(tuple(crews), self.costs(), replicas, most, self._stage_frames)


def _second_fastest(members: Members) -> dict[Actor, float]:
    """The second fastest rate of the links from each actor, as the receivers report, if it has two or more."""
    fastest: dict[Actor, float] = {}
    second: dict[Actor, float] = {}
    for member in members:
        for sender, rate in member.links.items():
            if sender == member.actor:
                continue
            if rate > fastest.get(sender, 0.0):
                rate, fastest[sender] = fastest.get(sender, 0.0), rate
            if rate > second.get(sender, 0.0):
                second[sender] = rate
    return second
