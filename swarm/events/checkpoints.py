"""Events of checkpoints and states: writing, archiving, fetching and catching up."""

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
    """A peer applied a step late because its slow disk had not yet written the copy of the previous version."""

    severity: ClassVar[Severity] = "warning"

    stage: int
    version: int
    seconds: float

    def sentence(self) -> str:
        return (
            f"the step after version {self.version} of stage {self.stage} waited {self.seconds:.1f} s until the copy "
            "of that version was written: the disk with this peer's home is slow"
        )


@dataclass(frozen=True, slots=True)
class CheckpointArchived(Event):
    """The coordinator's archive contains every stage of this version, verified."""

    version: int
    digests: list[str]

    def sentence(self) -> str:
        return f"checkpoint {self.version} is complete in the archive ({len(self.digests)} stages)"


@dataclass(frozen=True, slots=True)
class CheckpointsMissing(Event):
    """Several checkpoints in a row did not reach the archive. `archived`: the newest one there; 0: none."""

    severity: ClassVar[Severity] = "warning"

    archived: int
    version: int
    reason: str

    def sentence(self) -> str:
        back = f"to version {self.archived}" if self.archived else "to its beginning"
        return (
            f"no checkpoint is archived since version {self.archived}, and the run is at version {self.version}: "
            f"{self.reason}. If the last copy of a stage is lost, the run goes back {back}"
        )


@dataclass(frozen=True, slots=True)
class CheckpointRefused(Event):
    """A checkpoint file is incomplete or damaged. The previous checkpoint is used."""

    severity: ClassVar[Severity] = "warning"

    path: str
    reason: str

    def sentence(self) -> str:
        return f"checkpoint {self.path} refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class StateFetched(Event):
    """A peer has loaded the state of a stage. It came from another replica, the archive, or several replicas."""

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
    """A peer has downloaded the state of a version, or the sums of a step, in pieces from several training peers."""

    stage: int
    what: str
    nbytes: int
    resumed: int
    """Number of pieces that an earlier, interrupted download had fetched."""
    index_s: float
    """Seconds until the list of pieces (the index) was known."""
    pieces_s: float
    by_donor: dict[str, int]
    """Bytes from each donor, by the donor's name."""
    received: int
    """Bytes transferred. The pieces of a state are compressed for the transfer, so this is less than their size."""
    refetched: int
    """Number of pieces that arrived with a wrong hash and were fetched again."""

    def sentence(self) -> str:
        seconds = self.index_s + self.pieces_s
        size = f"{amount(self.nbytes)} ({amount(self.received)} sent over the network)"
        return f"stage {self.stage}: {self.what} from {len(self.by_donor)} peers: {size} in {seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class PieceRefused(Event):
    """A donor sent a piece or an index that differs from the other donors'. Nothing more is requested from it."""

    donor: str
    reason: str

    def sentence(self) -> str:
        return f"nothing more is requested from {self.donor}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CatchUpForecast(Event):
    """A forecast whether a new peer can catch up. It compares the time in which the peer's link transfers the sums of a
    step with the time of a step.

    The new peer and the coordinator log it if both link and step were measured.
    """

    actor: str
    stage: int
    nbytes: int
    """Size of the sums of a step."""
    sums_s: float
    """Seconds to transfer the sums if nothing else uses the link."""
    step_s: float
    can: bool

    def sentence(self) -> str:
        sums = (
            f"its link needs {self.sums_s:.2g} s for the sums of a step of stage {self.stage} ({amount(self.nbytes)})"
        )
        step = f"a step takes {self.step_s:.2g} s"
        if self.can:
            return f"{self.actor} can catch up: {sums}, and {step}"
        return (
            f"{self.actor} cannot catch up: {sums}, and {step}. It needs a faster link, or the run needs longer steps "
            "(batch.microbatches) or sums in fewer bits (sums.averaging)"
        )


@dataclass(frozen=True, slots=True)
class CatchUpFailed(Event):
    """A new peer cannot get the sums of a step any more. It loads a newer version instead."""

    stage: int | None
    step: int
    reason: str

    def sentence(self) -> str:
        return (
            f"{stage_name(self.stage)}: catching up failed at step {self.step + 1}: {self.reason}; the new peer loads "
            "a newer version"
        )
