"""Departures: the coordinator dismisses each member that is leaving as soon as nothing depends on it any more.

`WithheldWork.drain` reassigns the member's unstarted microbatches of the open pass. This file decides when the member
may leave: once its part in the pass is decided, and another member holds its stage or no member will in time.
"""

from __future__ import annotations

from swarm.events import PeerLeaving
from swarm.protocol.coordinator.commands import excused
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Dismiss, Excuse
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Departures:
    def __init__(self, settings: Settings, history: History, members: Members, seats: Seats, out: Outbox) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._seats = seats
        self._out = out
        self._leaving: dict[Actor, float] = {}
        """Members that reported that they are leaving and are still present. The value is the time when the member was
        last dismissed; it is negative before that.
        """
        self._excuse_at = 0.0

    def announced(self, member: Member, reason: str, now: float) -> bool:
        """A member reports that it is leaving. Return True at its first report."""
        if member.leaving_since is not None:
            return False
        member.leave(now)
        self._leaving[member.actor] = -1.0
        self._out.emit(PeerLeaving(str(member.actor), member.stage, reason, self._settings.leave_s))
        return True

    def attend(self, open_pass: OpenPass | None, now: float) -> None:
        """Dismiss members on which nothing depends any more. Do not call it while a term is being written, because it
        is not yet known which work must be repeated.
        """
        if self._history.controls.excused and now >= self._excuse_at:
            self._excuse(open_pass, now)
        for actor, told_at in list(self._leaving.items()):
            member = self._members.get(actor)
            if member is None:
                del self._leaving[actor]
            elif told_at >= 0 and now - told_at < self._settings.heartbeat_s:
                pass
            elif open_pass is None or not open_pass.includes(actor):
                why = self._free(member, open_pass, now)
                if why:
                    self._leaving[actor] = now
                    self._out.send(actor, Dismiss(self._history.term, why))

    def excuse_now(self) -> None:
        """The organiser dismisses a peer. Send the request at the next `attend`."""
        self._excuse_at = 0.0

    def _excuse(self, open_pass: OpenPass | None, now: float) -> None:
        """Ask the peers that the organiser dismissed to leave."""
        self._excuse_at = now + self._settings.heartbeat_s
        for actor, reason in excused(self._history.controls).items():
            member = self._members.get(actor)
            if member is None or (member.status is not None and member.status.leaving):
                continue
            if self.announced(member, reason, now) and open_pass is not None:
                open_pass.drain(now)
            self._out.send(actor, Excuse(self._history.term, reason))

    def _free(self, member: Member, open_pass: OpenPass | None, now: float) -> str:
        """The reason why a member without a part in the open pass may leave, as text. Empty: it must stay."""
        history, stage = self._history, member.stage
        if stage is None or member.moving or not member.is_current(history.version, history.decision):
            return "nothing depends on it"
        others = [
            m
            for m in self._members.crew(stage)
            if m.lost_at is None and m.is_current(history.version, history.decision)
        ]
        if open_pass is not None or others:
            return f"others hold stage {stage}"
        if history.restorable:
            return f"stage {stage} at version {history.version} is in the archive or can be computed again"
        successor = self._members.has_successor(stage) or self._seats.may_come(stage, now)
        if successor or history.saves(history.version, self._settings):
            return ""  # another peer loads the stage from this one, or its checkpoint is on its way to the archive
        return (
            f"no peer can take up stage {stage} at version {history.version}: unless a machine that held it "
            f"returns, the run continues from version {history.rollback_target}"
        )
