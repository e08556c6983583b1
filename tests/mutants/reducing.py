"""Rules of the reduce: what is shared by two stages, compressed averaging and its residuals."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.protocol.peer import step_cycle
from swarm.protocol.peer.all_reduce import AllReduce
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.residuals import Rosters
from swarm.simulation.toy.sim_reduce import SimReduce
from tests.mutants.mutant import Mutant, Patch


def _partner_unchecked() -> list[Patch]:
    """A part of what is shared is taken whatever table the other stage had then, and no set is looked at."""
    on_part = PassRun.on_part

    def renamed(self: PassRun, part: Any, now: float) -> None:
        known = self._attempt
        if part.key.contributor not in self.microbatches.table.roster and part.key.attempt.number == known.number:
            part = dataclasses.replace(part, key=dataclasses.replace(part.key, attempt=known))
        on_part(self, part, now)

    return [
        (PassRun, "on_part", renamed),
        (AllReduce, "_is_assigned", lambda self, part: True),
        (AllReduce, "_complete", lambda self, sets: True),
    ]


def _other_stage_left_out() -> list[Patch]:
    return [(AllReduce, "_members", lambda self, bucket: self._roster)]


def _residuals_ungranted() -> list[Patch]:
    """A peer uses what it holds, whatever the table says."""

    def whatever_is_held(me: Any, table: Any, pass_id: Any, held: Any) -> Any:
        return held if held is not None and held.step + 1 == pass_id.step else None

    return [(step_cycle, "carry_of", whatever_is_held)]


def _residuals_settled_early() -> list[Patch]:
    """What an attempt lost counts in the next attempt, though the first is void."""
    compressed = SimReduce._compressed

    def settle(self: SimReduce, action: Any, value: int, *, of_sum: bool) -> int:
        crossed = compressed(self, action, value, of_sum=of_sum)
        if self._peer.world.settings.averages_compressed:
            self._residuals[of_sum, action.bucket] = self._pending[of_sum, action.bucket]
        return crossed

    return [(SimReduce, "_compressed", settle)]


def _residuals_of_another_term() -> list[Patch]:
    """The coordinator builds on the last step though a peer may have been told of another one since."""

    def of(self: Rosters, pass_id: Any, stage: int) -> Any:
        return self._places[stage] if self._decision is not None else {}

    return [(Rosters, "_of", of)]


def _rounds_at_once() -> list[Patch]:
    """The second round is computed before the first is summed."""
    begin = AllReduce._begin

    def all_open(self: AllReduce) -> None:
        self._open = range(self._buckets)
        begin(self)

    return [(AllReduce, "_begin", all_open)]


def _one_word_believed() -> list[Patch]:
    """Of replicas with the same bytes, the one is believed that comes last in the roster."""
    plain = Preparation._believed

    def last(self: Preparation, stage: int, without: Any) -> Any:
        believed = plain(self, stage, without)
        there = [said for actor, said in self.reports[stage].items() if actor not in without]
        return believed and there[-1]

    return [(Preparation, "_believed", last)]


REDUCING = (
    Mutant("one word believed", "most people's word about the same bytes counts", _one_word_believed, "hindering"),
    Mutant("partner's table unchecked", "stages reduce what they share under both tables", _partner_unchecked, "tied"),
    Mutant("other stage left out", "what is shared is summed over both rosters", _other_stage_left_out, "tied"),
    Mutant("rounds at once", "the second round of a reduce builds on the first", _rounds_at_once, "averaging"),
    Mutant("residuals ungranted", "only those residuals count that the table names", _residuals_ungranted, "averaging"),
    Mutant("residuals settled early", "residuals of an attempt are pending", _residuals_settled_early, "averaging"),
    Mutant("residuals of another term", "residuals end with their term", _residuals_of_another_term, "averaging"),
)
