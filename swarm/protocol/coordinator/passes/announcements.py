"""What the participants of an open pass are told: its opening, and each new table. Lost messages are repeated."""

from __future__ import annotations

from dataclasses import replace

from swarm.events import StageAmended
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.tables_report import TablesReport
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Amend, Open, StageTable
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Announcements:
    def __init__(
        self, pass_state: PassState, members: Members, settings: Settings, tables_told: TablesReport, out: Outbox
    ) -> None:
        self._pass_state = pass_state
        self._members = members
        self._settings = settings
        self._tables_told = tables_told
        self._out = out
        self._openings: dict[frozenset[int], Open] = {}
        """Cache: the Open message for each set of stages whose tables its receiver must know. It holds while the tables
        stay the same.
        """

    def tell(self, actor: Actor, now: float) -> None:
        """Send an actor the opening with the current tables. A listener that loads a state also gets the donors of the
        state.
        """
        pass_state = self._pass_state
        if (member := self._members.get(actor)) is not None:
            member.told_at = now
        opening = self._opening(pass_state.stages_near(actor))
        if (stage := pass_state.loads(actor)) is not None:
            opening = replace(opening, donors=self._members.donors(pass_state.tables[stage].roster))
        self._out.send(actor, opening)

    def publish(self, stage: int, table: StageTable, reason: str, entrant: Actor | None = None) -> None:
        """Give a stage a new table, and send it to all peers that must know it. `entrant`: the actor that is new in the
        table.
        """
        pass_state = self._pass_state
        moved = pass_state.amend(stage, table)
        self._openings.clear()
        new = None if entrant is None else str(entrant)
        self._out.emit(StageAmended(str(pass_state.pass_id), stage, table.number, list(moved), reason, new))
        self._tables_told.tell(pass_state, stage, reason)
        for near in pass_state.concerned(stage):
            for actor in pass_state.tables[near].roster:
                self._out.send(actor, Amend(pass_state.pass_id, StageIndex(stage), table, reason))

    def tell_if_behind(self, actor: Actor, now: float) -> None:
        """Send the opening again if the actor's status shows that it lacks one of the current tables that it must
        know.
        """
        if (member := self._members.get(actor)) is None:
            return
        numbers, status = self._opening(self._pass_state.stages_near(actor)).numbers, member.status
        if status is None or status.pass_id != self._pass_state.pass_id or status.numbers != numbers:
            self._tell_again(member, now)

    def repeat_to_listeners(self, now: float) -> None:
        """Send the opening again to listeners that do not report that they listen."""
        for listener in self._pass_state.listeners:
            member = self._members.get(listener.actor)
            if member is not None and member.lost_at is None and not self._listens(member):
                self._tell_again(member, now)

    def _listens(self, member: Member) -> bool:
        """Return True if the member reports that it listens and does not take part in the pass (it may have done so
        before).
        """
        status = member.status
        takes_part = status is not None and status.pass_id == self._pass_state.pass_id and not status.fenced
        return member.has_heard(self._pass_state.pass_id) and not takes_part

    def _tell_again(self, member: Member, now: float) -> None:
        if now - member.told_at >= self._settings.heartbeat_s:
            self.tell(member.actor, now)

    def _opening(self, stages: frozenset[int]) -> Open:
        """The Open message for peers that must know the tables of these stages."""
        pass_state = self._pass_state
        opening = self._openings.get(stages)
        if opening is None or opening.listeners is not pass_state.listeners:
            told, listeners = pass_state.told(stages), pass_state.listeners
            opening = replace(pass_state.opening, tables=told, listeners=listeners)
            self._openings[stages] = opening
        return opening
