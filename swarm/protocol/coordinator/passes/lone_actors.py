"""Judges which actors without siblings an open pass waits for. Nobody else in the pass can do their work.

So the pass cannot go on without them. It is given up, and another peer may take a place beside them (`Idle`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_limits import PassLimits
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.standstill import Standstill
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings

SUSPECTED = 2
"""Number of attempts that only wait after which the time for waiting doubles. In between, others are suspected. It must
grow: perhaps nobody is at fault, and frames take longer on a slow line than a step budget.
"""


class LoneActors:
    def __init__(self, pass_state: PassState, members: Members, limits: PassLimits, settings: Settings) -> None:
        self._pass_state = pass_state
        self._members = members
        self._limits = limits
        self._settings = settings
        self._standstill = Standstill(pass_state, settings)

    def idle(
        self, aborts: int, against: Callable[[str], int], unheard: Collection[Actor], now: float
    ) -> list[tuple[Actor, str]]:
        """Actors without siblings that do nothing, with the reasons. The `unheard` are left out.

        If the pass has exceeded its total limit, an actor counts if it has done nothing for half of the limit although
        it reports work, has not reported that it knows the pass, or has only its own sums left to report. If there is
        none, it is an actor whose stage others hold, if it has finished nothing for a step budget (`_replaceable`), or
        the actor for whose work the pass waits (`_awaited`). `against`: how many people accuse a peer.
        """
        lone = [table.roster[0] for table in self._pass_state.tables if len(table.roster) == 1]
        alone = [m for actor in lone if actor not in unheard and (m := self._members.get(actor)) is not None]
        found = []
        if self._limits.is_overrun(aborts, now):
            allowed = self._limits.limit_s(aborts) / 2
            reasons = ((member.actor, self._why_alone(member, allowed, now)) for member in alone)
            found = [(actor, why) for actor, why in reasons if why]
        found = found or self._replaceable(alone, aborts, now)
        return found or self._awaited(alone, aborts, against, unheard, now)

    def _replaceable(self, alone: Sequence[Member], aborts: int, now: float) -> list[tuple[Actor, str]]:
        """Actors without siblings that do nothing, although members that take no part in the pass hold their stage: for
        example because the step is audited. A repeated step can be done without these actors.

        The deadline doubles with each second attempt, because perhaps all of them are slow.
        """
        pass_state, version = self._pass_state, self._pass_state.pass_id.version
        allowed = self._settings.step_budget_s * float(2 ** min(aborts // SUSPECTED, 6))
        found = []
        for member in alone:
            stage = pass_state.stage_of(member.actor)
            assert stage is not None
            others = (m for m in self._members.of_stage(stage) if m.lost_at is None and m.version == version)
            if any(not (m.idle or m.is_withheld or m.actor in pass_state.served) for m in others):
                why = self._standstill.why_idle(member, allowed, math.inf, now)
                found += [(member.actor, why)] if why else []
        return found

    def _awaited(
        self,
        alone: Sequence[Member],
        aborts: int,
        against: Callable[[str], int],
        unheard: Collection[Actor],
        now: float,
    ) -> list[tuple[Actor, str]]:
        """An actor without siblings for whose work the pass waits although nobody computes, with the reason.

        Either an actor that waits for a neighbour's data is the cause, or this neighbour. The one that most people
        accuse is chosen (`against`). If several are accused as often, one of them is chosen each time, from the second
        attempt on. Empty if the limit for waiting has not been exceeded. It grows more slowly than that of
        `PassLimits.is_overrun`, because nobody computes.
        """
        pass_state = self._pass_state
        limit_s = self._limits.limit_s(aborts // SUSPECTED)
        if now - pass_state.judged_from <= limit_s:
            return []
        waiting: dict[Actor, str] = {}
        for member in alone:
            actor = member.actor
            if pass_state.has_queued(actor):
                continue
            if not (why := self._standstill.why_waiting(member, limit_s / 2, limit_s / 2, now)):
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

    def _why_alone(self, member: Member, allowed: float, now: float) -> str:
        """The reason why a member without siblings counts as idle. Empty: it does not."""
        pass_state, actor = self._pass_state, member.actor
        if why := self._standstill.why_idle(member, allowed, allowed, now):
            return why
        if not pass_state.has_begun(actor):
            return self._standstill.why_unbegun(actor, allowed, now)
        stage = pass_state.stage_of(actor)
        assert stage is not None
        since, reports = pass_state.reductions.sealed_since(stage), pass_state.preparation.reports[stage]
        if pass_state.reduces_with(stage) != [stage] or since is None or now - since <= allowed or actor in reports:
            return ""
        return f"it reports that all its work is done, but has not reported its sums for {now - since:.1f} s"
