"""The results of the run: held-out losses, texts of the model, checkpoints in the archive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peers.fold import reading
from peers.fold.reading import Record

if TYPE_CHECKING:
    from peers.fold.state import RunState

MOST_SAMPLES = 200
MOST_CHECKPOINTS = 500
MOST_SAMPLE_TEXT = 4000


@dataclass(slots=True)
class Evaluation:
    version: int
    at: float
    loss: float | None
    targets: int


@dataclass(slots=True)
class Sample:
    version: int
    at: float
    prompt: str
    text: str


@dataclass(slots=True)
class Checkpoint:
    version: int
    at: float
    digests: list[str]
    """The digests of the checkpoint's stages. Empty: the archive does not have all stages yet."""
    nbytes: dict[str, int] = field(default_factory=dict)
    """Bytes by stage."""


@dataclass(slots=True)
class Results:
    evaluations: list[Evaluation] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def archived(self) -> int | None:
        """Version of the last complete checkpoint."""
        whole = [each.version for each in self.checkpoints if each.digests]
        return whole[-1] if whole else None

    def checkpoint(self, version: int, at: float) -> Checkpoint:
        for each in reversed(self.checkpoints):
            if each.version == version:
                return each
        made = Checkpoint(version, at, [])
        self.checkpoints.append(made)
        del self.checkpoints[:-MOST_CHECKPOINTS]
        return made

    def back_to(self, version: int) -> None:
        """Forget the results of later versions, which belong to a void history."""
        self.evaluations = [each for each in self.evaluations if each.version <= version]
        self.samples = [each for each in self.samples if each.version <= version]
        self.checkpoints = [each for each in self.checkpoints if each.version <= version]


def evaluated(state: RunState, record: Record, at: float, source: str) -> None:
    version, loss = reading.count(record, "version"), reading.loss(record, "loss")
    state.results.evaluations.append(Evaluation(version, at, loss, reading.count(record, "targets")))
    del state.results.evaluations[:-MOST_SAMPLES]
    state.pipeline.decided()


def sampled(state: RunState, record: Record, at: float, source: str) -> None:
    version = reading.count(record, "version")
    prompt, text = reading.text(record, "prompt"), reading.text(record, "text", MOST_SAMPLE_TEXT)
    state.results.samples.append(Sample(version, at, prompt, text))
    del state.results.samples[:-MOST_SAMPLES]
    state.pipeline.decided()


def checkpoint_written(state: RunState, record: Record, at: float, source: str) -> None:
    version, stage = reading.count(record, "version"), reading.stage(record)
    nbytes = reading.count(record, "nbytes")
    state.results.checkpoint(version, at).nbytes[str(stage)] = nbytes


def checkpoint_archived(state: RunState, record: Record, at: float, source: str) -> None:
    version = reading.count(record, "version")
    digests = reading.names(record, "digests", reading.MOST_STAGES)
    checkpoint = state.results.checkpoint(version, at)
    if not checkpoint.digests:
        checkpoint.at, checkpoint.digests = at, digests
