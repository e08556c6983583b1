"""Selects the steps that are audited, and the peers that an audit leaves out."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection
from statistics import median

from swarm.protocol.coordinator.audit.culprit_search import CulpritSearch
from swarm.protocol.coordinator.audit.inquiry import Inquiry
from swarm.protocol.coordinator.audit.screen import Screen
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Decision
from swarm.protocol.settings import Settings

NEW_PER_PERIOD = 16
"""At most this many audits of newcomers take place for each audit that is drawn at random."""
JUMP = 4.0
"""A step is audited if its gradient norm exceeds the usual one by this factor."""
USUAL_STEPS = 16
WATCHED_STEPS = 8
"""A peer that is the only possible liar is watched: this number of steps must give the same result without it."""


class Selection:
    """`reason` says why a step is audited, `without_half` which replicas compute it again."""

    def __init__(self, settings: Settings, members: Members) -> None:
        self._settings = settings
        self._members = members
        self.screen = Screen()
        self._vouched: set[str] = set()
        """Peers that others have checked: a step gave the same result without them."""
        self._idle: set[str] = set()
        """Peers that were present when newcomers were audited, but had no work that could be checked."""
        self._watched: dict[str, int] = {}
        """For each peer that is the only possible liar of some step: how many more steps must give the same result
        without it.
        """
        self._norms: deque[float] = deque(maxlen=USUAL_STEPS)
        self._last = -NEW_PER_PERIOD * settings.audit_every
        """The last step that was audited."""

    def forget(self) -> None:
        """The run has gone back to an earlier version."""
        self._norms.clear()
        self.screen.forget()

    def reason(self, inquiry: Inquiry, found: CulpritSearch, decision: Decision, checkable: set[str]) -> str:
        """The reason why a step is audited, as text; empty: it is not audited.

        `found`: the attempt that is ready to be decided. `checkable`: peers that worked in it, and whose part a sibling
        can do in the next attempt. Notes in `inquiry` which peers the next attempt should leave out.
        """
        every, norm = self._settings.audit_every, decision.gradient_norm
        drawn = ""
        if inquiry.doubted:
            drawn = "an earlier attempt gave a different result"
        elif decision.skip:
            drawn = "its result is not finite"
        elif not found.adds_up:
            drawn = "the sketches of its peers' sums do not add up to the sketch of the total"
        elif doubts := self.screen.doubts(inquiry.own_sums):
            drawn = doubts[0].reason
            inquiry.suspects = {doubts[0].actor.peer}
        elif watched := self._watched.keys() & found.workers:
            drawn = f"{' and '.join(sorted(watched))} may have reported wrong sums in an earlier step"
            inquiry.suspects = set(watched)
        elif len(self._norms) == USUAL_STEPS and norm > JUMP * median(self._norms):
            drawn = f"its gradient norm {norm:.3g} is more than {JUMP:g} times the usual one"
        # so that the distance between audited steps is limited
        elif inquiry.step % every == self.draw(inquiry.step // every, "which") % every:
            drawn = f"one step in {every} is audited"
        due = (inquiry.step - self._last) * NEW_PER_PERIOD >= every
        new = checkable - self._vouched
        if not due and not new & self._idle:
            new = set()
        inquiry.for_new, inquiry.drawn = bool(new), drawn != ""
        if new:
            there = {member.actor.peer for member in self._members}
            self._idle = ((self._idle | found.idle) & there) - new - self._vouched
        return f"{len(new)} of its peers have never been audited" if new else drawn

    def without_half(self, inquiry: Inquiry, roster: list[Actor]) -> list[Actor]:
        """The roster without one half, drawn at random so that peers cannot predict it. Peers that must be checked are
        left out first.

        The devices of one person are left out together, if enough others remain, because they may lie together.
        """
        due = set[str]()
        if inquiry.doubted:
            due = inquiry.due
        elif inquiry.first is not None:
            due = inquiry.checkable - self._vouched if inquiry.for_new else inquiry.suspects or inquiry.checkable
        salt = f"{inquiry.first is None} {inquiry.failed} {len(inquiry.attempts)} "
        people, out = self._members.people, list[str]()

        def turn(group: list[str]) -> tuple[bool, int]:
            """The sort key of a group of peers. It is the same in every stage."""
            return due.isdisjoint(group), self.draw(inquiry.step, salt + people.of(group[0]))

        for group in sorted(people.together(actor.peer for actor in roster), key=turn):
            if len(out) >= len(roster) // 2:
                break
            few = len(out) + len(group) < len(roster)  # at least one other peer is left
            out += group if few else group[: len(roster) // 2 - len(out)]
        return [actor for actor in roster if actor.peer not in out]

    def draw(self, step: int, what: str = "") -> int:
        """A number that follows from the run's secret, so that peers cannot predict it."""
        drawn = hashlib.blake2b(f"{step} {what}".encode(), key=self._settings.audit_secret, digest_size=8)
        return int.from_bytes(drawn.digest(), "big")

    def has_checked(self, peers: Collection[str]) -> bool:
        """Return True if others have checked all these peers."""
        return self._vouched.issuperset(peers)

    def believe(self, peers: Collection[str]) -> None:
        """These peers computed this step correctly, because others got the same result."""
        self._vouched |= set(peers)
        for peer in self._watched.keys() & peers:
            self._watched[peer] -= 1
            if not self._watched[peer]:
                del self._watched[peer]
        self.screen.believe(peers)

    def watch(self, peers: Collection[str]) -> None:
        """Each of these peers is the only possible liar of some step."""
        self._watched.update(dict.fromkeys(peers, WATCHED_STEPS))

    def distrust(self, peers: Collection[str]) -> None:
        """A search has accused these peers."""
        self._vouched.difference_update(peers)

    def decided(self, inquiry: Inquiry, decision: Decision, audited: bool) -> None:
        """A step is decided. `audited`: it was computed several times."""
        if audited:
            self._last = decision.step
        if not decision.skip:
            self._norms.append(decision.gradient_norm)
            self.screen.decided(inquiry.own_sums)
