"""The weights by which microbatches are divided among replicas: measured speed and uplink, without small fluctuations.

It costs something to change a table if frames build on earlier visits, or if residuals belong to earlier shares. So a
speed counts as unchanged until it clearly differs from the one used last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median, median_low

from swarm.events import ShareChanged
from swarm.protocol.bucket_owners import lines_of
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.ids import Actor
from swarm.protocol.messages import StageTable
from swarm.protocol.outbox import Outbox

STEADY = 1.15
"""A speed counts as unchanged if it differs from the one used last by at most this factor."""
NEWS = 2.0
MORE = 1.25
"""A change of the seconds per microbatch is reported if both the seconds and the share have changed by this factor."""
EVEN = 1.1
"""Replicas whose speeds differ from their median by at most this factor count as equal."""
FASTEST = 16.0
"""Upper bound of a speed, as a multiple of the median. The lower bound is a fourth of its inverse."""
FIRST, FIRST_STEPS = 4.0, 3
"""Upper bound of a relative speed until a replica was measured in this number of steps in its stage: before, nobody
knows what it can do there. After the first measurement also the inverse of the lower bound, because first passes are
slow.
"""
RECOVERY = 1.03
"""If a peer is too slow to get a single microbatch, its assumed speed grows by this factor every step until it gets
one.

It may have been busy with other work. A peer that is 30 times as slow gets a microbatch every 23 steps, which costs
less than 4 %.
"""


class RosterWeights:
    """The weights of all replicas. Call `of` before a training pass, and `dealt` with the tables of this pass."""

    def __init__(self, stage_costs: StageCosts, members: Members, out: Outbox) -> None:
        self._stage_costs = stage_costs
        self._members = members
        self._out = out
        self._used: dict[Actor, float] = {}
        self._told: dict[Actor, tuple[float, int]] = {}
        """For each actor: its seconds per microbatch and its share, when last reported or first known."""
        self._idle: dict[Actor, int] = {}
        """For each actor: the number of consecutive steps without work."""

    def of(self, roster: Sequence[Actor], stage: int) -> dict[Actor, float]:
        """The relative speeds of a stage's replicas. The speed of computing counts, or that of sending if it is
        lower. A speed counts only as far as the replica's work in the last steps makes it plausible.
        """
        there = {actor: member for actor in roster if (member := self._members.get(actor)) is not None}
        measured = [member.speed for member in there.values() if member.speed is not None]
        sent = self._stage_costs.sent(stage)
        usual = median_low(measured) if measured else math.inf
        speeds = {}
        for actor in roster:
            member = there.get(actor)
            speed = 1.0 if member is None else self._stage_costs.speed(member)
            if measured and (member is None or member.speed is None):
                speed = min(speed, median(measured))  # an estimate of its own counts only up to the median
            if member is not None and (least := member.least_seconds_per_microbatch) is not None:
                speed = min(speed, max(self._stage_costs.costs()[stage] / least, EVEN * usual))
            if member is not None and sent:
                speed = min(speed, self._stage_costs.uplink(member) / sent)
            speeds[actor] = self._steady(actor, speed)
        middle = median(speeds.values())
        return {
            actor: self._relative(speed / middle, there.get(actor)) * self._recovery(actor)
            for actor, speed in speeds.items()
        }

    def lines(self, roster: Sequence[Actor]) -> tuple[int, ...]:
        """The members' link rates, in the form that a table contains."""
        rates = []
        for actor in roster:
            member = self._members.get(actor)
            up = math.inf if member is None else self._stage_costs.uplink(member)
            down = member.downlink if member is not None else None
            rates.append(up if down is None else min(up, down))
        return lines_of(rates)

    def dealt(self, tables: Iterable[StageTable]) -> None:
        """Call when a training pass opens with these tables."""
        everybody = set()
        for stage, table in enumerate(tables):
            shares = Counter(table.assignment)
            for index, actor in enumerate(table.roster):
                everybody.add(actor)
                self._idle[actor] = 0 if shares[index] else self._idle.get(actor, 0) + 1
                self._tell_if_changed(actor, stage, shares[index])
        self._idle = {actor: steps for actor, steps in self._idle.items() if actor in everybody}
        self._used = {actor: speed for actor, speed in self._used.items() if actor in everybody}
        self._told = {actor: told for actor, told in self._told.items() if actor in everybody}

    def _tell_if_changed(self, actor: Actor, stage: int, share: int) -> None:
        member = self._members.get(actor)
        seconds = None if member is None else member.seconds_per_microbatch
        if seconds is None:
            return
        before, usual = self._told.setdefault(actor, (seconds, share))
        if before / NEWS < seconds < before * NEWS or usual / MORE < share < usual * MORE or share == usual:
            return  # if all replicas take longer, as on a busy machine, no share changes
        self._told[actor] = seconds, share
        self._out.emit(ShareChanged(str(actor), stage, before, seconds, share))

    def _steady(self, actor: Actor, speed: float) -> float:
        used = self._used.get(actor)
        if used is None or not used / STEADY <= speed <= used * STEADY:
            self._used[actor] = used = speed
        return used

    def _relative(self, relative: float, member: Member | None) -> float:
        if 1 / EVEN <= relative <= EVEN:
            return 1.0
        if member is not None and member.measurements < FIRST_STEPS:
            relative = min(FIRST, relative if member.measurements == 0 else max(1 / FIRST, relative))
        return min(FASTEST, max(1 / (4 * FASTEST), relative))

    def _recovery(self, actor: Actor) -> float:
        return RECOVERY ** min(self._idle.get(actor, 0), 200)
