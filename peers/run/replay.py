"""The choices in a run's decision record beyond the manifest, which `reference` must repeat.

A swarm's result is a function of the manifest and of these few choices, which its peers made during the run.
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
    """By boundary 1, 2, …: bit m is set if microbatch m crossed as a key frame. Empty if the codec has no key frames.
    """
    contributions: tuple[tuple[Contribution, ...], ...] = ()
    """By stage: the contributions of its members. Empty if the run does not average compressed gradients."""
    codecs: tuple[CodecPair, ...] = ()
    """By boundary 1, 2, …: the codecs. Empty if the manifest names them."""
    update: Update | None = None
    """The update as computed on the coordinator's machine; None: compute it on this machine."""

    @classmethod
    def of(cls, decision: Decision) -> StepReplay:
        contributions = tuple(outcome.contributions for outcome in decision.outcomes)
        return cls(decision.key_frames, contributions, decision.codecs, decision.update)


class ReplayError(ValueError):
    """The reference cannot repeat a choice of the swarm."""


def read_replay(home: Home, run_hash: str) -> Mapping[int, StepReplay]:
    """Return all choices in a coordinator's record, by step; empty if there is no record. Raises RecordError."""
    if not home.decisions.exists():
        return {}
    return {decision.step: StepReplay.of(decision) for decision in read_decisions(home.decisions, run_hash)}
