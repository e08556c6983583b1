"""The run as a whole: its processes, its state, the organiser's commands, and the resources it uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import amount, rate


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    """A process has started. `role`: peer or coordinator; `version`: the release."""

    role: str
    actor: str
    run: str
    version: str
    max_rate: int | None = None
    """Bytes/s that it sends at most."""

    def sentence(self) -> str:
        limit = "" if self.max_rate is None else f", sends at most {rate(self.max_rate)}"
        return f"{self.role} {self.actor} started, release {self.version}, run {self.run[:16]}{limit}"


@dataclass(frozen=True, slots=True)
class LogContinued(Event):
    """The first event of each further part of a log: whose log it is, as its ProcessStarted said."""

    role: str
    actor: str
    run: str
    version: str
    part: int
    """Number of this part, counted from 1."""

    def sentence(self) -> str:
        return f"part {self.part} of the log of {self.role} {self.actor}"


@dataclass(frozen=True, slots=True)
class ProcessStopped(Event):
    """The process ends on purpose. A log without this last event belongs to a process that was killed."""

    reason: str

    def sentence(self) -> str:
        return f"stopped: {self.reason}"


@dataclass(frozen=True, slots=True)
class MachineMeasured(Event):
    """A peer's measurements of its own machine before it joined. The link is the one to the coordinator.

    Seconds are for one microbatch through one layer; sizes in bytes, rates in bytes/s.
    """

    device: str
    capacity: float
    """Microbatches/s, forward and backward, through the whole model."""
    forward_s: float | None
    """None: the capacity was given, not measured."""
    backward_s: float | None
    memory: int
    uplink: float | None
    downlink: float | None
    kept: bool
    """Whether the speed was measured in an earlier start."""

    def sentence(self) -> str:
        layer = ""
        if self.forward_s is not None and self.backward_s is not None:
            layer = f" (one layer {1000 * self.forward_s:.3g} + {1000 * self.backward_s:.3g} ms"
            layer += ", measured earlier)" if self.kept else ")"
        links = [
            f"{what} {rate(r)}" for what, r in (("sends", self.uplink), ("receives", self.downlink)) if r is not None
        ]
        link = "; ".join(links) if links else "link not measured"
        speed = f"{self.capacity:.3g} microbatches/s of the whole model{layer}"
        return f"this machine, {self.device}: {speed}; {amount(self.memory)} of memory to plan with; {link}"


@dataclass(frozen=True, slots=True)
class CoordinatorStarted(Event):
    """A coordinator takes over under a new term."""

    term: int
    decided: int
    """Last decided step found in the decision record, −1 for none."""

    def sentence(self) -> str:
        found = f"step {self.decided + 1} is decided" if self.decided >= 0 else "a fresh run"
        return f"coordinator takes term {self.term}: {found}"


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """The coordinator's state in one word, with the core's reason. Logged when either changes.

    `starting` opens each life of a coordinator, and each time it begins to lead a group: it has no members yet.
    """

    state: str
    """starting, waiting, training, evaluating, sampling, pausing, paused, finishing, finished or stopping."""
    reason: str

    def sentence(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


@dataclass(frozen=True, slots=True)
class RunPaused(Event):
    """No step can be opened, and why."""

    severity: ClassVar[Severity] = "warning"

    reason: str

    def sentence(self) -> str:
        return f"no step can start: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """All steps are decided, applied and archived."""

    step: int
    reason: str

    def sentence(self) -> str:
        return f"finished after step {self.step + 1}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RecordOutdated(Event):
    """The decision record is an older copy of itself: peers have heard of later terms than it knows.

    `term` is the record's last term, `next_term` the term from now on.
    """

    severity: ClassVar[Severity] = "warning"

    term: int
    """The record's last term."""
    next_term: int
    """The term from now on, above the peers' terms."""

    def sentence(self) -> str:
        return (
            f"the decision record ends with term {self.term}, but peers have heard of later ones: it is an older copy. "
            f"Steps decided since are done again. The run continues in term {self.next_term}"
        )


@dataclass(frozen=True, slots=True)
class ControlGiven(Event):
    """The organiser's command is in the decision record and takes effect."""

    number: int
    """Counts the commands of the run from 1."""
    command: str
    value: str
    by: str
    why: str

    def sentence(self) -> str:
        if self.command == "admit":
            return f"{self.value[-6:]} may take part: it has come with {self.by}"
        what = f"{self.command} {self.value}".strip()
        return f"command {self.number}, {what}, given by {self.by}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class ControlRefused(Event):
    """A command that cannot be carried out, and why."""

    severity: ClassVar[Severity] = "warning"

    command: str
    value: str
    by: str
    reason: str

    def sentence(self) -> str:
        return f"command {f'{self.command} {self.value}'.strip()} of {self.by} refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class TrafficMeasured(Event):
    """Bytes sent and received by channel, headers included, and the rates of incoming links."""

    sent: dict[str, int]
    """Bytes by channel since the process started."""
    received: dict[str, int]
    links: dict[str, int] = field(default_factory=dict)
    """Bytes/s received from other actors while large frames arrived, the median of the last ones."""

    def sentence(self) -> str:
        links = ", ".join(f"{amount(bytes_per_s)}/s from {sender}" for sender, bytes_per_s in self.links.items())
        total = f"sent {amount(sum(self.sent.values()))}, received {amount(sum(self.received.values()))}"
        return f"{total}; links: {links}" if links else total


@dataclass(frozen=True, slots=True)
class LayersRecomputed(Event):
    """This peer keeps only what goes into each layer: a backward computes one layer after another again.

    The graph of a whole microbatch has no room: the stage would take `whole` bytes, and `room` are there.
    """

    stage: int
    whole: int
    room: int
    not_compiled: bool = False
    """Whether --compile has no effect for that reason: torch compiles no layers that are computed again."""

    def sentence(self) -> str:
        return (
            f"stage {self.stage} would take {amount(self.whole)}, of which {amount(self.room)} are there: this peer "
            "computes each layer again in its backward, which takes less memory and up to a third more time"
            + (", and does not compile them" if self.not_compiled else "")
        )


@dataclass(frozen=True, slots=True)
class FreedMemoryReturned(Event):
    """This peer returns memory to the system as soon as it is freed, since its stage may take much of what is there.

    The stage may take `needed` bytes with its graphs, and `room` are there. Kept memory has gaps.
    """

    stage: int
    needed: int
    room: int

    def sentence(self) -> str:
        return (
            f"stage {self.stage} may take {amount(self.needed)} of the {amount(self.room)} that are there: this peer "
            "returns memory as soon as it is freed, which takes less memory and more time"
        )


@dataclass(frozen=True, slots=True)
class ResourcesMeasured(Event):
    """A peer's use of its machine so far. Logged when its state is loaded and after each step."""

    version: int
    cpu_seconds: float
    """User and system time of this process."""
    daemon_cpu_seconds: float
    """The same of its libp2p daemon."""
    resident_bytes: int
    peak_resident_bytes: int
    peak_retained_bytes: int
    """Most encoded frames kept for one pass, memory and disk together, in bytes."""
    tasks: int = 0
    """Number of tasks in its event loop."""

    def sentence(self) -> str:
        cpu = f"{self.cpu_seconds:.1f} s of CPU, daemon {self.daemon_cpu_seconds:.1f} s"
        memory = f"{amount(self.resident_bytes)} resident, peak {amount(self.peak_resident_bytes)}"
        kept = f"kept frames peak {amount(self.peak_retained_bytes)}"
        return f"version {self.version}: {cpu}; {memory}; {kept}; {self.tasks} tasks"


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop did not run for this long: the machine is overloaded."""

    severity: ClassVar[Severity] = "warning"

    seconds: float

    def sentence(self) -> str:
        return f"the event loop was blocked for {self.seconds:.2f} s"
