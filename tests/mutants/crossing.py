"""Rules of what crosses a boundary: changes and their bases, codecs that are chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.protocol.coordinator.passes.announcements import Announcements
from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.protocol.ids import BaseKey, End, FrameKey, StepNumber
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import Frame
from swarm.protocol.peer import frame_cache as retained_module
from swarm.simulation.toy.sim_bases import SimBases
from swarm.simulation.toy.toy_model import LADDERS
from tests.mutants.mutant import Mutant, Patch


def _base_unchecked() -> list[Patch]:
    """The change is sent to whoever wants the frame, and added to whatever is there."""

    def same_for_all(key: FrameKey, kept: Any, base: int) -> Frame:
        return Frame(key, kept.payload, kept.lineage)

    def whatever_is_there(self: SimBases, key: Any) -> int:
        return self._kept.get(key, 0)

    return [
        (retained_module, "_frame", same_for_all),
        (Crossings, "accepts", lambda self, m, lineage: True),
        (Crossings, "_key", lambda self, m, end: BaseKey(self._visit or StepNumber(0), m, end)),
        (SimBases, "_base", whatever_is_there),
    ]


def _copies_mixed() -> list[Patch]:
    return [(Preparation, "mixed_copies", lambda self, without: None)]


def _own_copy_kept() -> list[Patch]:
    """A sender keeps what it has sent, though the next stage used what another peer had sent before."""
    accumulated = Crossings.accumulated

    def keep(self: Crossings, m: Any, received: int) -> Any:
        told = accumulated(self, m, received)
        if self._sent.get(m):
            self._left[End.SENT, m] = self._sent[m]
        return told

    return [(Crossings, "accumulated", keep)]


def _choice_unrecorded() -> list[Patch]:
    decide = Preparation.decide

    def as_at_the_start(self: Preparation, *arguments: Any) -> Any:
        decision = decide(self, *arguments)
        start = (LADDERS.start,) * len(self._opening.codecs)
        return None if decision is None else dataclasses.replace(decision, codecs=start)

    return [(Preparation, "decide", as_at_the_start)]


def _chosen_while_open() -> list[Patch]:
    tell = Announcements.tell

    def with_the_newest(self: Announcements, actor: Any, now: float) -> None:
        pass_state = self._pass_state
        rungs = LADDERS.forward
        if (codecs := pass_state.opening.codecs) and any(pass_state.done_of(a) for a in pass_state.actors):
            hardest = dataclasses.replace(codecs[0], forward=rungs[-1].codec)
            pass_state.opening = dataclasses.replace(pass_state.opening, codecs=(hardest, *codecs[1:]))
            pass_state.preparation._opening = pass_state.opening
        tell(self, actor, now)

    return [(Announcements, "tell", with_the_newest)]


CROSSING = (
    Mutant(
        "base unchecked", "a change is used with the base it was made from, or not at all", _base_unchecked, "delta"
    ),
    Mutant("copies mixed", "the stages of a step have computed with the same copies", _copies_mixed, "delta", 1000),
    Mutant("own copy kept", "a sender builds on what its receiver has used", _own_copy_kept, "delta"),
    Mutant("choice unrecorded", "a decision says what its step crossed with", _choice_unrecorded, "auto"),
    Mutant("chosen while open", "codecs are chosen between steps, for all of a pass", _chosen_while_open, "auto"),
)
