"""Measures for how long single actors alone have held up an open training pass.

An actor holds up its stage while at least half of the stage's people have done their microbatches and the actor, which
could do its own or falls silent, has not. It also holds up a reduction while most of the others wait for it and for few
others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from statistics import median

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.late_reductions import LateReductions, reduces_alone
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings

SILENT_BEATS = 3
"""A silence counts if it is longer than this number of heartbeats, or if it does not end."""


STILL_BEATS = 3
"""So long may a reduction of one or two replicas stand still, in heartbeats: reports come once per heartbeat, and a
bucket takes time on a slow line.
"""


class Holdups:
    def __init__(
        self, pass_state: PassState, members: Members, late_reductions: LateReductions, settings: Settings
    ) -> None:
        self.seconds: defaultdict[Actor, float] = defaultdict(float)
        """For each actor, for how long it has held up the pass. If an actor that others wait for may itself be waiting
        for another one, either of the two may be at fault. Then the time counts for both, and twice for the latter, so
        that they do not come back from probation together.
        """
        self.lost_s = 0.0
        """For how many seconds any actor has held up the pass."""
        self._pass_state = pass_state
        self._members = members
        self._late_reductions = late_reductions
        self._settings = settings
        self._heartbeat_s = settings.heartbeat_s
        self._looked_at = pass_state.opened_at
        self._since = 0.0
        """Seconds between the last two calls of `tick`."""
        self._silent: defaultdict[Actor, float] = defaultdict(float)
        """For each actor that holds up its stage if it is not waiting for others: the seconds of its present silence
        that do not count yet.
        """

    def tick(self, now: float) -> None:
        """Call it once a heartbeat. What is the case now counts for the time since the last call, two heartbeats at
        most: a coordinator that was suspended must not blame others for its own pause.
        """
        since = self._since = min(now - self._looked_at, 2 * self._heartbeat_s)
        self._looked_at = now
        pass_state, before = self._pass_state, sum(self.seconds.values())
        for stage in range(len(pass_state.tables)):
            found = self._still_computing(stage)
            if stage == min(pass_state.reduces_with(stage)) and pass_state.reductions.sealed_since(stage) is not None:
                found = self._in_reduction(stage)
            for actor, times in found.items():
                self.seconds[actor] += times * since
        if sum(self.seconds.values()) > before:
            self.lost_s += since

    def skip(self, now: float) -> None:
        """Do not count the time since the last call."""
        self._looked_at = now
        self._silent.clear()

    def lost(self, actor: Actor) -> None:
        """The actor is gone."""
        self.seconds[actor] += self._silent.pop(actor, 0.0)

    def again_s(self, actor: Actor, stage: int, now: float) -> float:
        """Seconds that the actor's siblings need to do again what is lost with it: the microbatches that it has
        finished, and the reduction, if that has begun.
        """
        pass_state = self._pass_state
        mine, sealed = pass_state.assigned_to(actor), pass_state.reductions.sealed_since(stage)
        again = 1.0 - len(pass_state.unfinished(actor)) / len(mine) if mine else 0.0
        return again * self.saved_s(actor, stage) + (0.0 if sealed is None else now - sealed)

    def saved_s(self, actor: Actor, stage: int) -> float:
        """By how many seconds the actor's work in its stage has shortened the pass: the time that its siblings would
        have needed for it, at their usual pace.
        """
        pass_state = self._pass_state
        roster = pass_state.tables[stage].roster
        siblings = {a.peer: a for a in roster if a != actor and pass_state.has_work(a)}
        if not siblings:
            return 0.0
        people = self._members.people.together(siblings)
        paces = [median(self._pace(siblings[peer], stage) for peer in person) for person in people]
        return median(paces) * len(pass_state.assigned_to(actor)) / (len(roster) - 1)

    def _pace(self, actor: Actor, stage: int) -> float:
        """The seconds per microbatch that an actor needs, at most what it has shown in this pass.

        The time in which it has waited for others does not count: the slower a peer is, the longer its siblings wait
        for inputs, and the more time its work would seem to have saved.
        """
        pass_state, member, frames = self._pass_state, self._members.get(actor), self._settings.stage_frames
        end = pass_state.moved_at.get(actor, pass_state.judged_from)
        shown = max(0.0, end - pass_state.opened_at) / len(pass_state.assigned_to(actor))
        seconds = None if member is None else member.seconds_per_microbatch
        if member is None or seconds is None:
            return shown
        sending = frames[stage] / member.offered_uplink if frames and member.offered_uplink is not None else 0.0
        return min(shown, max(seconds, member.least_seconds_per_microbatch or 0.0, sending))

    def _still_computing(self, stage: int) -> dict[Actor, int]:
        """The actors that hold up a stage which is not sealed, and how often its time counts for each.

        An actor may report that it lacks an input that a neighbour reports to have. Then one of the two is at fault.
        """
        pass_state, count = self._pass_state, self._members.people.count
        roster = pass_state.tables[stage].roster
        busy = [actor for actor in roster if pass_state.unfinished(actor)]
        if not busy or 2 * count(a.peer for a in roster if a not in busy) < count(a.peer for a in roster):
            return {}
        found: dict[Actor, int] = {}
        for actor in busy:
            if pass_state.has_queued(actor):
                found[actor] = 1
            elif pass_state.is_supplied(actor):
                found[actor] = 1
                senders = [set(pass_state.senders(actor, m)) for m in pass_state.unfinished(actor)]
                found |= dict.fromkeys(set.intersection(*senders), 2)
            else:
                self._note_silence(actor)
        for actor in found:
            self._silent.pop(actor, None)
        return found

    def _note_silence(self, actor: Actor) -> None:
        """The actor may be waiting for others, as far as it has reported. But a long silence counts from its beginning,
        because nobody knows what it could have done meanwhile.
        """
        member = self._members.get(actor)
        if member is None or member.heard_at > self._looked_at - self._since:
            self._silent.pop(actor, None)
            return
        self._silent[actor] += self._since
        if self._silent[actor] > SILENT_BEATS * self._heartbeat_s:
            self.seconds[actor] += self._silent.pop(actor)

    def _in_reduction(self, stage: int) -> dict[Actor, int]:
        """The actors that hold up a sealed reduction, and how often its time counts for each."""
        late = self._late_reductions.most_awaited(stage)
        if not late:
            return self._of_few(stage)
        found = dict.fromkeys(late, 1)
        kept_by = {actor: self._late_reductions.kept_waiting_by(actor) for actor in late}
        for accused in {each for named in kept_by.values() for each in named if each not in late}:
            kept = [actor for actor, named in kept_by.items() if accused in named]
            found[accused] = 2
            if self._are_several(kept):  # then the accused is at fault
                for actor in kept:
                    found.pop(actor, None)
        return found

    def _of_few(self, stage: int) -> dict[Actor, int]:
        """The actors that hold up a reduction of one or two replicas, and how often its time counts for each.

        If a reduction of two stands still, each of the two waits for the other, or says so, and nobody else can tell
        which is at fault, unless one says that it waits only for its own computing. Together, they cost the run more
        time than each of them alone.
        """
        pass_state = self._pass_state
        roster = pass_state.tables[stage].roster
        if len(roster) > 2 or len(pass_state.reduces_with(stage)) > 1:
            return {}
        left = [actor for actor in roster if actor not in pass_state.preparation.reports[stage]]
        since = pass_state.reductions.sealed_since(stage)
        if len(left) == 2:
            since = min(pass_state.reductions.member_still_since(actor, stage) or self._looked_at for actor in left)
        if not left or since is None or self._looked_at - since <= STILL_BEATS * self._heartbeat_s:
            return {}
        if len(roster) == 1:
            return {left[0]: 1} if self._only_waits_for(stage) else {}
        computing = [a for a in left if (m := self._members.get(a)) is not None and reduces_alone(m, pass_state)]
        if len(computing) == 1:
            return {computing[0]: 1}
        if not any(self._late_reductions.kept_waiting_by(actor) for actor in left):
            return dict.fromkeys(left, 1) if len(left) == 1 else {}  # two that compute would do so alone too
        one, other = sorted(roster, key=lambda actor: (self._members.standing(actor), actor))
        return {one: 1, other: 2}

    def _only_waits_for(self, stage: int) -> bool:
        """Return True if all other stages are prepared."""
        reports = self._pass_state.preparation.reports
        return all(len(reports[s]) == len(t.roster) for s, t in enumerate(self._pass_state.tables) if s != stage)

    def _are_several(self, actors: Collection[Actor]) -> bool:
        return self._members.people.count(actor.peer for actor in actors) > 1
