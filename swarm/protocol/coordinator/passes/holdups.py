"""Measures for how long single actors alone have held up an open training pass.

An actor holds up its stage while at least half of the stage's people have done their microbatches and the actor, which
has work in hand, has not. It also holds up a reduction while most of the others wait for it and for few others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.stragglers import Stragglers
from swarm.protocol.ids import Actor


class Holdups:
    def __init__(self, pass_state: PassState, members: Members, stragglers: Stragglers) -> None:
        self.seconds: defaultdict[Actor, float] = defaultdict(float)
        """For each actor, for how long it has held up the pass. The time counts twice if the actor that most of the
        others wait for waits for this one itself, because either of the two may be at fault.
        """
        self._pass_state = pass_state
        self._members = members
        self._stragglers = stragglers
        self._looked_at = pass_state.opened_at

    def tick(self, now: float) -> None:
        """Call it once a heartbeat. What is the case now counts for the time since the last call."""
        since, self._looked_at = now - self._looked_at, now
        pass_state = self._pass_state
        for stage in range(len(pass_state.tables)):
            for actor in self._still_computing(stage):
                self.seconds[actor] += since
            if stage == min(pass_state.reduces_with(stage)) and pass_state.sealed_since(stage) is not None:
                for actor, times in self._in_reduction(stage).items():
                    self.seconds[actor] += times * since

    def skip(self, now: float) -> None:
        """Do not count the time since the last call."""
        self._looked_at = now

    def _still_computing(self, stage: int) -> list[Actor]:
        pass_state, count = self._pass_state, self._members.people.count
        roster = pass_state.tables[stage].roster
        busy = [actor for actor in roster if pass_state.unfinished(actor)]
        if not busy or 2 * count(a.peer for a in roster if a not in busy) < count(a.peer for a in roster):
            return []
        return [actor for actor in busy if pass_state.has_queued(actor)]

    def _in_reduction(self, stage: int) -> dict[Actor, int]:
        """The actors that hold up a sealed reduction, and how often its time counts for each."""
        members, pass_state = self._members, self._pass_state
        late = self._stragglers.most_awaited(members, pass_state, stage)
        found = dict.fromkeys(late, 1)
        kept_by = {actor: self._stragglers.kept_waiting_by(members, pass_state, actor) for actor in late}
        for accused in {each for named in kept_by.values() for each in named if each not in late}:
            kept = [actor for actor, named in kept_by.items() if accused in named]
            found[accused] = 2
            if self._are_several(kept):  # then the accused is at fault
                for actor in kept:
                    found.pop(actor, None)
        return found

    def _are_several(self, actors: Collection[Actor]) -> bool:
        return self._members.people.count(actor.peer for actor in actors) > 1
