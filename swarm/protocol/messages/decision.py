"""The decision record of a training step, and its parts."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Direction, StepNumber, Term
from swarm.protocol.messages.stage_tables import Contribution
from swarm.protocol.update import STILL, Update


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The result of one stage in a decided step: the number of its table and the digest of its reduced bytes."""

    number: int
    digest: str
    contributions: tuple[Contribution, ...] = ()
    """What each member of the roster contributed, in the order of the roster. Set only in a run that averages
    compressed gradients, where the bytes depend on it.
    """


@dataclass(frozen=True, slots=True)
class CodecPair:
    """The codecs of one boundary, by their names in the manifest."""

    forward: str
    """Codec of the activations."""
    backward: str
    """Codec of the activations' gradients."""

    def of(self, direction: Direction) -> str:
        return self.forward if direction is Direction.FORWARD else self.backward


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision record of one training step. The coordinator writes it durably before it tells any peer."""

    term: Term
    step: StepNumber
    scale: float
    """Factor for every gradient sum: clip ÷ tokens. 0 means SKIP: the version advances, but the parameters do not
    change.
    """
    loss_sum: float
    tokens: int
    """Number of targets that the loss is summed over: tokens, or images for a classifier."""
    gradient_norm: float
    outcomes: tuple[StageOutcome, ...]
    key_frames: tuple[int, ...] = ()
    """One integer per boundary 1, 2, …. Bit m is set if microbatch m crossed as a key frame. Empty: the codec has no
    key frames.
    """
    codecs: tuple[CodecPair, ...] = ()
    """The codecs of the step, one pair per boundary 1, 2, …. Empty: as the manifest says."""
    rate: float = 1.0
    """Factor for the scheduled learning rate in this step."""
    update: Update = STILL

    @property
    def skip(self) -> bool:
        return self.scale == 0.0
