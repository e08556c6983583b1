"""Judges which reductions of an open pass take too long, and who holds them up, from what their members report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import reduce_deadline


class LateReductions:
    def __init__(self, pass_state: PassState, members: Members, settings: Settings) -> None:
        self._pass_state = pass_state
        self._members = members
        self._settings = settings

    def stuck(self, now: float) -> list[int]:
        """Fully sealed stages whose reduction has made no progress for too long.

        The member decides for which reductions have taken longest. A new member, whose line nobody knows yet, has a
        third of the step budget.
        """
        found, pass_state = [], self._pass_state
        for stage in self._reducing():
            if (since := pass_state.reductions.still_since(stage)) is None:
                continue
            there = [
                self._members.get(actor)
                for s in pass_state.reduces_with(stage)
                for actor in pass_state.tables[s].roster
            ]
            budget_s, beat_s = self._settings.step_budget_s, self._settings.heartbeat_s
            usual = (reduce_deadline(m.reducing, budget_s, beat_s) for m in there if m is not None)
            allowed = max(usual, default=budget_s / 3)
            if now - since > allowed * (1 + pass_state.fences):
                found.append(stage)
        return found

    def endless(self, now: float) -> list[tuple[int, str]]:
        """Stages whose reduction takes too long although their members report progress, each with the duration of the
        reduction.

        Over a slow link, a reduction exceeds other deadlines without anybody's fault. But reported progress alone must
        not extend a reduction for ever, and one slow link must not delay all peers in every step.
        """
        allowed = self._settings.step_budget_s * (1 + self._pass_state.fences)
        found = []
        for stage in self._reducing():
            since = self._pass_state.reductions.sealed_since(stage)
            if since is not None and now - since > allowed:
                found.append((stage, f"{now - since:.1f} s (deadline {allowed:.1f} s)"))
        return found

    def _reducing(self) -> list[int]:
        if self._pass_state.kind is not PassKind.TRAIN:
            return []
        reports = self._pass_state.preparation.reports
        return [s for s, table in enumerate(self._pass_state.tables) if len(reports[s]) < len(table.roster)]

    def holds_up(self, stage: int) -> Actor | None:
        """The actor for which most members of a stage's reduction wait. None if it is the last replica of its stage, or
        if every stage has one replica.

        Each person has one vote (`People`), divided among the actors that its members name. So two honest voters
        outvote one that lies or has a slow link. A prepared member waits for all that are not prepared. If several
        actors have equally many votes, these count more, in this order: not prepared, slower reported uplink, later in
        the roster.
        """
        pass_state = self._pass_state
        rosters = {s: pass_state.tables[s].roster for s in pass_state.reduces_with(stage)}
        everybody = self._everybody(stage)
        votes: defaultdict[Actor, Fraction] = defaultdict(Fraction)
        shares = self._members.people.votes(actor.peer for actor in everybody)
        for voter in everybody:
            named = self._named(voter, everybody)
            for actor in named:
                votes[actor] += shares[voter.peer] / len(named)

        def guilt(actor: Actor) -> tuple[Fraction, bool, bool, float, int]:
            s, member = everybody[actor], self._members.get(actor)
            uplink = member.offered_uplink if member is not None else None
            slowness = -math.inf if uplink is None else -uplink
            unprepared = actor not in pass_state.preparation.reports[s]
            return votes[actor], s == stage, unprepared, slowness, rosters[s].index(actor)

        worst = max(everybody, key=guilt)
        if votes[worst] and len(rosters[everybody[worst]]) == 1:
            return None  # no other actor could be excluded to help
        spare = [actor for actor, s in everybody.items() if len(rosters[s]) > 1]
        return max(spare, key=guilt, default=None)

    def most_awaited(self, stage: int) -> tuple[Actor, ...]:
        """The actors of a stage's reduction that more than half of the other people wait for. Empty if these are half
        of all people or more.

        If each of several actors is named so often, votes that name several are divided among them. A peer that waits
        for a sum waits for its reducer, which may itself wait for others, so a late actor is named by few.
        """
        everybody = self._everybody(stage)
        person = {actor: self._members.people.of(actor.peer) for actor in everybody}
        shares = self._members.people.votes(actor.peer for actor in everybody)
        names = {voter: self._named(voter, everybody) for voter in everybody}
        people = len(set(person.values()))
        for divided in (False, True):
            votes: defaultdict[Actor, Fraction] = defaultdict(Fraction)
            for voter, named in names.items():
                share = shares[voter.peer] / (max(1, len(named)) if divided else 1)
                for actor in named:
                    if person[actor] != person[voter]:
                        votes[actor] += share
            found = [actor for actor, total in votes.items() if 2 * total > people - 1]
            if found and 2 * len({person[actor] for actor in found}) < people:
                return tuple(found)
        return ()

    def kept_waiting_by(self, actor: Actor) -> tuple[Actor, ...]:
        """The actors for which `actor`'s reduction waits, as it reports. Empty if these are several people and more
        than half of all.

        If a peer sends its part to all siblings but one, that sibling waits for the peer, and all others wait for that
        sibling.
        """
        stage = self._pass_state.stage_of(actor)
        if stage is None:
            return ()
        everybody = self._everybody(stage)
        named = self._named(actor, everybody) - {actor}
        shares = self._members.people.votes(each.peer for each in everybody if each != actor)
        few = self._members.people.count(each.peer for each in named) == 1
        few = few or 2 * sum(shares[each.peer] for each in named) <= sum(shares.values())
        return tuple(each for each in everybody if each in named) if few else ()

    def _everybody(self, stage: int) -> dict[Actor, int]:
        """The actors of a stage's reduction, each with its own stage."""
        pass_state = self._pass_state
        return {actor: s for s in pass_state.reduces_with(stage) for actor in pass_state.tables[s].roster}

    def _named(self, voter: Actor, everybody: Mapping[Actor, int]) -> set[Actor]:
        """The actors of `everybody` that `voter`'s reduction waits for; empty if it reports on an older attempt."""
        pass_state = self._pass_state
        if voter in pass_state.preparation.reports[everybody[voter]]:
            return {actor for actor, stage in everybody.items() if actor not in pass_state.preparation.reports[stage]}
        member = self._members.get(voter)
        return set() if member is None else everybody.keys() & _said_of_reduce(member, pass_state)


def reduces_alone(member: Member, pass_state: PassState) -> bool:
    """Return True if the member reports that its reduction waits only for its own computation."""
    return _said_of_reduce(member, pass_state) == {member.actor}


def _said_of_reduce(member: Member, pass_state: PassState) -> set[Actor]:
    """The actors that the member's reduction waits for under the current tables, as it reports."""
    status = member.status
    if status is None or status.pass_id != pass_state.pass_id:
        return set()
    told = tuple(table.number for table in pass_state.told(pass_state.stages_near(member.actor)))
    return set(status.awaited) if status.numbers == told else set()
