"""Checkpoints and states: written, archived, fetched, caught up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import amount, stage_name


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Event):
    """A replica has written its stage to its own disk."""

    stage: int
    version: int
    digest: str
    nbytes: int

    def sentence(self) -> str:
        size = amount(self.nbytes)
        return f"checkpoint of stage {self.stage} at version {self.version} written: {size}, {self.digest[:16]}"


@dataclass(frozen=True, slots=True)
class StepHeldUp(Event):
    """A peer applied a step late: its copy of the version before was not written yet, because its disk is slow."""

    severity: ClassVar[Severity] = "warning"

    stage: int
    version: int
    seconds: float

    def sentence(self) -> str:
        return (
            f"the step after version {self.version} of stage {self.stage} waited {self.seconds:.1f} s until that "
            "version was copied: the disk of this peer's home is slow"
        )


@dataclass(frozen=True, slots=True)
class CheckpointArchived(Event):
    """Every stage of this version is verified in the coordinator's archive."""

    version: int
    digests: list[str]

    def sentence(self) -> str:
        return f"checkpoint {self.version} is complete in the archive ({len(self.digests)} stages)"


@dataclass(frozen=True, slots=True)
class CheckpointRefused(Event):
    """A shard is torn or damaged. The one before it is used."""

    severity: ClassVar[Severity] = "warning"

    path: str
    reason: str

    def sentence(self) -> str:
        return f"checkpoint {self.path} refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class StateFetched(Event):
    """The state of a stage came from another replica, the archive, or several replicas."""

    stage: int
    version: int
    source: str
    nbytes: int
    seconds: float

    def sentence(self) -> str:
        size = amount(self.nbytes)
        return f"stage {self.stage} at version {self.version} from {self.source}: {size} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Gathered(Event):
    """Several peers have sent the state of a version, or the sums of a step, while they train.

    Seconds until the index was known, and for the pieces; bytes by donor.
    """

    stage: int
    what: str
    nbytes: int
    resumed: int
    """Pieces that were here from before."""
    index_s: float
    """Seconds until the index was known."""
    pieces_s: float
    by_donor: dict[str, int]
    """Bytes from each donor."""
    received: int
    """Bytes transferred for it: a state's pieces are packed for the transfer."""
    refetched: int
    """Pieces that arrived with a wrong hash."""

    def sentence(self) -> str:
        seconds = self.index_s + self.pieces_s
        size = f"{amount(self.nbytes)} ({amount(self.received)} on the line)"
        return f"stage {self.stage}: {self.what} from {len(self.by_donor)} peers: {size} in {seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class PieceRefused(Event):
    """A donor sent a piece or an index that differs from the others'. It is not asked again."""

    donor: str
    reason: str

    def sentence(self) -> str:
        return f"{self.donor} is not asked again: {self.reason}"


@dataclass(frozen=True, slots=True)
class CatchUpForecast(Event):
    """Whether a newcomer can catch up: the time its link needs for a step's sums, compared with the time of a step.

    Both sides log it, where link and step are measured.
    """

    actor: str
    stage: int
    nbytes: int
    """Of the sums of a step."""
    sums_s: float
    """Seconds to transfer the sums over the whole link."""
    step_s: float
    can: bool

    def sentence(self) -> str:
        sums = (
            f"its link needs {self.sums_s:.2g} s for the {amount(self.nbytes)} of sums of a step of stage {self.stage}"
        )
        step = f"a step takes {self.step_s:.2g} s"
        if self.can:
            return f"{self.actor} can catch up: {sums}, and {step}"
        return (
            f"{self.actor} cannot catch up: {sums}, and {step}. It needs a faster link, or the run needs longer steps "
            "(batch.microbatches) or compressed averaging (sums.averaging)"
        )


@dataclass(frozen=True, slots=True)
class CatchUpFailed(Event):
    """A newcomer lost the sums of a step for good. It loads a newer version."""

    stage: int | None
    step: int
    reason: str

    def sentence(self) -> str:
        return (
            f"{stage_name(self.stage)}: catching up failed at step {self.step + 1}: {self.reason}; the newcomer loads "
            "a newer version"
        )
