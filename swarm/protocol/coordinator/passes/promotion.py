"""Entering in the midst of a step: a listener that has caught up takes over what a sibling has not begun.

The sibling is asked (RELEASE); with its answer the listener comes into the stage's next table (`Mending.released`).
"""

from __future__ import annotations

import math

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.assignment import shares
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassKind, StageIndex
from swarm.protocol.messages import Release
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Promotion:
    """Of one pass."""

    def __init__(self, ledger: PassState, members: Members, settings: Settings, out: Outbox) -> None:
        self._ledger = ledger
        self._members = members
        self._settings = settings
        self._out = out
        self._asked_at: dict[int, float] = {}
        """When something was last asked for, by stage."""

    def lets_in(self, member: Member) -> bool:
        """Whether somebody who had no part so far listens, has caught up with this step, and stays."""
        ledger = self._ledger
        if ledger.kind is not PassKind.TRAIN or member.actor in ledger.served or member.leaving_since is not None:
            return False
        if member.version != ledger.pass_id.version or not member.has_heard(ledger.pass_id):
            return False
        return any(each.actor == member.actor and each.stage == member.stage for each in ledger.listeners)

    def has_room(self, stage: int, now: float) -> bool:
        """Whether a stage may take somebody in.

        Only while nobody there is done: who is, reduces, and would have to begin anew. One at a time, and seldom: the
        stage and its neighbours hear of each.
        """
        ledger = self._ledger
        if now - self._asked_at.get(stage, -math.inf) < self._settings.heartbeat_s:
            return False
        if any(actor in ledger.releasing for actor in ledger.tables[stage].roster):
            return False
        rosters = [ledger.tables[s].roster for s in ledger.reduces_with(stage)]
        return all(ledger.unfinished(a) for roster in rosters for a in roster if ledger.has_work(a))

    def ask_for(self, entrant: Actor, stage: StageIndex, weight: float, now: float) -> None:
        """Ask the sibling that has most left for what `entrant` is to do, if that is at least one microbatch.

        As much as lets all end together, and no more than is not begun.
        """
        ledger = self._ledger
        table = ledger.tables[stage]
        left = {a: unfinished for a in table.roster if (unfinished := ledger.unfinished(a))}
        giver = max(left, key=lambda a: len(left[a]) / ledger.weights[a])
        share = shares([*(ledger.weights[a] for a in left), weight], sum(map(len, left.values())))[-1]
        spared = ledger.unbegun(giver)[-share:] if share else []
        if len(spared) == len(left[giver]):
            del spared[:1]
        if not spared:
            return
        self._asked_at[stage] = now
        ledger.weights[entrant] = weight
        ledger.entrants[giver] = entrant
        ledger.releasing[giver] = tuple(spared)
        self._out.send(giver, Release(ledger.pass_id, table.number, tuple(spared)))

    def who_asked(self, giver: Actor) -> Actor | None:
        """For whom `giver` was asked, if that one may still come in. Only its next answer is for it."""
        entrant = self._ledger.entrants.pop(giver, None)
        member = self._members.get(entrant) if entrant is not None else None
        if member is None or member.stage != self._ledger.stage_of(giver) or not self.lets_in(member):
            return None
        return entrant
