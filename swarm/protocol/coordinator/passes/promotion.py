"""Promotion during a step: a listener that has caught up takes over work that a sibling has not begun.

The sibling is asked to give up some microbatches (RELEASE). After its answer, the listener becomes a member of the
stage's next table (`Repair.released`).
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
    """The promotions of one pass."""

    def __init__(self, pass_state: PassState, members: Members, settings: Settings, out: Outbox) -> None:
        self._pass_state = pass_state
        self._members = members
        self._settings = settings
        self._out = out
        self._asked_at: dict[int, float] = {}
        """For each stage, when a sibling was last asked."""

    def lets_in(self, member: Member) -> bool:
        """Return True if a listener may get work in this step: it has caught up and has had no work in this step
        yet.
        """
        pass_state = self._pass_state
        if pass_state.kind is not PassKind.TRAIN or member.actor in pass_state.served or member.is_withheld:
            return False
        if member.version != pass_state.pass_id.version or not member.has_heard(pass_state.pass_id):
            return False
        return any(each.actor == member.actor and each.stage == member.stage for each in pass_state.listeners)

    def has_room(self, stage: int, now: float) -> bool:
        """Return True if a stage may take in another member now.

        Normally no replica of the stage may have finished, because a finished replica has begun to add up gradients and
        would have to begin again. If no replica continues with the remaining work, a member may always come in. Members
        come in one at a time, at most one per heartbeat, because the stage and its neighbours must be told of each.
        """
        pass_state = self._pass_state
        if now - self._asked_at.get(stage, -math.inf) < self._settings.heartbeat_s:
            return False
        if any(actor in pass_state.releasing for actor in pass_state.tables[stage].roster):
            return False
        if self._stands_still(stage):
            return True
        rosters = [pass_state.tables[s].roster for s in pass_state.reduces_with(stage)]
        return all(pass_state.unfinished(a) for roster in rosters for a in roster if pass_state.has_work(a))

    def _stands_still(self, stage: int) -> bool:
        """Return True if a stage has unfinished microbatches, and all its replicas are leaving or paused."""
        roster, withheld = self._pass_state.tables[stage].roster, self._members.withheld()
        return all(a in withheld for a in roster) and any(self._pass_state.unfinished(a) for a in roster)

    def ask_for(self, entrant: Actor, stage: StageIndex, weight: float, now: float) -> None:
        """Ask the sibling with the most remaining work to give some of it to `entrant`, if this is at least one
        microbatch.

        The amount is chosen so that all replicas finish together, and includes only microbatches that are not begun. A
        paused sibling gives all that is unfinished.
        """
        pass_state = self._pass_state
        table = pass_state.tables[stage]
        left = {a: unfinished for a in table.roster if (unfinished := pass_state.unfinished(a))}
        giver = max(left, key=lambda a: len(left[a]) / pass_state.weights[a])
        share = shares([*(pass_state.weights[a] for a in left), weight], sum(map(len, left.values())))[-1]
        spared = pass_state.unbegun(giver)[-share:] if share else []
        if (member := self._members.get(giver)) is not None and member.paused:
            spared = left[giver]
        elif len(spared) == len(left[giver]):
            del spared[:1]
        if not spared:
            return
        self._asked_at[stage] = now
        pass_state.weights[entrant] = weight
        pass_state.entrants[giver] = entrant
        pass_state.releasing[giver] = tuple(spared)
        self._out.send(giver, Release(pass_state.pass_id, table.number, tuple(spared)))

    def who_asked(self, giver: Actor) -> Actor | None:
        """The listener for which `giver` was asked to give up work, if it may still come in. The answer ends this
        request.
        """
        entrant = self._pass_state.entrants.pop(giver, None)
        member = self._members.get(entrant) if entrant is not None else None
        if member is None or member.stage != self._pass_state.stage_of(giver) or not self.lets_in(member):
            return None
        return entrant
