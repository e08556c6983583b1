"""The presence of members: when each was heard, whether its connection holds, and whether it is paused."""

from __future__ import annotations

from swarm.events import PeerPaused, PeerResumed, PeerSeen
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Presence:
    """Keeps the times in the records of the members. `FailureDetector` judges their silence."""

    def __init__(self, settings: Settings, members: Members, out: Outbox) -> None:
        self._settings = settings
        self._members = members
        self._out = out

    def heard(self, sender: Actor, now: float) -> Member:
        """A message has arrived. Return the sender's record. It is new if the sender was unknown."""
        member = self._members.get(sender)
        if member is None:
            member = self._members.add(sender, now)
            self._out.emit(PeerSeen(str(sender)))
        else:
            member.gaps.add(now - member.heard_at)
        member.heard_at = now
        return member

    def transferring(self, actor: Actor, now: float) -> None:
        """Bytes of an actor arrive, so it is alive."""
        if (member := self._members.get(actor)) is not None:
            member.heard_at = now

    def recalled(self, actor: Actor, now: float) -> None:
        """An actor is known only from a report during an earlier leader's term."""
        if (member := self._members.get(actor)) is not None:
            member.recalled_at = now

    def link_lost(self, actor: Actor, now: float) -> None:
        if (member := self._members.get(actor)) is not None and member.lost_at is None:
            member.disconnect(now)

    def link_up(self, actor: Actor) -> None:
        if (member := self._members.get(actor)) is not None:
            member.reconnect()
            member.told_at = -1.0

    def grace_ends(self) -> list[tuple[Member, float]]:
        """The members whose connection is broken, and the times at which they count as lost."""
        grace_s = self._settings.reconnect_grace_s
        return [(member, member.lost_at + grace_s) for member in self._members.lost if member.lost_at is not None]

    def pause(self, member: Member, reason: str, now: float) -> bool:
        """Record whether a member is paused, at most once per heartbeat. Return True if its pause has just begun."""
        before = member.paused
        if reason == before or now - member.paused_at < self._settings.heartbeat_s:
            return False
        if before and reason:
            return False  # the first reason is kept until the member resumes
        member.pause(reason, now)
        told = PeerPaused if reason else PeerResumed
        self._out.emit(told(str(member.actor), member.stage, reason or before))
        return bool(reason)

    def give_up_paused(self, now: float) -> None:
        """Free the places of members that have been paused for long."""
        for member in self._members.paused:
            if not member.absent and now - member.paused_at >= self._settings.recruit_after_s:
                member.miss()

    def excuse(self, late: float, now: float) -> None:
        """The coordinator itself was delayed. It has not yet read the messages that arrived meanwhile, so that time
        does not count against any member.
        """
        for member in self._members:
            member.heard_at = min(now, member.heard_at + late)
