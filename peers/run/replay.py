"""What a run's decision record says of each step that the manifest does not: what `reference` must do the same way.

A swarm's result is a function of the manifest and of these few choices, which its peers made as they went along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peers.coordinator.record import read_decisions
from peers.run.home import Home
from swarm.protocol.messages import CodecPair, Contribution, Decision
from swarm.protocol.update import Update


@dataclass(frozen=True, slots=True)
class StepReplay:
    """The choices of one decided step."""

    key_frames: tuple[int, ...] = ()
    """By boundary 1, 2, …: bit m is set when microbatch m crossed as a key frame. Empty where the codec has none."""
    contributions: tuple[tuple[Contribution, ...], ...] = ()
    """By stage, who added what: empty each where gradients are not averaged compressed."""
    codecs: tuple[CodecPair, ...] = ()
    """By boundary 1, 2, …: what it crossed with. Empty where the manifest says it all."""
    update: Update | None = None
    """As the coordinator's machine worked it out; None: as this one does."""

    @classmethod
    def of(cls, decision: Decision) -> StepReplay:
        contributions = tuple(outcome.contributions for outcome in decision.outcomes)
        return cls(decision.key_frames, contributions, decision.codecs, decision.update)


class ReplayError(ValueError):
    """A swarm chose what the reference cannot do the same way."""


def read_replay(home: Home, run_hash: str) -> Mapping[int, StepReplay]:
    """By step, all that stand in a coordinator's record; empty where there is none. Raises RecordError."""
    if not home.decisions.exists():
        return {}
    return {decision.step: StepReplay.of(decision) for decision in read_decisions(home.decisions, run_hash)}
