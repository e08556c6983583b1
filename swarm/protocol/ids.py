"""Identifiers of actors, passes and messages. They have distinct types, so that a stage is never mistaken for a
step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

StageIndex = NewType("StageIndex", int)
StepNumber = NewType("StepNumber", int)
Microbatch = NewType("Microbatch", int)
Term = NewType("Term", int)
NEVER = Term(0)
"""A term before the first one. It is the term of an event that has not happened."""


COORDINATOR_INCARNATION = 0
"""All processes of a coordinator use this incarnation, so that peers find it after a restart. The term distinguishes
them.
"""


@dataclass(frozen=True, slots=True, order=True)
class Actor:
    """A peer id and the incarnation of its process. A restart makes another actor; the old one is fenced."""

    peer: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.peer[-6:]}.{self.incarnation % 100_000}"


Pair = frozenset[Actor]
"""Two actors, in any order."""


@dataclass(frozen=True, slots=True, order=True)
class PassId:
    """One pass of microbatches through the pipeline. The ids are totally ordered.

    `index` 0 is the training pass of `step` (peers hold version == step). Indices 1, 2, … are forward-only passes
    (evaluation, generation) after that step was decided (peers hold version == step + 1).
    """

    term: Term
    step: StepNumber
    index: int = 0

    @property
    def version(self) -> int:
        """The version a peer must hold to take part."""
        return self.step if self.index == 0 else self.step + 1

    def __str__(self) -> str:
        return f"{self.term}:{self.step}" + (f"+{self.index}" if self.index else "")


class PassKind(enum.Enum):
    TRAIN = "train"
    EVALUATE = "evaluate"
    GENERATE = "generate"


class Direction(enum.Enum):
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class FrameKey:
    """An activation (forward) or its gradient (backward) crossing `boundary` for one microbatch.

    Boundary `b` lies between stage `b − 1` and stage `b`; boundary 0 is coordinator → stage 0 and carries tokens.
    """

    pass_id: PassId
    boundary: int
    direction: Direction
    microbatch: Microbatch

    def __hash__(self) -> int:
        """Keys in one table belong to one pass, so the pass need not be hashed with each of them."""
        return hash((self.boundary, self.microbatch))

    def __str__(self) -> str:
        arrow = "→" if self.direction is Direction.FORWARD else "←"
        return f"{self.pass_id}/b{self.boundary}{arrow}m{self.microbatch}"


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt of a stage to reduce its gradients. It is void as soon as the stage's table has another number.

    Two stages that share parameters reduce them together: a new table of either stage voids the attempts of both.
    """

    pass_id: PassId
    stage: StageIndex
    number: int
    partner: int = -1
    """Number of the other stage's table; −1 if no parameters are shared."""

    def of_partner(self, stage: StageIndex) -> Attempt:
        """The attempt of the other stage with which this attempt is reduced."""
        return Attempt(self.pass_id, stage, self.partner, self.number)

    def ends(self, other: Attempt) -> bool:
        """Return True if the end of this attempt also ends `other`: `other` is the same attempt, or one under an older
        table.
        """
        return (other.pass_id, other.stage) == (self.pass_id, self.stage) and other.number <= self.number

    def __str__(self) -> str:
        shared = f"+{self.partner}" if self.partner >= 0 else ""
        return f"{self.pass_id}/s{self.stage}n{self.number}{shared}"


@dataclass(frozen=True, slots=True)
class PartKey:
    """The part that `contributor` adds to `bucket`, on its way to the bucket's reducer."""

    attempt: Attempt
    bucket: int
    contributor: Actor


@dataclass(frozen=True, slots=True)
class SumKey:
    """The reduced `bucket`, from its reducer to every member of the roster."""

    attempt: Attempt
    bucket: int


Key = FrameKey | PartKey | SumKey


class End(enum.IntEnum):
    """One end of a boundary. The peer there keeps an activation that it has received or sent."""

    RECEIVED = 0
    SENT = 1


@dataclass(frozen=True, slots=True, order=True)
class BaseKey:
    """The key of an activation that a peer keeps, received or sent: microbatch `m` of the step `visit`."""

    visit: StepNumber
    microbatch: Microbatch
    end: End
