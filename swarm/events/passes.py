"""Events of passes: steps, evaluations and samples, from opening to result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import microbatch_list, printable, replicas


@dataclass(frozen=True, slots=True)
class PassOpened(Event):
    """A pass begins: a training step, an evaluation, or a text sample. `replicas`: peers per stage."""

    pass_id: str
    pass_kind: str
    """train, evaluate or generate."""
    replicas: list[int]
    microbatches: int = 0

    def sentence(self) -> str:
        return f"{self.pass_kind} {self.pass_id} opened, peers {replicas(self.replicas)}"


@dataclass(frozen=True, slots=True)
class PassProgress(Event):
    """Progress of the open training pass. Logged at each heartbeat if it has changed, and less often in large
    swarms.
    """

    pass_id: str
    stages: list[list[int]]
    """For each stage: number of microbatches accumulated, forwarded, and in total."""
    peers: list[list[list[int]]] = field(default_factory=list)
    """For each stage and roster member: microbatches accumulated, forwarded, and assigned. Empty above 256 peers."""

    def sentence(self) -> str:
        done = ", ".join(f"stage {s}: {a} of {m}" for s, (a, _, m) in enumerate(self.stages))
        return f"{self.pass_id}: microbatches accumulated: {done}"


@dataclass(frozen=True, slots=True)
class MicrobatchForwarded(Event):
    """A peer has computed the forward of a microbatch."""

    pass_id: str
    microbatch: int

    def sentence(self) -> str:
        return f"{self.pass_id}: microbatch {self.microbatch} forwarded"


@dataclass(frozen=True, slots=True)
class MicrobatchAccumulated(Event):
    """The gradient of a microbatch was added to the sums of the peer."""

    pass_id: str
    microbatch: int

    def sentence(self) -> str:
        return f"{self.pass_id}: microbatch {self.microbatch} accumulated"


@dataclass(frozen=True, slots=True)
class ReduceStarted(Event):
    """A stage begins to add up its gradients, or continues under a new table with the parts that remain valid.

    `microbatches`: the microbatches in this peer's sums.
    """

    attempt: str
    microbatches: list[int]

    def sentence(self) -> str:
        return f"{self.attempt}: reduction of {microbatch_list(self.microbatches)} started"


@dataclass(frozen=True, slots=True)
class ReduceCancelled(Event):
    """An attempt to add up a stage's gradients is cancelled. Another attempt follows."""

    attempt: str
    reason: str

    def sentence(self) -> str:
        return f"{self.attempt}: reduction cancelled: {self.reason}"


@dataclass(frozen=True, slots=True)
class StagePrepared(Event):
    """A replica has the whole summed gradient of its stage. `digest` is the hash of this gradient."""

    attempt: str
    digest: str

    def sentence(self) -> str:
        return f"{self.attempt}: ready to apply, digest of the gradient {self.digest[:16]}"


@dataclass(frozen=True, slots=True)
class StepDecided(Event):
    """The decision about the step is on disk. From then on it is final, whichever actor dies."""

    term: int
    step: int
    scale: float
    loss: float
    gradient_norm: float
    tokens: int
    outcomes: list[str]
    without: list[str]
    """Actors that died after the others had the whole gradient. The step was decided without them."""
    key_frames: list[str] = field(default_factory=list)
    """For each boundary 1, 2, …, a hexadecimal number. Bit m is set if microbatch m was sent as a key frame. Empty if
    the codec has no key frames.
    """
    leader: str = ""
    """The coordinator that decided, in a run with a group of coordinators."""
    assignments: list[list[int]] = field(default_factory=list)
    """For each stage and microbatch, the replica that added it, as an index into the roster of the stage's last
    TableChanged.
    """
    rate: float = 1.0
    """The organiser's factor on the scheduled learning rate."""

    def sentence(self) -> str:
        return step_line(self, None)


@dataclass(frozen=True, slots=True)
class CodecChosen(Event):
    """The codec of a boundary from `step` on, in a run with `codec = "auto"`. `before`: the previous codec."""

    step: int
    boundary: int
    direction: str
    codec: str
    before: str
    """The previous codec. Empty for the first choice since the coordinator started."""
    reason: str

    def sentence(self) -> str:
        arrow = "→" if self.direction == "forward" else "←"
        what = f"{self.codec} instead of {self.before}" if self.before else self.codec
        where = f"stages {self.boundary - 1} {arrow} {self.boundary}"
        return f"{where}: {what} from step {self.step + 1} on: {self.reason}"


@dataclass(frozen=True, slots=True)
class StepApplied(Event):
    """A peer has applied the step. `digest` is a hash over the digests of all steps so far."""

    step: int
    digest: str
    """The hash over the digests of all steps up to this one."""

    def sentence(self) -> str:
        return f"step {self.step + 1} applied, digest {self.digest[:16]}"


@dataclass(frozen=True, slots=True)
class StepMeasured(Event):
    """Measurements of a finished step, for people and metrics."""

    step: int
    seconds: float
    tokens_per_second: float
    efficiency: float
    replicas: list[int]

    def sentence(self) -> str:
        return (
            f"step {self.step + 1} took {self.seconds:.2f} s, {self.tokens_per_second:,.0f} tok/s, "
            f"efficiency {self.efficiency:.2f}, peers {replicas(self.replicas)}"
        )


@dataclass(frozen=True, slots=True)
class PeerWorked(Event):
    """A peer's own measurement of its work in one pass. There is one event per step and peer."""

    actor: str
    stage: int
    pass_id: str
    seconds: dict[str, float]
    """Seconds of forward, backward, waiting, reducing, applying and recovering. Together they make up the peer's whole
    step.

    `waiting`: waiting for input. `recovering`: work repeated after a fault.
    """
    spans: list[list[int | str]] = field(default_factory=list)
    """At most 64 of [kind, first microbatch (−1: none), start, length]. Times are milliseconds since this peer received
    `Open`.

    The kinds are those of `seconds`. Adjacent spans of one kind are merged. Empty on slow links and in large swarms.
    """
    usage: dict[str, float] = field(default_factory=dict)
    """Use of the machine: cpu (cores in use), resident and gpu_memory (bytes), temperature (°C), power (W). Values that
    cannot be read are missing.
    """
    links: list[dict[str, str | float | dict[str, int]]] = field(default_factory=list)
    """At most 32 of {other, rate (bytes/s), rtt_s, via, sent: {kind: bytes since the last report}}.

    Kinds: forward, backward, sums, state, control. Keys without a value are missing. `rate` is the rate towards
    `other`, which measures it. So a peer's own log does not contain it.
    """

    def sentence(self) -> str:
        spent = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in self.seconds.items())
        return f"{self.actor} of stage {self.stage} in pass {self.pass_id}: {spent}"


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    """The held-out loss of a version."""

    version: int
    loss: float
    """Nats per target."""
    targets: int
    """Number of predicted tokens or images."""

    def sentence(self) -> str:
        return f"held-out loss {self.loss:.4f} at version {self.version} ({self.targets:,} predictions)"


@dataclass(frozen=True, slots=True)
class EvaluationDropped(Event):
    """An evaluation or sample took too long or failed. It is cancelled, and training continues."""

    severity: ClassVar[Severity] = "warning"

    version: int
    reason: str
    who: list[str]
    """Actors that had work in it and finished none of it."""

    def sentence(self) -> str:
        late = f"; {', '.join(self.who)} had unfinished work" if self.who else ""
        return f"the evaluation of version {self.version} is cancelled and training continues: {self.reason}{late}"


@dataclass(frozen=True, slots=True)
class Sampled(Event):
    """Text generated through the pipeline."""

    version: int
    prompt: str
    text: str

    def sentence(self) -> str:
        return f"sample at version {self.version}: {self.prompt}{self.text}"


def step_line(decided: StepDecided, measured: StepMeasured | None, steps: int | None = None) -> str:
    """A line that describes a step. `steps`: number of steps in the run. In the line, steps count from 1."""
    of = f"/{steps}" if steps is not None else ""
    parts = [f"step {decided.step + 1}{of}", f"loss {decided.loss:.4f}", f"norm {decided.gradient_norm:.3g}"]
    if decided.key_frames:
        parts.append(f"key frames {sum(int(bits, 16).bit_count() for bits in decided.key_frames)}")
    if measured is not None:
        parts += [
            f"{measured.tokens_per_second:,.0f} tok/s",
            f"efficiency {measured.efficiency:.2f}",
            f"peers {replicas(measured.replicas)}",
        ]
    if decided.scale == 0.0:
        parts.append("SKIPPED: non-finite gradient")
    if decided.leader:
        parts.append(f"leader {decided.leader}")
    if decided.without:
        parts.append(f"without {printable(', '.join(decided.without))}, lost after the others were prepared")
    return "  ".join(parts)
