"""Events of the run as a whole: processes, state, the organiser's commands, and resources."""

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
    """Limit of its sending rate, bytes/s; None: no limit."""

    def sentence(self) -> str:
        limit = "" if self.max_rate is None else f", sends at most {rate(self.max_rate)}"
        return f"{self.role} {self.actor} started, release {self.version}, run {self.run[:16]}{limit}"


@dataclass(frozen=True, slots=True)
class LogContinued(Event):
    """The first event in each part of a log except the first part. It names the process that writes the log, as
    ProcessStarted does.
    """

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
    """The process ends on purpose. If a log does not end with this event, the process was killed or still runs."""

    reason: str

    def sentence(self) -> str:
        return f"stopped: {self.reason}"


@dataclass(frozen=True, slots=True)
class MachineMeasured(Event):
    """A peer's measurements of its machine before it joined, and of its link to the coordinator.

    Seconds are for one microbatch in one layer; sizes are in bytes, rates in bytes/s.
    """

    device: str
    capacity: float
    """Microbatches/s, forward and backward, through the whole model."""
    forward_s: float | None
    """Seconds of a forward pass. None: the capacity was given, not measured."""
    backward_s: float | None
    memory: int
    uplink: float | None
    downlink: float | None
    kept: bool
    """True if the values come from a measurement at an earlier start."""

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
    """A coordinator starts to coordinate under a new term."""

    term: int
    decided: int
    """The last decided step in the decision record; −1 if there is none."""

    def sentence(self) -> str:
        found = f"step {self.decided + 1} is decided" if self.decided >= 0 else "a new run"
        return f"the coordinator starts term {self.term}: {found}"


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """What the coordinator does, in one word, with a reason. Logged when either changes.

    `starting` is logged when a coordinator starts or begins to lead a group, because it has no members at that moment.
    """

    state: str
    """starting, waiting, training, evaluating, sampling, pausing, paused, finishing, finished or stopping."""
    reason: str

    def sentence(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


@dataclass(frozen=True, slots=True)
class RunPaused(Event):
    """No step can be opened; `reason` says why."""

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
    """The decision record was replaced by an older copy: peers have seen later terms than it contains.

    `term` is the record's last term. `next_term` is the term from now on.
    """

    severity: ClassVar[Severity] = "warning"

    term: int
    """The record's last term."""
    next_term: int
    """The term from now on. It is higher than all terms that peers know."""

    def sentence(self) -> str:
        return (
            f"the decision record ends with term {self.term}, but peers have seen later terms: it is an older copy. "
            f"Steps that were decided after it are repeated. The run continues in term {self.next_term}"
        )


@dataclass(frozen=True, slots=True)
class ControlGiven(Event):
    """The organiser's command is in the decision record and takes effect."""

    number: int
    """Number of the command within the run, from 1."""
    command: str
    value: str
    by: str
    why: str

    def sentence(self) -> str:
        if self.command == "admit":
            role = " to observe" if " observe " in self.value else ""
            return f"{self.value[-6:]} is admitted{role} with {self.by}"
        what = f"{self.command} {self.value}".strip()
        return f"command {self.number}, {what}, given by {self.by}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class ControlRefused(Event):
    """A command of the organiser was refused; `reason` says why."""

    severity: ClassVar[Severity] = "warning"

    command: str
    value: str
    by: str
    reason: str

    def sentence(self) -> str:
        return f"command {f'{self.command} {self.value}'.strip()} of {self.by} refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class TrafficMeasured(Event):
    """Bytes sent and received, by channel and including headers, and the rates of incoming links. Padding counts as a
    channel of its own.
    """

    sent: dict[str, int]
    """Bytes by channel since the process started."""
    received: dict[str, int]
    links: dict[str, int] = field(default_factory=dict)
    """Rate of the link from each actor, bytes/s: the median over the last large frames."""

    def sentence(self) -> str:
        links = ", ".join(f"{amount(bytes_per_s)}/s from {sender}" for sender, bytes_per_s in self.links.items())
        total = f"sent {amount(sum(self.sent.values()))}, received {amount(sum(self.received.values()))}"
        return f"{total}; links: {links}" if links else total


@dataclass(frozen=True, slots=True)
class LayersRecomputed(Event):
    """This peer uses activation checkpointing: it keeps only the layers' inputs, and recomputes each layer in backward.

    Otherwise the stage would need `whole` bytes of memory, but only `room` are available.
    """

    stage: int
    whole: int
    room: int
    not_compiled: bool = False
    """True if --compile has no effect for this reason: torch does not compile recomputed layers."""

    def sentence(self) -> str:
        return (
            f"stage {self.stage} would need {amount(self.whole)} of memory, but {amount(self.room)} are available: "
            "this peer recomputes each layer in the backward, which needs less memory and up to a third more time"
            + (", and does not compile them" if self.not_compiled else "")
        )


@dataclass(frozen=True, slots=True)
class OffloadLimited(Event):
    """With --offload, the host's memory limits the stages of this peer: of the card's memory they may take `states`
    bytes instead of `memory`, because they also need memory of the host, of which `host` bytes may be used.
    """

    states: int
    memory: int
    host: int

    def sentence(self) -> str:
        return (
            f"with --offload, a stage also needs memory of the host. This peer may use {amount(self.host)} there, "
            f"which suffices for stages of {amount(self.states)} on the card; the card has {amount(self.memory)}"
        )


@dataclass(frozen=True, slots=True)
class SlowAfterPauses(Event):
    """Another process is `rtt_s` seconds away and back, and this system's TCP, with the congestion control
    `congestion`, sends slowly again after each pause of a connection. From now on, this peer fills pauses with padding.
    """

    congestion: str
    rtt_s: float

    def sentence(self) -> str:
        return (
            f"connections of this system send slowly after each pause (TCP {self.congestion}), and other processes are "
            f"{1000 * self.rtt_s:.0f} ms away and back. So this peer sends padding before its data. This command makes "
            "padding needless, see docs/slow-links.md: sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0"
        )


@dataclass(frozen=True, slots=True)
class SendQueuesUnlimited(Event):
    """This system does not let the peer limit how much data the kernel queues for a connection; `reason`: what it
    answered. So a link that becomes slow or loses packets may break its connection.
    """

    reason: str

    def sentence(self) -> str:
        return (
            f"this system does not let the peer keep the queues of its connections short ({self.reason}), so a slow "
            "link may break a connection. This setting helps, in a container with --sysctl, see docs/slow-links.md: "
            "net.ipv4.tcp_notsent_lowat=32768"
        )


@dataclass(frozen=True, slots=True)
class FreedMemoryReturned(Event):
    """This peer returns freed memory to the system at once, because its stage may need most of the available memory.

    The stage with its graphs may need `needed` bytes, and `room` are available. Memory that is kept for reuse would
    have unusable gaps.
    """

    stage: int
    needed: int
    room: int

    def sentence(self) -> str:
        return (
            f"stage {self.stage} may need {amount(self.needed)} of {amount(self.room)} available memory: this peer "
            "returns freed memory to the system at once, which needs less memory and more time"
        )


@dataclass(frozen=True, slots=True)
class ResourcesMeasured(Event):
    """The resources that a peer has used since its start. Logged when its state is loaded and after each step."""

    version: int
    cpu_seconds: float
    """User and system time of this process."""
    daemon_cpu_seconds: float
    """User and system time of its libp2p daemon."""
    resident_bytes: int
    peak_resident_bytes: int
    peak_retained_bytes: int
    """Largest size of the encoded frames kept for one pass, in memory and on disk together."""
    tasks: int = 0
    """Number of tasks in the event loop of its process."""

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
