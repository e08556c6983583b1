"""Lets a peer that has caught up with the open step take part in it, without waiting for the next step."""

from __future__ import annotations

from swarm.protocol.coordinator.audit.audits import Audits
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.scheduler import Scheduler


class StepEntry:
    """Decides who enters; `Promotion` finds the work."""

    def __init__(
        self,
        history: History,
        members: Members,
        failure_history: FailureHistory,
        audits: Audits,
        scheduler: Scheduler,
        rebalancing: Rebalancing,
    ) -> None:
        self._history = history
        self._members = members
        self._failure_history = failure_history
        self._audits = audits
        self._scheduler = scheduler
        self._rebalancing = rebalancing

    def attempt(self, member: Member, open_pass: OpenPass, now: float) -> None:
        """If the member may enter the open step, ask a sibling to give up some of its work."""
        actor, stage = member.actor, member.stage
        if open_pass.outcome is not None or stage is None or not open_pass.promotion.lets_in(member):
            return
        if member.enters_from > self._history.version or self._failure_history.probation.strikes(actor.peer):
            return
        if self._audits.comparing or member.benched:
            return
        if not member.shown and any(m.shown for m in self._members.of_stage(stage) if m.lost_at is None):
            return
        roster = open_pass.pass_state.tables[stage].roster
        full = len(self._members.without_absent(roster)) >= self._rebalancing.most
        if full or not open_pass.promotion.has_room(stage, now):
            return
        weight = self._scheduler.weight(actor, open_pass.pass_state, stage)
        if weight is not None:
            open_pass.promotion.ask_for(actor, stage, weight, now)
