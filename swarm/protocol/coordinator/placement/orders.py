"""The orders that bring members to the current version: where to fetch it, or which decision to apply."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Assign, Decide
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Orders:
    """Call `look` and then `supply` for each stage, again and again between two passes. An order is repeated until the
    member has carried it out.
    """

    def __init__(self, me: Actor, settings: Settings, history: History, members: Members, out: Outbox) -> None:
        self._me = me
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self._handing_on = False
        """True while all holders of a stage are leaving. Meanwhile, all members apply and save the last decision."""

    def pass_closed(self) -> None:
        """Orders that were given before the pass no longer count as given."""
        for member in self._members:
            member.told_at = -1.0

    def look(self) -> None:
        """Find out whether all holders of a stage are leaving."""
        history = self._history
        crews = (
            [m for m in self._members.of_stage(s) if m.is_current(history.version, history.decision)]
            for s in range(self._settings.stages)
        )
        self._handing_on = any(crew and all(m.leaving_since is not None for m in crew) for crew in crews)

    def supply(self, stage: int, needy: list[Member], holders: list[Member], coming: list[Member], now: float) -> None:
        """Tell members that can apply the decision to apply it, and members that lack the version where to fetch it."""
        history = self._history
        gaps = needy or self._handing_on or history.version == history.end(self._settings)
        gaps = gaps or history.controls.paused is not None
        if gaps:
            self.ask_to_apply(coming, now)  # otherwise the next Open carries the decision
        for member in needy:
            if not holders and not (history.restorable and not coming):
                continue
            late = member.given_up and member.assigned not in (None, (stage, history.version))
            if late and now < member.patience_until:
                continue  # a newer order would interrupt its download
            if not self._tell(member, now):
                continue
            initialised = history.version == 0 and not self._settings.imported
            # Include those that have yet to apply the decision. Otherwise, all would fetch from the first one that has
            # applied it.
            those = (*holders, *coming) if holders and not initialised else ()
            donors = self._members.donors(member.actor for member in those)
            archive = None if initialised or donors else self._me
            member.assigned = (stage, history.version)
            if late:
                member.give_up(now, self._settings.step_budget_s)
            order = Assign(history.term, StageIndex(stage), history.version, donors, archive, member.move_number)
            self._out.send(member.actor, order)

    def ask_to_apply(self, members: Iterable[Member], now: float) -> None:
        """Send the last decision to members that can apply it. It may ask them to save the version, too."""
        history = self._history
        for member in members:
            if history.decision is not None and self._tell(member, now):
                self._out.send(member.actor, Decide(history.decision, history.term, save=history.is_asked))

    def ask_to_save(self, now: float) -> None:
        """Send the last decision again to the members that have its version but have not saved it."""
        version = self._history.version
        holders = (m for m in self._members if m.version == version)
        self.ask_to_apply((m for m in holders if m.status and m.status.checkpoint_version < version), now)

    def _tell(self, member: Member, now: float) -> bool:
        """Return True if the member must be given an order, or be given it again."""
        if member.told_at >= 0 and now - member.told_at < 2 * self._settings.heartbeat_s:
            return False
        member.told_at = now
        return True
