"""The decision record of a step, and what it consists of."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Direction, StepNumber, Term
from swarm.protocol.messages.stage_tables import Contribution
from swarm.protocol.update import STILL, Update


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage prepared: the table number and the digest of its reduced bytes."""

    number: int
    digest: str
    contributions: tuple[Contribution, ...] = ()
    """In the order of the roster, in a run that averages compressed gradients: what the bytes depend on."""


@dataclass(frozen=True, slots=True)
class CodecPair:
    """What crosses a boundary is coded with, by the names that manifests use."""

    forward: str
    """Of activations."""
    backward: str
    """Of their gradients."""

    def of(self, direction: Direction) -> str:
        return self.forward if direction is Direction.FORWARD else self.backward


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision record of one training step: written durably by the coordinator before anyone is told."""

    term: Term
    step: StepNumber
    scale: float
    """What every gradient sum is multiplied by: clip ÷ tokens. 0 means SKIP: the version advances, nothing else."""
    loss_sum: float
    tokens: int
    """What the loss is summed over; of a classifier, images."""
    gradient_norm: float
    outcomes: tuple[StageOutcome, ...]
    key_frames: tuple[int, ...] = ()
    """By boundary 1, 2, …: bit m is set when microbatch m crossed as a key frame. Empty where the codec has none."""
    codecs: tuple[CodecPair, ...] = ()
    """By boundary 1, 2, …: what the step crossed with. Empty where the manifest says it all."""
    rate: float = 1.0
    """What the learning rate of the schedule is multiplied by in this step."""
    update: Update = STILL

    @property
    def skip(self) -> bool:
        return self.scale == 0.0
