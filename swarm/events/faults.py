"""Faults: peers that leave a pass, work that is done again, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import microbatch_list


@dataclass(frozen=True, slots=True)
class PeerFenced(Event):
    """A process is out of the open pass. Its work in that pass is void and done again."""

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int
    pass_id: str
    finished: list[int]
    """Microbatches it had accumulated: their work is void and done again."""
    unfinished: list[int]
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.actor} of stage {self.stage} is fenced: {self.reason}; {len(self.finished)} finished and "
            f"{len(self.unfinished)} unfinished microbatches are done again"
        )


@dataclass(frozen=True, slots=True)
class StageAmended(Event):
    """A stage has a new table: `moved` microbatches have another owner. `entrant` came in with it."""

    pass_id: str
    stage: int
    number: int
    moved: list[int]
    reason: str
    entrant: str | None = None

    def sentence(self) -> str:
        moved = microbatch_list(self.moved)
        return f"stage {self.stage} has table {self.number}, {moved} moved: {self.reason}"


@dataclass(frozen=True, slots=True)
class MicrobatchesReleased(Event):
    """A slow peer gave up microbatches that it had not accumulated."""

    pass_id: str
    actor: str
    microbatches: list[int]

    def sentence(self) -> str:
        return f"{self.actor} gave up {microbatch_list(self.microbatches)}"


@dataclass(frozen=True, slots=True)
class FrameRecovered(Event):
    """The first frame has arrived for a microbatch that was moved or asked for again."""

    key: str
    source: str

    def sentence(self) -> str:
        return f"recovered {self.key} from {self.source}"


@dataclass(frozen=True, slots=True)
class StepAborted(Event):
    """The open step is void. It runs again under a new term."""

    severity: ClassVar[Severity] = "warning"

    pass_id: str
    term: int
    reason: str

    def sentence(self) -> str:
        return f"{self.pass_id} aborted, term {self.term}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """All stages went back to a checkpoint: a stage's last copy was lost, or the run diverged."""

    severity: ClassVar[Severity] = "warning"

    term: int
    version: int
    reason: str

    def sentence(self) -> str:
        return f"rolled back to version {self.version}, term {self.term}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StageDoubted(Event):
    """The replicas of one stage report a non-finite result of their stage, and no other stage confirms it.

    The peers in `reload` load their state anew. The peers in `left_out` have done so before: other peers take their
    place.
    """

    severity: ClassVar[Severity] = "warning"

    version: int
    """The version that the report is about."""
    stage: int
    reload: list[str]
    left_out: list[str]
    reason: str

    def sentence(self) -> str:
        loads = f"{', '.join(self.reload)} must load the state anew" if self.reload else ""
        out = f"{', '.join(self.left_out)} must leave the place to another peer" if self.left_out else ""
        return f"stage {self.stage} is not believed at version {self.version}, since {self.reason}: " + "; ".join(
            part for part in (loads, out) if part
        )


@dataclass(frozen=True, slots=True)
class RunDiverged(Event):
    """Several steps in a row are skipped, or parameters are not finite.

    The run goes back to `version` with `rate` times the scheduled learning rate. Without a `rate` it stops.
    """

    severity: ClassVar[Severity] = "warning"

    step: int
    """The last decided step."""
    reason: str
    version: int
    """The newest checkpoint that is known to be sound: the history goes back to it. 0: to the beginning."""
    rate: float | None
    """Factor of the learning rate's schedule from there on. None: the run stops."""

    def sentence(self) -> str:
        where = f"version {self.version}, the newest checkpoint that is good"
        if self.rate is None:
            return f"the run has diverged: {self.reason}; it stops. Kept: {where}"
        return (
            f"the run has diverged: {self.reason}; it goes back to {where}, with {self.rate:g} times the learning rate"
        )


@dataclass(frozen=True, slots=True)
class OutOfMemory(Event):
    """A peer ran out of memory for `what`. It keeps `now` graphs at once instead of `before`, and does the work again.

    The second time it leaves (`leaves`).
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    what: str
    before: int
    """Number of graphs that it kept between forward and backward."""
    now: int
    leaves: bool

    def sentence(self) -> str:
        if self.leaves:
            return f"{self.actor} is out of memory again, and leaves: {self.what}"
        less = f"does the work again and keeps {self.now} graphs instead of {self.before} from now on"
        return f"{self.actor} is out of memory: {self.what}; it {less}"


@dataclass(frozen=True, slots=True)
class FaultCosted(Event):
    """The cost of a disturbed step or evaluation: seconds above the usual, tokens, microbatches done again.

    For an evaluation (`pass_id` with a `+`), `step` is the last decided one and `usual_s` the usual time of
    evaluations.
    """

    severity: ClassVar[Severity] = "warning"

    pass_id: str
    step: int
    actors: list[str]
    """Actors that were lost, fenced or too slow in it."""
    microbatches: int
    """Microbatches done again, over all stages."""
    seconds: float
    """Seconds that the step took above the usual, with its aborted attempts; not negative."""
    usual_s: float
    """Median seconds of the last undisturbed steps, at most eight; 0 if there was none."""
    tokens: int
    """Tokens that the swarm would have trained in those seconds."""
    reason: str
    reasons: list[str] = field(default_factory=list)
    """The reason for each of the first of `actors`."""

    def sentence(self) -> str:
        again = f"{self.microbatches} microbatches done again"
        return f"step {self.step + 1} lost {self.seconds:.2f} s ({self.tokens:,} tokens): {self.reason}; {again}"
