"""Detects members that are silent for too long. The deadlines follow from measured gaps and the step budget
(`timeouts`).

If many members fall silent together, the coordinator itself may be cut off, so it waits longer for them. "Many" means
at least two people and a quarter of all people (`People`), because the devices of one person may lose their connection
together. Once some of these members are heard again, the coordinator is not cut off. Then the others get, from that
moment, their usual deadline and as long as they were all silent: TCP doubles the time between its attempts, so a
connection that a gap of some seconds has interrupted may need as many seconds more.

Deadlines differ, so of members that fell silent together one is the first to exceed its own. It is not lost as long as
many are silent for at least half of theirs: either they speak soon, or they are many.
"""

from __future__ import annotations

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import shortest_silence, silence_deadline


class FailureDetector:
    """Call `judge` once per heartbeat."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._together: dict[Actor, float] = {}
        """The members that fell silent together and are still silent, with the time when each was last heard."""
        self._over_at: float | None = None
        """The time when the silence of this group ended: one of it was heard again, or it was no longer many."""
        self.back: tuple[Actor, ...] = ()
        """The members of that group that were heard again since the last call."""

    @property
    def waited_for(self) -> frozenset[Actor]:
        """Actors that fell silent together with many others. Their silence does not prove that they are gone."""
        return frozenset(self._together)

    def judge(self, members: Members, now: float) -> list[tuple[Member, str]]:
        """Return the members that count as lost, with the reasons."""
        quiet = self._silent_for(members, 1.0, now)
        many = self._are_many(members, quiet)
        soon_many = bool(quiet) and not many and self._are_many(members, self._silent_for(members, 0.5, now))
        self._follow(members)
        if many:
            self._together |= {m.actor: m.heard_at for m, _ in quiet}
        if not self._together:
            self._over_at = None
        elif self._over_at is None and (self.back or not many):
            self._over_at = now
        patience = self._settings.step_budget_s / 3
        lost = []
        for member, usual in quiet:
            silent_s = now - member.heard_at
            allowed = max(usual, patience) if many or soon_many else usual
            if member.actor in self._together and self._over_at is not None:
                allowed = max(allowed, usual + 2 * min(patience, self._over_at - member.heard_at))
            if silent_s > allowed:
                lost.append((member, f"silent for {silent_s:.1f} s (deadline {allowed:.1f} s)"))
        return lost

    def _silent_for(self, members: Members, share: float, now: float) -> list[tuple[Member, float]]:
        """The members that are silent for longer than this share of their deadline, with the deadline."""
        silent = [(m, self._usual(m)) for m in members if now - m.heard_at > share * self._shortest]
        return [(m, usual) for m, usual in silent if now - m.heard_at > share * usual]

    def _are_many(self, members: Members, quiet: list[tuple[Member, float]]) -> bool:
        silent = members.people.count(member.actor.peer for member, _ in quiet)
        return silent > 1 and 4 * silent >= members.people.count(member.actor.peer for member in members)

    def _follow(self, members: Members) -> None:
        """Remove members that are heard again or gone from the group that fell silent together."""
        there = {actor: member for actor in self._together if (member := members.get(actor)) is not None}
        self.back = tuple(actor for actor, member in there.items() if member.heard_at != self._together[actor])
        self._together = {a: m.heard_at for a, m in there.items() if a not in self.back}

    def _usual(self, member: Member) -> float:
        return silence_deadline(member.gaps, self._settings.step_budget_s, self._settings.heartbeat_s)

    @property
    def _shortest(self) -> float:
        return shortest_silence(self._settings.step_budget_s, self._settings.heartbeat_s)
