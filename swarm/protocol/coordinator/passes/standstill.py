"""Why a member of an open pass counts as standing still: it has exceeded a deadline for its work, or for others' data.

The reasons are texts. An empty one means that the member does not stand still. Deadlines are in seconds.
"""

from __future__ import annotations

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.passes.late_reductions import reduces_alone
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.settings import Settings
from swarm.protocol.slots import least_at_once


class Standstill:
    def __init__(self, pass_state: PassState, settings: Settings) -> None:
        self._pass_state = pass_state
        self._settings = settings

    def why_idle(self, member: Member, allowed: float, answer: float, now: float) -> str:
        """The reason why a member with available work counts as stalled. `answer`: seconds for the work at the end of
        a pass.
        """
        pass_state, actor = self._pass_state, member.actor
        if not pass_state.unfinished(actor):
            if pass_state.kind is not PassKind.TRAIN:
                waited = now - pass_state.moved_at.get(actor, pass_state.judged_from)
                late = pass_state.lacks_result_of(actor) and waited > answer
                return f"it reports that it is done, but its result has not come for {waited:.1f} s" if late else ""
            stage = pass_state.stage_of(actor) if reduces_alone(member, pass_state) else None
            reducing = None if stage is None else pass_state.reductions.member_still_since(actor, stage)
            if reducing is None or now - reducing <= answer:
                return ""
            return f"it has not computed its part of the reduction for {now - reducing:.1f} s"
        if (still := pass_state.in_hand_s(actor, now)) > allowed:
            return f"no progress for {still:.1f} s (deadline {allowed:.1f} s)"
        return ""

    def why_waiting(self, member: Member, line_s: float, answer: float, now: float) -> str:
        """The reason why a member without available work counts as stalled. `line_s`: seconds in which data of its
        neighbours must come.
        """
        pass_state, actor = self._pass_state, member.actor
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

    def why_unbegun(self, actor: Actor, allowed: float, now: float) -> str:
        """The reason why an actor that has not reported to know the pass counts as stalled."""
        pass_state = self._pass_state
        waited = now - max(pass_state.judged_from, pass_state.began_at(actor))
        if pass_state.has_begun(actor) or waited <= allowed:
            return ""
        return f"it has not begun the pass for {waited:.1f} s (deadline {allowed:.1f} s)"
