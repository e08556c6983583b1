"""Who is taken for slow or stuck in an open pass, and why. Pure judgements over what the coordinator has heard.

A standstill is judged against measured quantiles and one step budget (`deadlines`). Slowness is judged against
siblings: first their work is taken (RELEASE), only a standstill is fenced.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.work_stealing import SLOWER, Busy, Idle, relief
from swarm.protocol.ids import Actor, Microbatch, PassKind
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import stall_deadline

WORTH_STEPS = 2
"""Usual steps that a forward-only pass may take, if it has no more microbatches than a step."""
WORTH_OF_SAMPLE = 5
"""Times as long as one of its passes a whole sample may take."""
WORTH_BEATS = 10
"""Heartbeats that it may take however short steps are: who does what is heard of with these."""

Strikes = Callable[[str], int]
"""Of a peer: how often it has failed by its own fault (`Probation`)."""


class Stragglers:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def overrun(self, pass_state: PassState, aborts: int, now: float) -> bool:
        """The total cap: progress counts, but not for ever. Doubles with each abort and grows with each fence."""
        cap = self._settings.step_budget_s * (2 + pass_state.fences) * float(2 ** min(aborts, 6))
        return now - pass_state.judged_from > cap

    def worth_s(self, pass_state: PassState) -> float:
        """So long a forward-only pass may hold up the training: two usual steps, or as many as it has the work of.

        A step budget while no step is known.
        """
        settings = self._settings
        if not pass_state.step_s:
            return settings.step_budget_s
        microbatches = len(pass_state.tables[0].assignment)
        steps = WORTH_STEPS * max(1.0, microbatches / settings.microbatches)
        return max(steps * pass_state.step_s, WORTH_BEATS * settings.heartbeat_s)

    def outlasts(self, pass_state: PassState, now: float) -> str:
        """How a forward-only pass, or the sample that it is of, has taken too long. Empty: it has not."""
        allowed = self.worth_s(pass_state)
        for began, limit in ((pass_state.judged_from, allowed), (pass_state.since, WORTH_OF_SAMPLE * allowed)):
            if now - began > limit:
                return f"not complete after {now - began:.1f} s (deadline {limit:.1f} s)"
        return ""

    def dawdlers(self, members: Members, pass_state: PassState, unheard: Collection[Actor], now: float) -> list[Actor]:
        """Who of a forward-only pass has had something to do for a while, and has finished nothing."""
        while_s = self._a_while_s(pass_state)
        found = []
        for actor in pass_state.actors:
            member = members.get(actor)
            if member is not None and actor not in unheard and self._why_stalled(member, pass_state, while_s, now):
                found.append(actor)
        return found

    def _a_while_s(self, pass_state: PassState) -> float:
        """In which a peer finishes at least one microbatch of a forward-only pass: in half of what that may take."""
        return self.worth_s(pass_state) / 2

    def to_release(
        self, members: Members, pass_state: PassState, unheard: Collection[Actor], now: float
    ) -> list[tuple[Actor, tuple[Microbatch, ...]]]:
        """What each slow actor is to give up to siblings that have nothing left to do (`relief`); not who is `unheard`.

        No microbatch twice: among many replicas it would go from one slow peer to the next and never be done.
        """
        orders = []
        for stage, table in enumerate(pass_state.tables):
            if not (idle := self._idle(members, pass_state, stage, now)):
                continue
            left = {a: pass_state.unfinished(a) for a in table.roster}
            movable = {
                a: [m for m in mine if m not in pass_state.released[stage]]
                for a, mine in left.items()
                if mine and a not in pass_state.releasing and a not in unheard
            }
            busy = {
                a: Busy(
                    self._pace(members, pass_state, a, now), len(left[a]), len(may), self._sends_s(members, stage, a)
                )
                for a, may in movable.items()
            }
            promised = sum(len(pass_state.releasing.get(a, ())) for a in table.roster)
            for actor, count in relief(busy, list(idle.values()), promised).items():
                orders.append((actor, tuple(movable[actor][-count:])))
        return orders

    def takers(
        self, members: Members, pass_state: PassState, stage: int, givers: Collection[Actor], count: int, now: float
    ) -> list[Actor]:
        """Who is given so many microbatches that slow peers of a stage have released: siblings that are done and
        faster, if any. Of many only the first that would have sent their part of the sums then."""
        slowest = max(self._pace(members, pass_state, giver, now) for giver in givers)
        idle = self._idle(members, pass_state, stage, now)
        faster = [a for a, each in idle.items() if a not in givers and slowest > SLOWER * each.pace]
        return sorted(faster, key=lambda a: idle[a].soonest)[: max(1, count)]

    def _idle(self, members: Members, pass_state: PassState, stage: int, now: float) -> dict[Actor, Idle]:
        """Who of a stage has nothing left to do, and stays, with its pace; not who has yet to show that it has one."""
        idle = {}
        leaving = members.leaving()
        for actor in pass_state.tables[stage].roster:
            if actor in leaving or pass_state.unfinished(actor):
                continue
            seconds = members.seconds_per_microbatch(actor)
            if seconds is None and (done := pass_state.done_of(actor).bit_count()):
                seconds = (now - pass_state.began_at(actor)) / done
            if seconds is not None:
                idle[actor] = Idle(seconds, self._sends_s(members, stage, actor))
        return idle

    def _sends_s(self, members: Members, stage: int, actor: Actor) -> float:
        """Seconds in which an actor sends its part of the sums, over the line that it says it has."""
        member, sums = members.get(actor), self._settings.stage_sums
        if member is None or member.offered_uplink is None or not sums:
            return 0.0
        return sums[stage] / member.offered_uplink

    def _pace(self, members: Members, pass_state: PassState, actor: Actor, now: float) -> float:
        """Seconds of computing per microbatch, as measured there, or as long as it has had one in hand already.

        Before any is measured only the latter: who waits for others' frames is not slow.
        """
        unheard_s = self._settings.heartbeat_s  # it may have finished something that it has not told yet
        seconds = members.seconds_per_microbatch(actor) or 0.0
        return max(seconds, pass_state.in_hand_s(actor, now) - unheard_s)

    def stalled(
        self, members: Members, pass_state: PassState, strikes: Strikes, unheard: Collection[Actor], now: float
    ) -> list[tuple[Actor, str]]:
        """Actors that have work at hand and finish nothing, though siblings could do it; but for those `unheard`.

        Never for being slow: who is known to take long over a microbatch has several times as long as that, and who is
        not known yet has twice as long with each time it was fenced for this, until it has shown how long it takes.
        """
        found = []
        for actor in (actor for table in pass_state.tables if len(table.roster) > 1 for actor in table.roster):
            if (member := members.get(actor)) is not None and actor not in unheard:
                why = self._why_stalled(
                    member, pass_state, self._patience(member, pass_state, strikes(actor.peer)), now
                )
                if why:
                    found.append((actor, why))
        return found

    def _why_stalled(self, member: Member, pass_state: PassState, allowed: float, now: float) -> str:
        """Why a member counts as stalled that may be at work on one thing for so long; empty: it does not."""
        actor, line_s = member.actor, self._settings.step_budget_s / 8
        if pass_state.kind is not PassKind.TRAIN:
            line_s = min(line_s, self._a_while_s(pass_state))
        answer = max(allowed, line_s)
        if not pass_state.unfinished(actor):
            if pass_state.kind is not PassKind.TRAIN:
                waited = now - pass_state.moved_at.get(actor, pass_state.judged_from)
                late = pass_state.lacks_result_of(actor) and waited > answer
                return f"it says that it is done, and its result has not come for {waited:.1f} s" if late else ""
            reducing = pass_state.reduces_since(actor) if _holds_up_itself(member, pass_state) else None
            if reducing is None or now - reducing <= answer:
                return ""
            return f"it has not computed what its reduce waits for, for {now - reducing:.1f} s"
        if (still := pass_state.in_hand_s(actor, now)) > allowed:
            return f"no progress for {still:.1f} s (deadline {allowed:.1f} s)"
        frames_s = answer if pass_state.has_queued(actor) else line_s
        if (still := now - pass_state.moved_at.get(actor, pass_state.judged_from)) <= frames_s:
            return ""
        some, everything = pass_state.awaited_since(actor, now)
        for since, deadline in ((everything, frames_s), (some, answer)):
            if since is not None and now - since > deadline and still > 2 * deadline:
                came = f"for {now - since:.1f} s (deadline {deadline:.1f} s)"
                return f"nothing came of what its neighbours have for it, {came}"
        return ""

    def _patience(self, member: Member, pass_state: PassState, strikes: int) -> float:
        """Seconds in which an actor with work at hand must finish some."""
        settings = self._settings
        budget, seconds = settings.step_budget_s, member.seconds_per_microbatch
        probed = member.actor in pass_state.probed
        allowed = stall_deadline(seconds, pass_state.services, budget, settings.heartbeat_s, pass_state.fences, probed)
        if seconds is None:
            allowed = max(allowed, min(allowed * 2.0 ** min(strikes, 16), budget / 2))
        return allowed if pass_state.kind is PassKind.TRAIN else min(allowed, self._a_while_s(pass_state))

    def stuck_reduces(self, pass_state: PassState, now: float) -> list[int]:
        """Stages all sealed, of whose reduce nothing was made and nothing has come for too long."""
        allowed = self._settings.step_budget_s / 3 * (1 + pass_state.fences)
        return [
            stage
            for stage in self._reducing(pass_state)
            if (since := pass_state.reduce_still_since(stage)) is not None and now - since > allowed
        ]

    def endless_reduces(self, pass_state: PassState, now: float) -> list[tuple[int, str]]:
        """Stages whose reduce takes too long though it gets on, by what is said of it; and how long that is.

        Over a slow link a reduce takes longer than other deadlines, and nobody is at fault. But what a peer says of its
        own progress is no reason to wait for ever, and one line is no reason for all to wait for it in every step.
        """
        allowed = self._settings.step_budget_s * (1 + pass_state.fences)
        found = []
        for stage in self._reducing(pass_state):
            since = pass_state.sealed_since(stage)
            if since is not None and now - since > allowed:
                found.append((stage, f"{now - since:.1f} s (deadline {allowed:.1f} s)"))
        return found

    def _reducing(self, pass_state: PassState) -> list[int]:
        if pass_state.kind is not PassKind.TRAIN:
            return []
        return [s for s, table in enumerate(pass_state.tables) if len(pass_state.prepared[s]) < len(table.roster)]

    def holds_up(self, members: Members, pass_state: PassState, stage: int) -> Actor | None:
        """For whom most of those wait who take part in a stage's reduce; None if nobody can be spared, or not that one.

        Each has one vote, shared among those it names, so that one that lies, or whose own line is slow, is outvoted by
        two; who is prepared itself waits for all who are not. Where nobody says anything, and of two that wait for each
        other: one that is not prepared, the one that said it has the slower uplink, the last.
        """
        rosters = {s: pass_state.tables[s].roster for s in pass_state.reduces_with(stage)}
        everybody = {actor: s for s, roster in rosters.items() for actor in roster}
        votes: defaultdict[Actor, Fraction] = defaultdict(Fraction)
        for voter in everybody:
            named = _named(members, pass_state, voter, everybody)
            for actor in named:
                votes[actor] += Fraction(1, len(named))

        def guilt(actor: Actor) -> tuple[Fraction, bool, bool, float, int]:
            s, member = everybody[actor], members.get(actor)
            uplink = member.offered_uplink if member is not None else None
            slowness = -math.inf if uplink is None else -uplink
            return votes[actor], s == stage, actor not in pass_state.prepared[s], slowness, rosters[s].index(actor)

        worst = max(everybody, key=guilt)
        if votes[worst] and len(rosters[everybody[worst]]) == 1:
            return None  # nobody else's going would help
        spare = [actor for actor, s in everybody.items() if len(rosters[s]) > 1]
        return max(spare, key=guilt, default=None)

    def kept_waiting_by(self, members: Members, pass_state: PassState, actor: Actor) -> tuple[Actor, ...]:
        """Those for whom an actor waits in its reduce, as it says, if they are no more than half of its siblings.

        Who sends its part to all siblings but one has that one wait for it, and all others for that one.
        """
        stage = pass_state.stage_of(actor)
        if stage is None:
            return ()
        everybody = {each: s for s in pass_state.reduces_with(stage) for each in pass_state.tables[s].roster}
        named = _named(members, pass_state, actor, everybody) - {actor}
        few = len(named) == 1 or 2 * len(named) <= len(everybody) - 1
        return tuple(each for each in everybody if each in named) if few else ()


def _holds_up_itself(member: Member, pass_state: PassState) -> bool:
    """Whether it says that its reduce waits for what it has yet to compute itself."""
    return _said_of_reduce(member, pass_state) == {member.actor}


def _named(members: Members, pass_state: PassState, voter: Actor, everybody: Mapping[Actor, int]) -> set[Actor]:
    """For whom one waits, of `everybody` (by stage) in its reduce; nobody, if it speaks of an older attempt."""
    if voter in pass_state.prepared[everybody[voter]]:
        return {actor for actor, stage in everybody.items() if actor not in pass_state.prepared[stage]}
    member = members.get(voter)
    return set() if member is None else everybody.keys() & _said_of_reduce(member, pass_state)


def _said_of_reduce(member: Member, pass_state: PassState) -> set[Actor]:
    """For whom it says it waits in its reduce, under the tables as they are now."""
    status = member.status
    if status is None or status.pass_id != pass_state.pass_id:
        return set()
    told = tuple(table.number for table in pass_state.told(pass_state.stages_near(member.actor)))
    return set(status.awaited) if status.numbers == told else set()
