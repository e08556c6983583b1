"""Events of faults: peers that leave a pass, work that is repeated, and what a fault costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import microbatch_list


@dataclass(frozen=True, slots=True)
class PeerFenced(Event):
    """A process is fenced: excluded from the open pass. Its work in the pass is void, and others repeat it."""

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int
    pass_id: str
    finished: list[int]
    """Microbatches that the process had accumulated. Others repeat this work."""
    unfinished: list[int]
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.actor} of stage {self.stage} is fenced: {self.reason}; {len(self.finished)} finished and "
            f"{len(self.unfinished)} unfinished microbatches are repeated"
        )


@dataclass(frozen=True, slots=True)
class StageAmended(Event):
    """A stage has a new assignment table: the microbatches in `moved` go to another peer.

    `entrant`: a peer that joins the stage with this table.
    """

    pass_id: str
    stage: int
    number: int
    moved: list[int]
    reason: str
    entrant: str | None = None

    def sentence(self) -> str:
        moved = microbatch_list(self.moved)
        return f"stage {self.stage} has a new assignment table, number {self.number}, {moved} moved: {self.reason}"


@dataclass(frozen=True, slots=True)
class MicrobatchesReleased(Event):
    """A slow peer gave up microbatches whose gradients it had not accumulated."""

    pass_id: str
    actor: str
    microbatches: list[int]

    def sentence(self) -> str:
        return f"{self.actor} gave up {microbatch_list(self.microbatches)}"


@dataclass(frozen=True, slots=True)
class FrameRecovered(Event):
    """The first frame has arrived for a microbatch that was moved or requested again."""

    key: str
    source: str

    def sentence(self) -> str:
        return f"recovered {self.key} from {self.source}"


@dataclass(frozen=True, slots=True)
class StepAborted(Event):
    """The open step is aborted. It is repeated under a new term."""

    severity: ClassVar[Severity] = "warning"

    pass_id: str
    term: int
    reason: str

    def sentence(self) -> str:
        return f"{self.pass_id} aborted, term {self.term}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """All stages went back to a checkpoint, because the last copy of a stage was lost or because the run diverged."""

    severity: ClassVar[Severity] = "warning"

    term: int
    version: int
    reason: str

    def sentence(self) -> str:
        return f"rolled back to version {self.version}, term {self.term}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StageDoubted(Event):
    """The replicas of one stage report a non-finite result of their stage, and no other stage confirms this.

    The peers in `reload` load their state again. The peers in `left_out` have already done so before: other peers
    replace them.
    """

    severity: ClassVar[Severity] = "warning"

    version: int
    """The version to which the report applies."""
    stage: int
    reload: list[str]
    left_out: list[str]
    reason: str

    def sentence(self) -> str:
        loads = f"{', '.join(self.reload)} must load the state again" if self.reload else ""
        out = f"{', '.join(self.left_out)} must be replaced by another peer" if self.left_out else ""
        return f"stage {self.stage} is not trusted at version {self.version} ({self.reason}): " + "; ".join(
            part for part in (loads, out) if part
        )


@dataclass(frozen=True, slots=True)
class PeerIdle(Event):
    """A peer that is alone in its stage did not do its work, so that the attempt at the step was given up. Another peer
    may take a place beside it. If this goes on, another peer replaces it. Logged for the 1st to 10th time in a step,
    the 100th, …
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int
    attempt: str
    """The pass that was given up."""
    reason: str
    times: int
    """Number of such attempts at this step."""

    def sentence(self) -> str:
        return (
            f"{self.actor} is alone in stage {self.stage} and does not do its work ({self.reason}; {self.times} times "
            "in this step): another peer may join its stage, or replace it"
        )


@dataclass(frozen=True, slots=True)
class RunDiverged(Event):
    """The run has diverged: several steps in a row were skipped, or parameters are not finite.

    The run goes back to `version` and continues with `rate` times the scheduled learning rate. If `rate` is null, it
    stops.
    """

    severity: ClassVar[Severity] = "warning"

    step: int
    """The last decided step."""
    reason: str
    version: int
    """The newest checkpoint that is known to be good, to which the run goes back; 0: the start of the run."""
    rate: float | None
    """Factor on the scheduled learning rate from then on. None: the run stops."""

    def sentence(self) -> str:
        where = f"version {self.version}, the newest good checkpoint"
        if self.rate is None:
            return f"the run has diverged: {self.reason}; it stops. Kept: {where}"
        return (
            f"the run has diverged: {self.reason}; it goes back to {where}, with {self.rate:g} times the learning rate"
        )


@dataclass(frozen=True, slots=True)
class OutOfMemory(Event):
    """A peer ran out of memory for `what`. It repeats the work, and keeps at most `now` graphs instead of `before`.

    When this happens for the second time, the peer leaves (`leaves`).
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    what: str
    before: int
    """Number of autograd graphs that it kept at once between forward and backward."""
    now: int
    leaves: bool

    def sentence(self) -> str:
        if self.leaves:
            return f"{self.actor} is out of memory again, and leaves: {self.what}"
        less = f"repeats the work and from now on keeps {self.now} graphs instead of {self.before}"
        return f"{self.actor} is out of memory: {self.what}; it {less}"


@dataclass(frozen=True, slots=True)
class FaultCosted(Event):
    """The cost of a disturbed step or evaluation: additional seconds, tokens, and repeated microbatches.

    For an evaluation (`pass_id` contains a `+`), `step` is the last decided step and `usual_s` the usual time of an
    evaluation.
    """

    severity: ClassVar[Severity] = "warning"

    pass_id: str
    step: int
    actors: list[str]
    """Actors that were lost, fenced or too slow in the step."""
    microbatches: int
    """Number of repeated microbatches, over all stages."""
    seconds: float
    """By how many seconds the step, with its aborted attempts, took longer than usual. Not negative."""
    usual_s: float
    """Median seconds of the last undisturbed steps, at most eight; 0 if there was none."""
    tokens: int
    """Number of tokens that the swarm usually trains in these seconds."""
    reason: str
    reasons: list[str] = field(default_factory=list)
    """For each of the first of `actors`, the reason why it is listed."""

    def sentence(self) -> str:
        again = f"{self.microbatches} microbatches were repeated"
        return f"step {self.step + 1} lost {self.seconds:.2f} s ({self.tokens:,} tokens): {self.reason}; {again}"
