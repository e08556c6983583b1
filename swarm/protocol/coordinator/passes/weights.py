"""By what microbatches are divided among the replicas of a stage: measured speed and uplink, without their wavering.

A table that changes from step to step costs something where frames build on earlier visits or residuals on who has
added what, so a speed counts as unchanged until it differs clearly from the one last used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from swarm.events import ShareChanged
from swarm.protocol.bucket_owners import lines_of
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.ids import Actor
from swarm.protocol.messages import StageTable
from swarm.protocol.outbox import Outbox

STEADY = 1.15
"""A speed that differs from the one last used by no more than this factor is the same."""
NEWS = 2.0
MORE = 1.25
"""A microbatch that takes so many times as long as when that was last said, or as short, is worth saying, if the share
is so many times as large or as small."""
EVEN = 1.1
"""Replicas whose speeds differ from their median by no more than this factor are equals."""
FASTEST = 16.0
"""Times the median; beyond that (and below a fourth of its inverse) a speed is not believed."""
FIRST, FIRST_STEPS = 4.0, 3
"""In so many steps after the first measurement it is believed only so far: a first pass is slow for its own reasons."""
RECOVERY = 1.03
"""Who is too slow for a single microbatch counts as this much faster with every step, until it is tried again: it may
have been busy with something else. A peer 30 times as slow is tried every 23 steps, which costs less than 4 %."""


class Weights:
    """`of` before a training pass, `dealt` with its tables."""

    def __init__(self, stage_costs: StageCosts, members: Members, out: Outbox) -> None:
        self._stage_costs = stage_costs
        self._members = members
        self._out = out
        self._used: dict[Actor, float] = {}
        self._told: dict[Actor, tuple[float, int]] = {}
        """What a microbatch took each of them, and its share, when that was last told, or first known."""
        self._idle: dict[Actor, int] = {}
        """For how many steps in a row an actor has had nothing to do."""

    def of(self, roster: Sequence[Actor], stage: int) -> dict[Actor, float]:
        """Relative speeds of the replicas of a stage: of computing, or of sending where that is slower."""
        there = {actor: member for actor in roster if (member := self._members.get(actor)) is not None}
        measured = [member.speed for member in there.values() if member.speed is not None]
        sent = self._stage_costs.sent(stage)
        speeds = {}
        for actor in roster:
            member = there.get(actor)
            speed = 1.0 if member is None else self._stage_costs.speed(member)
            if measured and (member is None or member.speed is None):
                speed = min(speed, median(measured))  # what it says of itself is not believed that far
            if member is not None and sent:
                speed = min(speed, self._stage_costs.uplink(member) / sent)
            speeds[actor] = self._steady(actor, speed)
        usual = median(speeds.values())
        return {
            actor: self._relative(speed / usual, there.get(actor)) * self._recovery(actor)
            for actor, speed in speeds.items()
        }

    def lines(self, roster: Sequence[Actor]) -> tuple[int, ...]:
        """As a table names the lines of its members."""
        rates = []
        for actor in roster:
            member = self._members.get(actor)
            up = math.inf if member is None else self._stage_costs.uplink(member)
            down = member.downlink if member is not None else None
            rates.append(up if down is None else min(up, down))
        return lines_of(rates)

    def dealt(self, tables: Iterable[StageTable]) -> None:
        """A training pass opens with these tables."""
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
            return  # where all take longer, as on a busy machine, nobody's share is another one
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
        if member is not None and 0 < member.measurements < FIRST_STEPS:
            return min(FIRST, max(1 / FIRST, relative))
        return min(FASTEST, max(1 / (4 * FASTEST), relative))

    def _recovery(self, actor: Actor) -> float:
        return RECOVERY ** min(self._idle.get(actor, 0), 200)
