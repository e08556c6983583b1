"""Chooses the members that are left out of the next step."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings


class Bench:
    """Members on the bench hold their stage and follow the run, but get no work."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        rebalancing: Rebalancing,
        seats: Seats,
        failure_history: FailureHistory,
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._rebalancing = rebalancing
        self._seats = seats
        self._failure_history = failure_history

    def choose(self, now: float) -> None:
        """Between two passes, put members on the bench, and take others off it.

        A stage keeps at least one member that holds the version, except in the last of these cases:

        * Members on probation; if all are, those with more strikes than another one. Probation is ignored after an
          aborted attempt at this step: the guilty member may have waited for the remaining one, and an undecided step
          would never end its probation. While the step is audited, a stage that has too few people without them takes
          some of them back (`_recalled`). Probation is not ignored for a member whose state has differed twice, because
          the step must be done again each time it returns.
        * Members that more failures of this step accuse than a sibling. They return when the sibling is accused as
          often, or when the accuser should be left out itself because it is idle.
        * One half of the members, if the step was not finite (`halves`).
        * All but one of several devices of one person, if other people can take their places (`_doubles`).
        * Doubted members, even if no other member of the stage holds the version (`Doubts`).
        """
        history = self._history
        probation = self._failure_history.probation
        for stage in range(self._settings.stages):
            crew = [m for m in self._members.of_stage(stage) if m.lost_at is None]
            there = [m for m in crew if m.is_current(history.version, history.decision)]
            late = {m.actor for m in crew if probation.is_benched(m.actor.peer, history.version)}
            if self._failure_history.aborts > 0:
                late &= {m.actor for m in crew if m.drifts > 1}
            late -= self._recalled(late, there)
            late -= self._least_struck(late, there)
            on_probation = set(late)
            against = {m.actor: self._against(m, now) for m in crew}
            late.update(a for a, times in against.items() if times > min((against[m.actor] for m in there), default=0))
            late.update(m.actor for m in crew if self._failure_history.halves.leaves_out(m.actor.peer))
            late.update(self._doubles(stage, there))
            doubted = {m.actor for m in crew if m.actor.peer in self._failure_history.doubts.left_out}
            late |= doubted
            idle = {m.actor for m in crew if self._failure_history.idle.leaves_out(m.actor.peer, now)}
            if idle and idle.issuperset(m.actor for m in there) and not self._may_be_replaced(stage, now):
                idle.clear()
            spared = history.version < history.end(self._settings)
            spared = spared and any(m.actor not in late | idle for m in there)
            for member in crew:
                peer = member.actor.peer
                failures = self._failure_history
                beside = failures.idle.has(peer) or failures.kept_back.has(peer) or failures.delays.was_alone(peer)
                member.note_idle(beside)
                member.bench(
                    member.actor in doubted | idle or (spared and member.actor in late), member.actor in on_probation
                )

    def _recalled(self, late: set[Actor], there: list[Member]) -> set[Actor]:
        """Those of the `late` that an audit needs, first those with the fewest strikes. Empty if the step is not
        audited.

        The people who compare their results must be most of those who hold the version: otherwise somebody who gets the
        honest ones on probation could have lies confirmed by friends.
        """
        count, strikes = self._members.people.count, self._failure_history.probation.strikes
        here, found = [member.actor.peer for member in there if member.actor not in late], set[Actor]()
        if not (needed := self._failure_history.audited_by):
            return found
        needed = max(needed, count(member.actor.peer for member in there) // 2 + 1)
        may = (member.actor for member in there if member.actor in late and member.drifts <= 1)
        for actor in sorted(may, key=lambda actor: (strikes(actor.peer), actor)):
            if count(here) < needed:
                here.append(actor.peer)
                found.add(actor)
        return found

    def _least_struck(self, late: set[Actor], there: list[Member]) -> set[Actor]:
        """If all members that hold the version are on probation: those of them with the fewest strikes. Perhaps each
        has accused the others, and only one of them is at fault. If all worked, that one would delay each step.
        """
        if any(member.actor not in late for member in there):
            return set()
        strikes = {member.actor: self._failure_history.probation.strikes(member.actor.peer) for member in there}
        return {actor for actor, count in strikes.items() if count == min(strikes.values())}

    def _against(self, member: Member, now: float) -> int:
        """How many people accuse a member in this step. A peer that should be left out because it is idle is not
        believed. Otherwise no accused peer could take its place.
        """
        history = self._failure_history
        return history.accusations.against(member.actor.peer, lambda accuser: not history.idle.leaves_out(accuser, now))

    def _may_be_replaced(self, stage: int, now: float) -> bool:
        """Return True if some other peer could take up the stage."""
        if self._members.has_successor(stage) or self._seats.may_come(stage, now):
            return True
        return self.left_aside(stage, now) is not None

    def left_aside(self, stage: int, now: float) -> Member | None:
        """A member of another stage that could take up `stage`, and whose own stage can do without it.

        Either it holds the version and is left out of this step, or is idle, while a sibling does its work. It was
        suspected in vain, because the step has failed without it too. Or it lacks the version, and all siblings that
        hold it are idle. They may still do their work, but without a peer for `stage` there is none.
        """
        history, failures = self._history, self._failure_history
        for other in range(self._settings.stages):
            crew = [m for m in self._members.of_stage(other) if m.lost_at is None and not m.is_withheld]
            there = [m for m in crew if m.is_current(history.version, history.decision)]
            if other == stage or not there:
                continue
            if all(m.benched or m.idle for m in there):
                spare = (m for m in crew if m not in there and self._rebalancing.may_hold(m, stage))
                if (member := next(spare, None)) is not None:
                    return member
                continue
            for member in there:
                peer = member.actor.peer
                guilty = failures.idle.leaves_out(peer, now) or peer in failures.doubts.left_out
                if (member.benched or member.idle) and not guilty and self._rebalancing.may_hold(member, stage):
                    return member
        return None

    def _doubles(self, stage: int, there: list[Member]) -> list[Actor]:
        """The members of a stage that are an additional device of some person, and whose places other people can take.

        `there`: the members that hold the version. Each other person with a standby member takes one place. If that
        member holds the version too, so that the stage has more than its largest number of members, an additional
        device is left out for it.
        """
        people, left_out = self._members.people, self._failure_history.doubts.left_out
        if not people.are_several:
            return []
        firsts: set[str] = set()
        doubles: list[Actor] = []
        for member in sorted(there, key=lambda member: (member.placed_at, member.actor)):
            person = people.of(member.actor.peer)
            if person in firsts:
                doubles.append(member.actor)
            firsts.add(person)
        if not doubles:
            return []
        wanted = {
            person
            for m in self._members.unplaced
            if m.standing_by and m.lost_at is None and m.leaving_since is None and m.actor.peer not in left_out
            if (person := people.of(m.actor.peer)) not in firsts and self._rebalancing.may_hold(m, stage)
        }
        places = len(wanted) + max(0, len(there) - self._rebalancing.most)
        return doubles[max(0, len(doubles) - places) :] if places else []
