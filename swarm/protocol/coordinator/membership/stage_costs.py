"""The cost of the stages and the speed of the members, learned from measurements. Placement and moves use them.

A peer needs `cost ÷ speed` seconds per microbatch. Peers report their seconds per microbatch (Status), and at the start
an estimate of their speed (Join: `capacity`). Once a peer was measured, its measured speed counts. The measured costs
of the stages convert it to other stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import Actor
from swarm.protocol.stage_needs import ComputeKind, Needs, needs_of

_NONE: frozenset[int] = frozenset()
_UNKNOWN: Needs = {}
REMEMBERED = 64
"""Number of peers whose measurements determine the cost of a stage. If there are more, the person with most of them
loses the oldest one.
"""
LEAST_COST_S = 1e-9
"""Lower bound of a stage's cost, whatever speed a peer reports."""
MOST_COST_S = 1e9
"""Upper bound of a stage's cost, whatever capacity a peer reports, so that sums and quotients of costs stay finite."""


SLOWEST = 16.0
"""Upper bound of what a peer reports for the cost of its stage, as a multiple of the longest time that a step took it
per microbatch. It may have become slower since.
"""


@dataclass(frozen=True, slots=True)
class _Measured:
    cost: float
    """Seconds per microbatch × capacity."""
    since: int
    """The number of the peer's first measurement in the stage."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A peer that holds a stage, or is about to hold it."""

    actor: Actor
    speed: float
    """Microbatches/s, forward and backward, in a stage of cost 1."""
    movable: bool = True
    """True if the worker may be moved: it has the version and has been in its stage for long enough."""
    ready: bool = True
    """True if it has the version. A worker without the version takes a place, but no other peer leaves its stage for
    it.
    """
    uplink: float = math.inf
    """Bytes/s that it can send."""
    barred: frozenset[int] = frozenset()
    """Stages that the worker must not be moved to: those of `StageCosts.barred`, those of its owner's other devices,
    and all stages while it is paused.
    """
    on_call: bool = False
    """True if it leaves its seat as soon as the stage has its planned replicas without it."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """The workers and costs of all stages. `crews[s]`: the workers of stage `s`. `costs[s]` > 0: the cost of a
    microbatch in it.
    """

    crews: tuple[tuple[Worker, ...], ...]
    costs: tuple[float, ...]
    replicas: int
    """Planned number of peers in a stage. A stage with fewer peers has priority and gives no peer away."""
    most: int
    """Largest number of peers in a stage."""
    frames: tuple[float, ...] = ()
    """For each stage, the bytes that a peer sends per microbatch, forward and backward. Inner stages send twice as much
    as the first and last stage. Empty: uplinks are ignored.
    """
    empty: frozenset[int] = frozenset()
    """The stages that nobody holds, not even a peer that the crews leave out because it is idle."""

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
    """What is known of costs and speeds. Call `learn` after every decided step. The other methods are queries."""

    def __init__(
        self,
        stages: int,
        stage_needs: Needs = _UNKNOWN,
        stage_frames: tuple[float, ...] = (),
    ) -> None:
        """`stage_needs`: the memory of each stage, by kind of peer; empty: unknown. `stage_frames`: per stage, the
        bytes that a peer sends per microbatch; empty: unknown.
        """
        self._stage_needs = {kind: needs_of(stage_needs, kind) for kind in ComputeKind}
        self._stage_frames = stage_frames
        self._seen: list[dict[str, _Measured]] = [{} for _ in range(stages)]
        """The newest measurement of each peer, by stage."""
        self._measured = 0
        """Number of measurements so far."""
        self._carried: dict[Actor, float] = {}
        """For each actor, the bytes/s of its second fastest link, as the receivers report."""
        self._costs: tuple[float, ...] = ()
        """The costs by stage, as the last call of `learn` computed them. Empty: nothing was learned yet."""
        self._crews: dict[int, tuple[list[Member], tuple[Worker, ...]]] = {}
        """Cache by stage for newcomers: the members, and the same members as workers for the planner."""

    def learn(self, members: Members, banned: Collection[str] = ()) -> None:
        """Record the measurements of a decided step. Each person counts once for a stage, even after it has left.
        `banned`: ids of peers that do not count any more.
        """
        for member in members:
            seconds, stage = member.seconds_per_microbatch, member.stage
            if seconds is None or stage is None or not member.has_worked:
                continue
            longest = member.taking.quantile(1.0)
            cost = (seconds if longest is None else min(seconds, SLOWEST * longest)) * member.capacity
            seen, peer = self._seen[stage], member.actor.peer
            before = seen.pop(peer, None)
            self._measured += 1
            since = self._measured if before is None else before.since
            seen[peer] = _Measured(min(max(cost, LEAST_COST_S), MOST_COST_S), since)
            if len(seen) > REMEMBERED:
                del seen[max(members.people.together(seen), key=len)[0]]
        for seen in self._seen:
            for peer in [peer for peer in seen if peer in banned]:
                del seen[peer]
        self._carried = _second_fastest(members) if self._stage_frames else {}
        self._crews.clear()
        known = [_usual(seen, members.people) if seen else None for seen in self._seen]
        usual = median(cost for cost in known if cost is not None) if any(known) else 1.0
        self._costs = costs = tuple(usual if cost is None else cost for cost in known)
        for member in members:
            seconds, stage = member.seconds_per_microbatch, member.stage
            if seconds is not None and stage is not None and member.has_worked:
                member.measure(costs[stage] / seconds)
                member.measurements += 1

    def costs(self) -> tuple[float, ...]:
        """Cost of each stage: seconds per microbatch for a peer of speed 1. An unmeasured stage gets the median of the
        others.
        """
        return self._costs or (1.0,) * len(self._seen)

    def speed(self, member: Member) -> float:
        """The speed measured in any stage; otherwise the member's own estimate."""
        return member.capacity if member.speed is None else member.speed

    def uplink(self, member: Member) -> float:
        """Upload rate in bytes/s: the rate that the member offered when it joined, or that of its second fastest link
        if this is higher. Infinite if the member has offered no rate.

        A link that was measured together with others seems slower than it is, so faster links correct the offered rate.
        A single fast link proves nothing: both ends may be in the same house, or the receiver may lie. Links to the
        devices of one person count as one link.
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
        """Stages that the member must never get.

        There are two reasons. A stage may need more memory than the other peers in the member's process leave. Or one
        of those peers already holds the stage: if the process died, both replicas would be lost.
        """
        if member.memory is None and member.seating is None:
            return _NONE
        others = members.companions(member)
        elsewhere = {other.stage for other in others}
        return frozenset(s for s in range(len(self._seen)) if s in elsewhere or not self.has_room(member, others, s))

    def has_room(self, member: Member, beside: Iterable[Member], stage: int) -> bool:
        """Return True if `stage` fits into the member's memory next to the stages of the members in `beside`. True if
        sizes are unknown.
        """
        memory, held = member.memory, self.held_by(beside)
        need = self.need(member, stage, alone=not held)
        return memory is None or need is None or need <= memory - sum(held.values())

    def need(self, member: Member, stage: int, *, alone: bool) -> int | None:
        """Bytes of its device's memory that the member needs for `stage`, as it computes. None: unknown.

        `alone`: no other peer of its process holds a stage, so it may recompute its layers to save memory.
        """
        needs = self._stage_needs[member.kind]
        if needs is None:
            return None
        return (needs.least if alone else needs.whole)[stage]

    def held_by(self, members: Iterable[Member]) -> dict[int, int]:
        """For each stage that the members hold, the bytes of memory that it takes, if known."""
        held = {m.stage: self.need(m, m.stage, alone=False) for m in members if m.stage is not None}
        return {stage: need for stage, need in held.items() if need is not None}

    def lineup(
        self,
        members: Members,
        replicas: int,
        most: int,
        ready: Callable[[Member], bool] = lambda member: True,
        movable: Callable[[Member], bool] = lambda member: False,
        settled: Callable[[Member], bool] = lambda member: True,
    ) -> Lineup:
        """The lineup for the planner. `ready` and `movable`: as in Worker. Members that are not `settled` are left
        out.
        """
        crews, taken = [], members.stages_of_people()
        for stage in range(len(self._seen)):
            workers = []
            for m in members.crew(stage):
                if m.lost_at is None and settled(m):
                    barred = self.barred(members, m) | taken.get(members.people.of(m.actor.peer), _NONE)
                    if m.paused:
                        barred = frozenset(range(len(self._seen)))  # it would not work in any stage
                    workers.append(Worker(m.actor, self.speed(m), movable(m), ready(m), self.uplink(m), barred))
            crews.append(tuple(workers))
        return Lineup(tuple(crews), self.costs(), replicas, most, self._stage_frames)

    def newcomers_lineup(self, members: Members, replicas: int, most: int) -> Lineup:
        """The same as `lineup`, without `ready` and `movable`. Crews are cached, because many newcomers may join at
        once.
        """
        crews = []
        for stage in range(len(self._seen)):
            those = members.crew(stage)
            before = self._crews.get(stage)
            if before is None or before[0] is not those:
                workers = tuple(
                    Worker(m.actor, self.speed(m), False, uplink=self.uplink(m), on_call=m.is_on_call)
                    for m in those
                    if m.lost_at is None
                )
                self._crews[stage] = before = those, workers
            crews.append(before[1])
        empty = frozenset(
            s for s, crew in enumerate(crews) if not crew and all(m.lost_at is not None for m in members.of_stage(s))
        )
        return Lineup(tuple(crews), self.costs(), replicas, most, self._stage_frames, empty)


def _usual(seen: Mapping[str, _Measured], people: People) -> float:
    """The cost of a stage: the median over people of what their peers report. Of two people, the one that was measured
    first is believed.
    """
    persons = sorted(people.together(seen), key=lambda peers: min(seen[peer].since for peer in peers))
    costs = [median(seen[peer].cost for peer in peers) for peers in persons]
    return costs[0] if len(costs) == 2 else median(costs)


def _second_fastest(members: Members) -> dict[Actor, float]:
    """The rate of the second fastest link from each actor, as the receivers report. Of the links to one person, only
    the fastest counts (`People`). Actors with fewer than two links are left out.
    """
    carried: dict[Actor, dict[str, float]] = {}
    for member in members:
        receiver = members.people.of(member.actor.peer)
        for sender, rate in member.links.items():
            if members.people.of(sender.peer) != receiver:
                links = carried.setdefault(sender, {})
                links[receiver] = max(rate, links.get(receiver, 0.0))
    return {sender: sorted(links.values())[-2] for sender, links in carried.items() if len(links) > 1}
