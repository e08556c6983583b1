"""What the stages cost and how fast the members are, learned from what they measure: what placing and moving rest on.

A microbatch takes `cost ÷ speed` seconds at a peer. Peers say how many seconds it takes in the stage they are in
(Status), and at the start how fast they think they are (Join: `capacity`). Whoever was measured is taken at the
measured speed, carried over to other stages by what these cost everybody who has run them.
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
"""Peers by whom a stage's cost is known, the newest."""
LEAST_COST_S = 1e-9
"""Whatever a peer says of its speed, no stage costs nothing."""
MOST_COST_S = 1e9
"""Whatever a peer says its capacity is: sums and quotients of costs stay finite."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A peer that holds a stage, or is about to."""

    actor: Actor
    speed: float
    """Microbatches a second, forward and backward, in a stage of cost 1."""
    movable: bool = True
    """It has the version and has been where it is for long enough."""
    ready: bool = True
    """It has the version. Others are on their way: their place is taken, but nobody leaves because of them."""
    uplink: float = math.inf
    """Bytes a second that it can send."""
    barred: frozenset[int] = frozenset()
    """Stages that it is never given: those that need more memory than it has, and those of others in its process."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """Who is where, and what the stages cost. `crews[s]` serve stage `s`, whose microbatch costs `costs[s]` > 0."""

    crews: tuple[tuple[Worker, ...], ...]
    costs: tuple[float, ...]
    replicas: int
    """As many peers as a stage is planned to have: below that it comes first, and gives nobody away."""
    most: int
    """As many as a stage may have."""
    frames: tuple[float, ...] = ()
    """Bytes that a peer of each stage sends for a microbatch, forward and back: at both ends half as many as between.
    Empty: uplinks do not count."""

    def rate(self, worker: Worker, stage: int) -> float:
        """Microbatches a second of a worker in a stage: what it computes, or what it sends if that is less."""
        computed = worker.speed / self.costs[stage]
        if not self.frames or not self.frames[stage]:
            return computed
        return min(computed, worker.uplink / self.frames[stage])

    def rates(self) -> list[float]:
        """Microbatches a second, by stage."""
        return [sum(self.rate(worker, stage) for worker in crew) for stage, crew in enumerate(self.crews)]


class StageCosts:
    """`learn` after every decided step; the rest asks."""

    def __init__(self, stages: int, stage_memory: tuple[int, ...] = (), stage_frames: tuple[float, ...] = ()) -> None:
        """Of a peer of each stage, if that is known: `stage_memory`, bytes that it needs; `stage_frames`, bytes that it
        sends for a microbatch.
        """
        self._stage_memory = stage_memory
        self._stage_frames = stage_frames
        self._seen: list[dict[str, float]] = [{} for _ in range(stages)]
        """By stage: {peer: seconds per microbatch × capacity}"""
        self._carried: dict[Actor, float] = {}
        """Bytes a second that the second fastest link from an actor carries, as those say who receive from it."""
        self._costs: tuple[float, ...] = ()
        """As known after the last `learn`."""
        self._crews: dict[int, tuple[list[Member], tuple[Worker, ...]]] = {}
        """By stage, for newcomers: its members, and those as the planner wants them."""

    def learn(self, members: Members) -> None:
        """Take down what was measured; a peer counts once for a stage, also when it has left."""
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
        """Of every stage: seconds that a peer of speed 1 takes. One that nobody has run costs as much as others do."""
        if not self._costs:
            known = [median(seen.values()) if seen else None for seen in self._seen]
            usual = median(cost for cost in known if cost is not None) if any(known) else 1.0
            self._costs = tuple(usual if cost is None else cost for cost in known)
        return self._costs

    def speed(self, member: Member) -> float:
        """As measured in any stage, else as it thinks."""
        return member.capacity if member.speed is None else member.speed

    def uplink(self, member: Member) -> float:
        """Bytes a second, as it said when it came, or what two of its links were seen to carry if that is more.

        A link that is probed while others are looks slow. One fast link says nothing: it may end in the same house, or
        its receiver may lie. Infinite if the member has said nothing of it.
        """
        offered = member.offered_uplink
        return math.inf if offered is None else max(offered, self._carried.get(member.actor, 0.0))

    def rate(self, member: Member, stage: int) -> float:
        """Microbatches a second of a member in a stage, as the planner reckons."""
        computed = self.speed(member) / self.costs()[stage]
        if not self._stage_frames or not self._stage_frames[stage]:
            return computed
        return min(computed, self.uplink(member) / self._stage_frames[stage])

    def sent(self, stage: int) -> float:
        """Bytes a second that a peer of speed 1 sends in a stage; 0 if that is not known."""
        return self._stage_frames[stage] / self.costs()[stage] if self._stage_frames else 0.0

    def barred(self, members: Members, member: Member) -> frozenset[int]:
        """Stages that a member is never given.

        They need more memory than the others in its process leave it, or one of these is there: if the process died,
        both would be gone.
        """
        if member.memory is None and member.seating is None:
            return _NONE
        others = members.companions(member)
        elsewhere, memory = {other.stage for other in others}, member.memory
        return frozenset(s for s in range(len(self._seen)) if s in elsewhere or not self.has_room(memory, others, s))

    def has_room(self, memory: int | None, beside: Iterable[Member], stage: int) -> bool:
        """Whether `stage` fits into so many bytes, `beside` what these hold. Where nothing is known it does."""
        needs = self._stage_memory
        if memory is None or not needs:
            return True
        return needs[stage] <= memory - sum(needs[m.stage] for m in beside if m.stage is not None)

    def lineup(
        self,
        members: Members,
        replicas: int,
        most: int,
        ready: Callable[[Member], bool] = lambda member: True,
        movable: Callable[[Member], bool] = lambda member: False,
    ) -> Lineup:
        """As the planner wants it. `ready` and `movable` as in Worker."""
        crews = []
        for stage in range(len(self._seen)):
            crew = [m for m in members.crew(stage) if m.lost_at is None]
            workers = (
                Worker(m.actor, self.speed(m), movable(m), ready(m), self.uplink(m), self.barred(members, m))
                for m in crew
            )
            crews.append(tuple(workers))
        return Lineup(tuple(crews), self.costs(), replicas, most, self._stage_frames)

    def newcomers_lineup(self, members: Members, replicas: int, most: int) -> Lineup:
        """The same, when it does not matter who is ready and may move. Many may come at once: crews are kept."""
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
    """Of the links from each actor, as those say who receive from it; of an actor with one link, nothing."""
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
