"""Judges which actors are slow or stuck in an open pass, and why. Pure functions of what the coordinator has received.

An actor stands still if it exceeds a deadline, which follows from measured durations and the step budget (`timeouts`).
An actor is slow in comparison with its siblings. A slow actor only loses work (RELEASE); only an actor that stands
still is fenced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.late_reductions import reduces_alone
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.work_stealing import SLOWER, Busy, Idle, relief
from swarm.protocol.ids import Actor, Microbatch, PassKind
from swarm.protocol.settings import STEP_BUDGETS, Settings
from swarm.protocol.slots import least_at_once
from swarm.protocol.timeouts import reduce_deadline, stall_deadline

WORTH_STEPS = 2
"""Longest duration of a forward-only pass in usual steps, if the pass has at most as many microbatches as a step."""
WORTH_OF_SAMPLE = 5
"""Longest duration of a whole sample, as a multiple of the limit of one of its passes."""
WORTH_BEATS = 10
"""Lower bound of the limit of a forward-only pass, in heartbeats: progress is reported only once per heartbeat."""
SUSPECTED = 2
"""Number of attempts that only wait after which the time for waiting doubles. In between, others are suspected. It must
grow: perhaps nobody is at fault, and frames take longer on a slow line than a step budget.
"""

Strikes = Callable[[str], int]
"""For a peer id, how often the peer has failed by its own fault (`Probation`)."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """An actor that finishes nothing."""

    actor: Actor
    reason: str
    lacks: Microbatch | None = None
    """A microbatch of which it must lack an input, if it does not simply do nothing."""
    senders: tuple[Actor, ...] = ()
    """The actors that report to have this input. If `lacks` is None, there are none."""


class Stragglers:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def overrun(self, pass_state: PassState, aborts: int, now: float) -> bool:
        """Return True if the pass has exceeded its total limit, even if it makes progress. The limit doubles with each
        aborted attempt at the step, and grows with each fence.
        """
        return now - pass_state.judged_from > self._limit_s(pass_state, aborts)

    def _limit_s(self, pass_state: PassState, aborts: int) -> float:
        return self._settings.step_budget_s * (STEP_BUDGETS + pass_state.fences) * float(2 ** min(aborts, 6))

    def worth_s(self, pass_state: PassState) -> float:
        """The longest time in seconds for which a forward-only pass may delay training.

        This is two usual steps, and proportionally more if the pass has more microbatches than a step. If the usual
        duration of a step is unknown, it is a step budget.
        """
        settings = self._settings
        if not pass_state.opening.step_s:
            return settings.step_budget_s
        microbatches = len(pass_state.tables[0].assignment)
        steps = WORTH_STEPS * max(1.0, microbatches / settings.microbatches)
        return max(steps * pass_state.opening.step_s, WORTH_BEATS * settings.heartbeat_s)

    def outlasts(self, pass_state: PassState, now: float) -> str:
        """The reason why a forward-only pass, or its sample, has taken too long. Empty if it has not."""
        allowed = self.worth_s(pass_state)
        for began, limit in ((pass_state.judged_from, allowed), (pass_state.since, WORTH_OF_SAMPLE * allowed)):
            if now - began > limit:
                return f"not complete after {now - began:.1f} s (deadline {limit:.1f} s)"
        return ""

    def dawdlers(self, members: Members, pass_state: PassState, unheard: Collection[Actor], now: float) -> list[Actor]:
        """The actors of a forward-only pass that have had work for a while and have finished none of it, and those that
        may have kept them waiting.
        """
        while_s = self._a_while_s(pass_state)
        found: dict[Actor, None] = {}
        for actor in pass_state.actors:
            member = members.get(actor)
            if member is None or actor in unheard:
                continue
            if (stalled := self._stalled(member, pass_state, while_s, now)) is not None:
                found |= dict.fromkeys((actor, *stalled.senders))
        return list(found)

    def _a_while_s(self, pass_state: PassState) -> float:
        """Seconds in which a peer must finish at least one microbatch of a forward-only pass: half of the pass's
        limit.
        """
        return self.worth_s(pass_state) / 2

    def to_release(
        self, members: Members, pass_state: PassState, unheard: Collection[Actor], now: float
    ) -> list[tuple[Actor, tuple[Microbatch, ...]]]:
        """The microbatches that each slow actor should give up to idle siblings (`work_stealing`). `unheard` actors are
        left out.

        No microbatch moves twice. Otherwise, among many replicas, it might move from one slow peer to the next and
        never be done.
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
        """The siblings that get `count` microbatches which slow peers of a stage have released: those that are done and
        faster.

        If there are more such siblings than microbatches, the ones that would be the first to send their part of the
        sums. The result may be empty.
        """
        slowest = max(self._pace(members, pass_state, giver, now) for giver in givers)
        idle = self._idle(members, pass_state, stage, now)
        faster = [a for a, each in idle.items() if a not in givers and slowest > SLOWER * each.pace]
        return sorted(faster, key=lambda a: idle[a].soonest)[: max(1, count)]

    def _idle(self, members: Members, pass_state: PassState, stage: int, now: float) -> dict[Actor, Idle]:
        """The idle actors of a stage that stay, with their speed. Actors whose speed is unknown are left out."""
        idle = {}
        withheld = members.withheld()
        for actor in pass_state.tables[stage].roster:
            if actor in withheld or pass_state.unfinished(actor):
                continue
            seconds = members.seconds_per_microbatch(actor)
            if seconds is None and (done := pass_state.done_of(actor).bit_count()):
                seconds = (now - pass_state.began_at(actor)) / done
            if seconds is not None:
                idle[actor] = Idle(seconds, self._sends_s(members, stage, actor))
        return idle

    def _sends_s(self, members: Members, stage: int, actor: Actor) -> float:
        """Seconds that an actor needs to send its part of the sums over its reported uplink."""
        member, sums = members.get(actor), self._settings.stage_sums
        if member is None or member.offered_uplink is None or not sums:
            return 0.0
        return sums[stage] / member.offered_uplink

    def _pace(self, members: Members, pass_state: PassState, actor: Actor, now: float) -> float:
        """Seconds of computing per microbatch: the measured value, or the time since the actor last finished a
        microbatch if that is longer.

        Before the first measurement, only that time counts. An actor that waits for others' frames is not slow.
        """
        unheard_s = self._settings.heartbeat_s  # it may have finished something and not reported it yet
        seconds = members.seconds_per_microbatch(actor) or 0.0
        return max(seconds, pass_state.in_hand_s(actor, now) - unheard_s)

    def stalled(
        self, members: Members, pass_state: PassState, strikes: Strikes, unheard: Collection[Actor], now: float
    ) -> list[Stalled]:
        """Actors that have work available and finish nothing, although siblings could do it. `unheard` actors are left
        out.

        An actor is never stalled only because it is slow: the deadline is several times its known time per microbatch.
        For an actor with unknown speed, the deadline doubles with each strike until it has shown its speed.

        An actor without siblings is named only if it waits for a neighbour that has some.
        """
        found = []
        for actor in (actor for table in pass_state.tables for actor in table.roster):
            if (member := members.get(actor)) is None or actor in unheard:
                continue
            if pass_state.is_alone(actor):
                stalled = self._kept_waiting(member, pass_state, now)
            else:
                allowed = self._patience(member, pass_state, strikes(actor.peer))
                stalled = self._stalled(member, pass_state, allowed, now)
            if stalled is not None:
                found.append(stalled)
        return found

    def _stalled(self, member: Member, pass_state: PassState, allowed: float, now: float) -> Stalled | None:
        """The member, if it finishes nothing. `allowed`: as in `_why_stalled`."""
        actor = member.actor
        if not (why := self._why_stalled(member, pass_state, allowed, now)):
            return None
        lacks = None if pass_state.has_queued(actor) else pass_state.lacks(actor)
        return Stalled(actor, why) if lacks is None else Stalled(actor, why, *lacks)

    def _kept_waiting(self, member: Member, pass_state: PassState, now: float) -> Stalled | None:
        """A member without siblings, if it lacks data of a neighbour that has siblings."""
        if pass_state.kind is not PassKind.TRAIN:
            return None
        # its line may be slow, and nobody can do its work, so it has much time
        allowed = self._settings.step_budget_s / 2
        why = self._why_waiting(member, pass_state, allowed, allowed, now)
        if not why or pass_state.has_queued(member.actor) or (lacks := pass_state.lacks(member.actor)) is None:
            return None
        senders = tuple(actor for actor in lacks[1] if not pass_state.is_alone(actor))
        return Stalled(member.actor, why, lacks[0], senders) if senders else None

    def idle(
        self,
        members: Members,
        pass_state: PassState,
        aborts: int,
        against: Callable[[str], int],
        unheard: Collection[Actor],
        now: float,
    ) -> list[tuple[Actor, str]]:
        """Actors without siblings that do nothing, with the reasons. The `unheard` are left out.

        If the pass has exceeded its total limit, an actor counts if it has done nothing for half of the limit although
        it reports work, has not reported that it knows the pass, or has only its own sums left to report. If there is
        none, it is an actor whose stage others hold, if it has finished nothing for a step budget (`_replaceable`), or
        the actor for whose work the pass waits (`_awaited`). `against`: how many people accuse a peer.
        """
        lone = [table.roster[0] for table in pass_state.tables if len(table.roster) == 1]
        alone = [m for actor in lone if actor not in unheard and (m := members.get(actor)) is not None]
        found = []
        if self.overrun(pass_state, aborts, now):
            allowed = self._limit_s(pass_state, aborts) / 2
            reasons = ((member.actor, self._why_alone(member, pass_state, allowed, now)) for member in alone)
            found = [(actor, why) for actor, why in reasons if why]
        found = found or self._replaceable(members, alone, pass_state, aborts, now)
        return found or self._awaited(alone, pass_state, aborts, against, unheard, now)

    def _replaceable(
        self, members: Members, alone: Sequence[Member], pass_state: PassState, aborts: int, now: float
    ) -> list[tuple[Actor, str]]:
        """Actors without siblings that do nothing, although members that take no part in the pass hold their stage: for
        example because the step is audited. A repeated step can be done without these actors.

        The deadline doubles with each second attempt, because perhaps all of them are slow.
        """
        allowed = self._settings.step_budget_s * float(2 ** min(aborts // SUSPECTED, 6))
        found = []
        for member in alone:
            stage = pass_state.stage_of(member.actor)
            assert stage is not None
            others = (
                m for m in members.of_stage(stage) if m.lost_at is None and m.version == pass_state.pass_id.version
            )
            if any(not (m.idle or m.is_withheld or m.actor in pass_state.served) for m in others):
                why = self._why_idle(member, pass_state, allowed, math.inf, now)
                found += [(member.actor, why)] if why else []
        return found

    def _awaited(
        self,
        alone: Sequence[Member],
        pass_state: PassState,
        aborts: int,
        against: Callable[[str], int],
        unheard: Collection[Actor],
        now: float,
    ) -> list[tuple[Actor, str]]:
        """An actor without siblings for whose work the pass waits although nobody computes, with the reason.

        Either an actor that waits for a neighbour's data is the cause, or this neighbour. The one that most people
        accuse is chosen (`against`). If several are accused as often, one of them is chosen each time, from the second
        attempt on. Empty if the limit for waiting has not been exceeded. It grows more slowly than that of `overrun`,
        because nobody computes.
        """
        limit_s = self._limit_s(pass_state, aborts // SUSPECTED)
        if now - pass_state.judged_from <= limit_s:
            return []
        waiting: dict[Actor, str] = {}
        for member in alone:
            actor = member.actor
            if pass_state.has_queued(actor):
                continue
            if not (why := self._why_waiting(member, pass_state, limit_s / 2, limit_s / 2, now)):
                continue
            waiting.setdefault(actor, why)
            lacks = pass_state.lacks(actor)
            for sender in () if lacks is None else lacks[1]:
                if pass_state.is_alone(sender) and sender not in unheard:
                    waiting.setdefault(sender, f"{actor} has not received what it reports to have computed")
        most = max((against(actor.peer) for actor in waiting), default=0)
        worst = [(actor, why) for actor, why in waiting.items() if against(actor.peer) == most]
        if not worst or (aborts == 0 and (len(worst) > 1 or most < 2)):
            return []
        return [worst[aborts % len(worst)]]

    def _why_alone(self, member: Member, pass_state: PassState, allowed: float, now: float) -> str:
        """The reason why a member without siblings counts as idle. Empty: it does not."""
        actor = member.actor
        if why := self._why_idle(member, pass_state, allowed, allowed, now):
            return why
        if not pass_state.has_begun(actor):
            return self._why_unbegun(actor, pass_state, allowed, now)
        stage = pass_state.stage_of(actor)
        assert stage is not None
        since, reports = pass_state.sealed_since(stage), pass_state.preparation.reports[stage]
        if pass_state.reduces_with(stage) != [stage] or since is None or now - since <= allowed or actor in reports:
            return ""
        return f"it reports that all its work is done, but has not reported its sums for {now - since:.1f} s"

    @staticmethod
    def _why_unbegun(actor: Actor, pass_state: PassState, allowed: float, now: float) -> str:
        waited = now - max(pass_state.judged_from, pass_state.began_at(actor))
        if pass_state.has_begun(actor) or waited <= allowed:
            return ""
        return f"it has not begun the pass for {waited:.1f} s (deadline {allowed:.1f} s)"

    def _why_stalled(self, member: Member, pass_state: PassState, allowed: float, now: float) -> str:
        """The reason why a member counts as stalled if it may take `allowed` seconds for one item of work. Empty: it
        does not count as stalled.
        """
        line_s = self._settings.step_budget_s / 8
        if pass_state.kind is not PassKind.TRAIN:
            line_s = min(line_s, self._a_while_s(pass_state))
        answer = max(allowed, line_s)
        own = answer
        if pass_state.kind is PassKind.TRAIN:
            settings = self._settings
            usual = reduce_deadline(member.reducing, settings.step_budget_s, settings.heartbeat_s)
            own = allowed if member.actor in pass_state.probed else min(answer, max(allowed, usual))
        why = self._why_idle(member, pass_state, allowed, own, now)
        why = why or self._why_waiting(member, pass_state, line_s, answer, now)
        return why or self._why_unbegun(member.actor, pass_state, max(answer, self._settings.step_budget_s / 2), now)

    def _why_idle(self, member: Member, pass_state: PassState, allowed: float, answer: float, now: float) -> str:
        """The reason why a member with available work counts as stalled. `answer`: seconds for the work at the end of
        a pass.
        """
        actor = member.actor
        if not pass_state.unfinished(actor):
            if pass_state.kind is not PassKind.TRAIN:
                waited = now - pass_state.moved_at.get(actor, pass_state.judged_from)
                late = pass_state.lacks_result_of(actor) and waited > answer
                return f"it reports that it is done, but its result has not come for {waited:.1f} s" if late else ""
            reducing = pass_state.reduces_since(actor) if reduces_alone(member, pass_state) else None
            if reducing is None or now - reducing <= answer:
                return ""
            return f"it has not computed its part of the reduction for {now - reducing:.1f} s"
        if (still := pass_state.in_hand_s(actor, now)) > allowed:
            return f"no progress for {still:.1f} s (deadline {allowed:.1f} s)"
        return ""

    def _why_waiting(self, member: Member, pass_state: PassState, line_s: float, answer: float, now: float) -> str:
        """The reason why a member without available work counts as stalled. `line_s`: seconds in which data of its
        neighbours must come.
        """
        actor = member.actor
        if not pass_state.unfinished(actor):
            return ""
        frames_s = answer if pass_state.has_queued(actor) else line_s
        if (still := now - pass_state.moved_at.get(actor, pass_state.judged_from)) <= frames_s:
            return ""
        some, everything = pass_state.awaited_since(actor, least_at_once(self._settings), now)
        for since, deadline in ((everything, frames_s), (some, answer)):
            if since is not None and now - since > deadline and still > 2 * deadline:
                came = f"for {now - since:.1f} s (deadline {deadline:.1f} s)"
                return f"it has received no activation or gradient from its neighbours {came}"
        return ""

    def _patience(self, member: Member, pass_state: PassState, strikes: int) -> float:
        """Seconds in which an actor with available work must finish some of it.

        Before it has shown its speed, its own word counts for half a step budget at most, and not again after a strike.
        """
        settings = self._settings
        budget, seconds = settings.step_budget_s, member.shown_seconds_per_microbatch
        probed = member.actor in pass_state.probed

        def deadline_s(own_s: float | None) -> float:
            beat_s, fences = settings.heartbeat_s, pass_state.fences
            return stall_deadline(own_s, pass_state.services, budget, beat_s, fences, probed)

        allowed, said = deadline_s(seconds), member.seconds_per_microbatch
        if seconds is None and said is not None and deadline_s(said) <= allowed:
            allowed = deadline_s(said)
        elif seconds is None:
            longer = allowed * 2.0 ** min(strikes, 16) if strikes or said is None else deadline_s(said)
            allowed = max(allowed, min(longer, budget / 2))
        return allowed if pass_state.kind is PassKind.TRAIN else min(allowed, self._a_while_s(pass_state))
