"""The work of members that leave or pause: others do what they have not begun, and the pass waits for the rest."""

from __future__ import annotations

import math

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.announcements import Announcements
from swarm.protocol.coordinator.passes.assignment import amend
from swarm.protocol.coordinator.passes.findings import Suspect
from swarm.protocol.coordinator.passes.outcome import GiveUp
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Release
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

MISSED_AFTER = 2.0
"""A step waits for a paused member at most this multiple of `recruit_after_s`, if another peer could take its place."""


class WithheldWork:
    """Call `drain` when something may have changed, and `excuse_waiting` once a heartbeat."""

    def __init__(
        self, pass_state: PassState, members: Members, settings: Settings, announcements: Announcements, out: Outbox
    ) -> None:
        self.waits = ""
        """The paused members that the pass waited for at the last heartbeat, as text."""
        self._pass_state = pass_state
        self._members = members
        self._settings = settings
        self._announcements = announcements
        self._out = out
        self._ticked_at = pass_state.opened_at

    def drain(self, now: float) -> Suspect | GiveUp | None:
        """Reassign the unstarted work of members that leave or pause. Return a member that cannot stay until the step
        is decided.

        A member that has accumulated something stays until then. Otherwise that work would have to be repeated.
        """
        pass_state, withheld = self._pass_state, self._members.withheld()
        for actor in [a for a in pass_state.actors if a in withheld]:
            stage, member = pass_state.stage_of(actor), self._members.get(actor)
            if stage is None or member is None:
                continue
            table, left = pass_state.tables[stage], math.inf
            if member.leaving_since is not None:
                left = member.leaving_since + self._settings.leave_s - now
            too_long = left < math.inf and self._least_rest_s() > left
            if all(a in withheld for a in table.roster):
                # the last replica: its state from before the step is worth more than this step
                if self._members.has_successor(stage) and (too_long or left < self._settings.leave_s / 2):
                    return GiveUp(f"{actor} is leaving, and another peer must take up stage {stage} first")
                if self._is_missed(member, stage, now):
                    return GiveUp(f"{actor} {self.why(actor)}, and another peer should take up stage {stage}")
            elif not table.assigned_to(actor):
                if not pass_state.reductions.is_sealed(stage):  # or it is reducing, and would have to begin again
                    table = amend(table, [actor], [], pass_state.weights, withheld)
                    self._announcements.publish(stage, table, f"{actor} {self.why(actor)} and has not begun any work")
            elif too_long:
                return Suspect(actor, "it is leaving, and the step will take longer than it can stay")
            elif (unfinished := tuple(pass_state.unfinished(actor))) and pass_state.releasing.get(actor) != unfinished:
                pass_state.releasing[actor] = unfinished
                self._out.send(actor, Release(pass_state.pass_id, table.number, unfinished))
        return None

    def _is_missed(self, member: Member, stage: int, now: float) -> bool:
        """Return True if the step must be run again, because it waits for a paused member that another peer could
        replace.

        The limit leaves a standby enough time to load the stage and enter this step. If no peer stands by, one must be
        moved from another stage, which is possible only between steps.
        """
        paused_s = now - member.paused_at
        long = member.leaving_since is None and paused_s >= MISSED_AFTER * self._settings.recruit_after_s
        return long and stage in self._waiting_for() and self._members.has_successor(stage)

    def _waiting_for(self) -> dict[int, Member]:
        """For each stage that is waiting for paused members to continue, the first of these members."""
        pass_state, found = self._pass_state, dict[int, Member]()
        withheld = set(self._members.withheld()) if self._members.paused else set()
        for member in self._members.paused:
            stage = pass_state.stage_of(member.actor)
            if stage is None or not pass_state.unfinished(member.actor):
                continue
            if withheld.issuperset(pass_state.tables[stage].roster):
                found.setdefault(stage, member)
        return found

    def excuse_waiting(self, now: float) -> None:
        """Do not count the time in which the pass waits for a paused member against any actor."""
        waiting = self._waiting_for()
        names = [
            f"stage {stage} waits for {each.actor}, which is paused: {each.paused}"
            for stage, each in sorted(waiting.items())
        ]
        self.waits = "; ".join(names)
        if waiting:
            self._pass_state.excuse(now - self._ticked_at, now)
        self._ticked_at = now

    def _least_rest_s(self) -> float:
        """Lower bound of the seconds until the pass is complete: the computing time alone, if all replicas are always
        busy.
        """
        longest = 0.0
        for table in self._pass_state.tables:
            rates = [1.0 / s for a in table.roster if (s := self._members.seconds_per_microbatch(a)) is not None]
            if len(rates) == len(table.roster):
                longest = max(longest, sum(len(self._pass_state.unfinished(a)) for a in table.roster) / sum(rates))
        return longest

    def why(self, actor: Actor) -> str:
        """The reason why an actor gets no new work, as text to follow the actor's name."""
        member = self._members.get(actor)
        return f"is paused ({member.paused})" if member is not None and member.leaving_since is None else "is leaving"
