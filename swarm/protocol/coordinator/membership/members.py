"""The coordinator's records of the swarm's members: one for each live actor, and queries over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.membership.stage_rosters import StageRosters
from swarm.protocol.ids import Actor, Term
from swarm.protocol.messages import MAX_DONORS, Donor

MOST_TERMS_MISSED = 1 << 20
"""A peer that reports an invented term can raise the next term by at most this number."""


class Members:
    """Live actors by identity. A newer incarnation of a peer replaces the older one for good."""

    def __init__(self) -> None:
        self.first_heard_at: float | None = None
        """The time when a member was heard for the first time since this coordinator started."""
        self._members: dict[Actor, Member] = {}
        self.people = People()
        self._newest: dict[str, int] = {}
        self._left: dict[str, tuple[int, int]] = {}
        """For each peer whose record was removed: the incarnation, and the number of its last report."""
        self._rosters = StageRosters()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, actor: Actor) -> Member | None:
        return self._members.get(actor)

    def seconds_per_microbatch(self, actor: Actor) -> float | None:
        """The seconds per microbatch that an actor reports. None if it is gone or has not measured any."""
        member = self._members.get(actor)
        return member.seconds_per_microbatch if member is not None else None

    def standing(self, actor: Actor) -> tuple[float, ...]:
        """The sort key `Member.standing` of an actor. Actors that are gone come last."""
        member = self._members.get(actor)
        return member.standing if member is not None else (math.inf,)

    def donors(self, holders: Iterable[Actor]) -> tuple[Donor, ...]:
        """Choose at most MAX_DONORS of the holders of a stage's state, belonging to as many people as possible.

        Holders that have been in the stage for longest come first. The second device of a person comes after the first
        devices of all people, and so on.
        """
        devices: dict[str, list[Actor]] = {}
        for actor in sorted(holders, key=lambda actor: (self.standing(actor), actor)):
            devices.setdefault(self.people.of(actor.peer), []).append(actor)
        ranked = [
            (nth, person, actor) for person, theirs in enumerate(devices.values()) for nth, actor in enumerate(theirs)
        ]
        return tuple(Donor(actor, person) for _, person, actor in sorted(ranked)[:MAX_DONORS])

    def companions(self, member: Member) -> list[Member]:
        """The other members in a member's process, as that member reports. The report has no effect on the other
        members' records.
        """
        peers = member.seating.peers if member.seating is not None else ()
        those = (Actor(peer, self._newest.get(peer, -1)) for peer in peers if peer != member.actor.peer)
        return [self._members[actor] for actor in those if actor in self._members]

    def stages_of_people(self) -> dict[str, set[int]]:
        """For each person, the stages of the person's members. Empty if devices count instead of people."""
        found: dict[str, set[int]] = {}
        for member in self._members.values() if self.people.are_several else ():
            if member.stage is not None:
                found.setdefault(self.people.of(member.actor.peer), set()).add(member.stage)
        return found

    def ended(self, actor: Actor) -> None:
        """An incarnation has sent its last message. Later ones are repetitions, or attempts to fill the event log."""
        self._newest[actor.peer] = max(self._newest.get(actor.peer, 0), actor.incarnation + 1)

    def is_stale(self, actor: Actor) -> bool:
        """Return True if this incarnation has ended, or a newer one is known."""
        return actor.incarnation < self._newest.get(actor.peer, actor.incarnation)

    def older(self, actor: Actor) -> list[Actor]:
        """Records of earlier incarnations of the same peer that still count as live."""
        newest = self._newest.get(actor.peer)
        if newest is None or newest >= actor.incarnation:
            return []
        before = Actor(actor.peer, newest)
        return [before] if before in self._members else []

    def add(self, actor: Actor, now: float) -> Member:
        """Add a member. Its older incarnations have been removed before."""
        self._newest[actor.peer] = actor.incarnation
        if self.first_heard_at is None:
            self.first_heard_at = now
        member = Member(actor, now, listing=self._rosters)
        incarnation, sequence = self._left.pop(actor.peer, (-1, -1))
        if incarnation == actor.incarnation:  # reports that were on the way when it was lost are old
            member.sequence = sequence
        self._members[actor] = member
        self._rosters.came(member)
        self.people.came(actor.peer)
        return member

    def remove(self, actor: Actor) -> None:
        if (member := self._members.pop(actor, None)) is not None:
            self._rosters.left(member)
            self.people.left(actor.peer)
            member.listing = None
            self._left[actor.peer] = actor.incarnation, member.sequence

    def next_term(self, term: Term) -> Term:
        """The term to take after `term`. It is higher than every term that the peers know, because they ignore older
        terms.

        Peers know a newer term only if this coordinator works on an outdated copy of its record.
        """
        heard = max((member.term for member in self._members.values()), default=0)
        return Term(max(term, min(heard, term + MOST_TERMS_MISSED)) + 1)

    def are_beyond(self, term: Term) -> bool:
        """Return True if the members of most people ignore messages of `term`, because they know a newer term.

        Only members that have reported count.
        """
        spoken = [member for member in self._members.values() if member.status is not None]
        if not any(member.term > term for member in spoken):
            return False  # this is asked in every survey
        votes = self.people.votes(member.actor.peer for member in spoken)
        return 2 * sum(votes[member.actor.peer] for member in spoken if member.term > term) > sum(votes.values())

    @property
    def lost(self) -> list[Member]:
        """Members whose connection broke and is not restored, in the order in which they joined."""
        return self._rosters.lost

    @property
    def changes(self) -> int:
        """A counter that increases with every change of the members, their stages and their speeds."""
        return self._rosters.changes

    @property
    def unplaced(self) -> list[Member]:
        """Members without a stage, in the order in which they joined."""
        return self._rosters.unplaced

    def of_stage(self, stage: int) -> list[Member]:
        """The members of a stage, sorted by actor."""
        return self._rosters.of_stage(stage)

    def crew(self, stage: int) -> list[Member]:
        """The members of a stage that are available (`StageRosters.counted_on`). Do not modify the list."""
        return self._rosters.counted_on(stage)

    def withheld(self) -> list[Actor]:
        """Actors that get no new work because they are leaving or paused."""
        return [member.actor for member in self._rosters.withheld]

    @property
    def paused(self) -> list[Member]:
        """Members that are paused by their own report, sorted by actor."""
        return [member for member in self._rosters.withheld if member.paused]

    def without_absent(self, actors: Iterable[Actor]) -> list[Actor]:
        """Filter out the actors whose places are free, because they have been paused for long or are idle."""
        return [actor for actor in actors if (member := self._members.get(actor)) is None or not member.yields]

    def has_successor(self, stage: int) -> bool:
        """Return True if another peer could take up the stage when all its holders leave: a peer without a stage, or a
        replica that another stage can spare.
        """
        if self.crew(stage) or self._rosters.largest > 1:
            return True
        return any(m.introduced and m.lost_at is None and not m.is_withheld for m in self.unplaced)
