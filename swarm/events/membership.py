"""Events of membership: peers that join, leave and move, and the peers that serve each stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import amount, stage_name


@dataclass(frozen=True, slots=True)
class PeerSeen(Event):
    """A peer contacts this coordinator for the first time. It is a member until PeerLost or PeerGone."""

    actor: str

    def sentence(self) -> str:
        return f"{self.actor} connected"


@dataclass(frozen=True, slots=True)
class PeerDescribed(Event):
    """A peer's description of its machine, logged when it joins and when the description changes."""

    actor: str
    machine: dict[str, str | float]
    """`device`, `processor`, `cores`, `threads`, `memory` (bytes), `gpu_memory` (bytes), `system`, `release`, `process`
    (random, the same for all peers of one process).

    Keys that the peer cannot determine are missing. The peer chooses the texts, of at most 80 characters each.
    """

    def sentence(self) -> str:
        return f"{self.actor} runs on {', '.join(f'{key} {value}' for key, value in self.machine.items())}"


@dataclass(frozen=True, slots=True)
class PeerJoined(Event):
    """A peer has the state of a stage, or is a standby (`stage` null). In a peer's own log: it has loaded its state."""

    actor: str
    stage: int | None
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} joined {stage_name(self.stage)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerMoved(Event):
    """A peer is told to leave its stage for another one."""

    actor: str
    source: int
    stage: int
    gain: float
    """Number of microbatches that the swarm gains while the new arrangement is expected to last."""
    cost: float
    """Number of microbatches that the swarm loses while the peer downloads its new stage."""
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} moves from stage {self.source} to {self.stage}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerLeaving(Event):
    """A peer is leaving. It hands its work to others, and ends after `leaves_in_s` seconds at most."""

    actor: str
    stage: int | None
    reason: str
    leaves_in_s: float
    """Seconds after which the peer ends at the latest. It leaves earlier if nothing depends on it any more."""

    def sentence(self) -> str:
        return (
            f"{self.actor} of {stage_name(self.stage)} is leaving ({self.reason}): "
            f"it leaves within {self.leaves_in_s:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class PeerPaused(Event):
    """A peer computes no microbatches for now, because of its owner's settings.

    It hands its work to others, and still applies the decided steps.
    """

    actor: str
    stage: int | None
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} of {stage_name(self.stage)} is paused: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerTroubled(Event):
    """A peer reports its own trouble to the coordinator: it cannot get the state of its stage, catch up, or write a
    checkpoint. The reason may name other peers, such as a donor whose disk is full.
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int | None
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} ({stage_name(self.stage)}) reports: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerResumed(Event):
    """A peer's pause is over: it gets work again."""

    actor: str
    stage: int | None
    reason: str
    """The reason of the pause, as last reported."""

    def sentence(self) -> str:
        return f"{self.actor} of {stage_name(self.stage)} works again; it was paused: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerGone(Event):
    """A member left because the coordinator told it to: the run is over, or the peer was dismissed."""

    actor: str
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} has left: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerLost(Event):
    """A member left by itself, or its connection broke."""

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int | None
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} of {stage_name(self.stage)} is lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerRefused(Event):
    """The handshake refused a connection. Logged for the 1st to 10th refusal of a peer, the 100th, the 1000th, …"""

    severity: ClassVar[Severity] = "warning"

    peer: str
    reason: str
    count: int = 1

    def sentence(self) -> str:
        return f"{self.peer} was refused ({self.count} so far): {self.reason}"


@dataclass(frozen=True, slots=True)
class FloodNoticed(Event):
    """An address makes connections much faster than a peer does. Logged for the 1st to 10th time, the 100th, …"""

    severity: ClassVar[Severity] = "warning"

    address: str
    """With its prefix length: one IPv4 address, or an IPv6 network of 64 bits."""
    connections: int
    seconds: float
    """In which it made these connections."""
    blocked_s: float
    """For which it can make no new connection."""
    why_not: str = ""
    """Why the system does not let this process block it; empty: it is blocked."""
    count: int = 1

    def sentence(self) -> str:
        made = f"{self.address} made {self.connections} connections in {self.seconds:.0f} s"
        if self.why_not:
            return f"{made}. This process cannot block it ({self.why_not}): a firewall can, as with deploy/flood.nft"
        return f"{made}. It can make no new connection for {self.blocked_s:.0f} s (event {self.count} of this address)"


@dataclass(frozen=True, slots=True)
class MemberSlowed(Event):
    """The devices of one pass send more messages than a pass may send. Logged for the 1st to 10th time of an actor, the
    100th, …
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    wait_s: float
    """Seconds for which one of its streams was not read."""
    count: int = 1

    def sentence(self) -> str:
        return (
            f"{self.actor} and the other devices of its pass send too many messages: this process did not read one of "
            f"its streams for {self.wait_s:.2g} s ({self.count} such pauses so far)"
        )


@dataclass(frozen=True, slots=True)
class RequesterSlowed(Event):
    """A device fetches the same state or sums from this process again and again. It gets one more copy every ten
    minutes. Logged once per device.
    """

    severity: ClassVar[Severity] = "warning"

    peer: str
    nbytes: int
    """Size of what it fetches."""

    def sentence(self) -> str:
        return (
            f"{self.peer} has fetched the same {amount(self.nbytes)} from this process several times: "
            "it gets them more slowly from now on"
        )


@dataclass(frozen=True, slots=True)
class DuplicateIdentity(Event):
    """Two running processes use the same key, because a home was copied. The older process leaves."""

    severity: ClassVar[Severity] = "warning"

    older: str
    """The process that must leave."""
    newer: str | None
    """The process that stays. None if the older process logs this event and does not know the newer one."""

    def sentence(self) -> str:
        return (
            f"two processes use the same key: {self.older}, which must leave, and {self.newer or 'a newer one'}. "
            "If a home was copied to another machine, delete identity.key in the copy, or join there with a new home: "
            "swarm-peer join --home OTHER"
        )


@dataclass(frozen=True, slots=True)
class CoordinatorCopied(Event):
    """A peer follows another process with this coordinator's key, because a home was copied. That process does not
    answer this one, which waits.
    """

    severity: ClassVar[Severity] = "warning"

    by: str
    """Peer id of the peer."""
    addresses: list[str]
    """Where the other process says that it listens."""

    def sentence(self) -> str:
        where = f", at {', '.join(self.addresses)}" if self.addresses else ""
        return (
            f"{self.by[-6:]} follows another process with this coordinator's key{where}. That process does not answer "
            "here, so this one waits until it ends. Only one may coordinate: stop one of the two"
        )


@dataclass(frozen=True, slots=True)
class ManyReplicas(Event):
    """The planned number of replicas is too high: more than one reduction in ten restarts because a replica dies.

    The plan is not changed. The event is logged once.
    """

    planned: int
    advised: int
    reduce_s: float
    """Seconds of a reduction."""
    departures_per_hour: float
    """Departures of one peer per hour."""

    def sentence(self) -> str:
        return (
            f"swarm.replicas = {self.planned} is too many: a reduce takes {self.reduce_s:.3g} s and a peer leaves "
            f"{self.departures_per_hour:.2g} times an hour, so a replica dies in more than one reduce in ten. "
            f"Use {self.advised} replicas and more stages, or sums in fewer bits (sums.averaging)"
        )


@dataclass(frozen=True, slots=True)
class SeatAsked(Event):
    """A stage has no peer and no free peer can take it. So a peer's process is asked to run one more peer, in another
    seat.
    """

    actor: str
    stage: int
    seats: int

    def sentence(self) -> str:
        return f"stage {self.stage} has no peer: {self.actor} is asked to host {self.seats} peers in its process"


@dataclass(frozen=True, slots=True)
class SeatTaken(Event):
    """This process hosts one more peer, as the coordinator requested. The new peer writes its log to `home`."""

    seat: int
    home: str
    reason: str

    def sentence(self) -> str:
        return f"this process hosts one more peer, in seat {self.seat} ({self.reason}); its home is {self.home}"


@dataclass(frozen=True, slots=True)
class SeatLeft(Event):
    """A peer in an additional seat has ended. The other peers of this process continue."""

    seat: int
    reason: str

    def sentence(self) -> str:
        return f"seat {self.seat} is free again: {self.reason}"


@dataclass(frozen=True, slots=True)
class TableChanged(Event):
    """A table of a stage: the peers that serve it, and their weights. Logged when peers or weights have changed."""

    pass_id: str
    stage: int
    number: int
    """Number of the table (StageTable.number)."""
    roster: list[str]
    weights: list[float]
    """Relative speed of each roster member. Microbatches are divided in this ratio. Four significant digits."""
    rates: list[float]
    """Microbatches/s of each roster member in this stage, as the planner estimates. Three significant digits."""
    reason: str

    def sentence(self) -> str:
        shares = ", ".join(f"{a} ×{w:g}" for a, w in zip(self.roster, self.weights, strict=False))
        return f"stage {self.stage} is served by {shares or 'nobody'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SumsMisreported(Event):
    """A peer has reported something about its stage's sums that is wrong: most replicas report otherwise about the same
    bytes. Their word counts, and the peer goes on probation.
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int
    pass_id: str
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} of stage {self.stage} is not believed in {self.pass_id}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerDelays(Event):
    """A peer has held up several steps for longer than its work shortens them, or a single one until it was removed
    from it. It gets less work: it goes on probation. If it is alone in its stage, another peer may take a place beside
    it.
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int
    pass_id: str
    seconds: float
    """Seconds for which it held up this step, and in which others did its work again. The former count twice if it may
    be another peer that held it up.
    """
    saved: float
    """Seconds by which its work shortened this step."""
    strikes: int
    """It has so many strikes: after so many decided steps with its work, it gets its whole share again."""
    alone: bool = False
    """True if its stage has no other peer. Then it is not left out, but another peer may take a place beside it."""
    steps: int = 0
    """It is left out of so many steps, and then tried with one microbatch."""

    def sentence(self) -> str:
        if self.alone:
            held = f"{self.actor}, which is alone in its stage, held up {self.pass_id} for {self.seconds:.3g} s"
            return f"{held}; another peer may take a place beside it"
        saved = f"its work saved {self.saved:.3g} s"
        then = f"it is left out of {self.steps} steps and then gets" if self.steps else "it gets"
        return f"{self.actor} held up {self.pass_id} for {self.seconds:.3g} s, but {saved}; {then} one microbatch"


@dataclass(frozen=True, slots=True)
class ShareChanged(Event):
    """A replica's time per microbatch has at least doubled or halved since this event was last logged, and its share
    has changed.
    """

    actor: str
    stage: int
    before: float
    """Seconds per microbatch when this event was last logged."""
    seconds: float
    microbatches: int
    """Number of microbatches that the replica computes in the new step."""

    def sentence(self) -> str:
        share = f"now does {self.microbatches} microbatches of stage {self.stage}"
        return f"{self.actor} needs {self.seconds:.3g} s per microbatch (was {self.before:.3g} s); it {share}"


@dataclass(frozen=True, slots=True)
class PlannerLooked(Event):
    """The planner's result: the rates of the stages, the slowest stage, and the planned move. Logged when `reason`
    changes.
    """

    slowest: int
    """The stage that limits the swarm."""
    rates: list[float]
    """Microbatches/s of each stage."""
    reason: str
    actor: str = ""
    """The peer that is to move; empty: none."""
    source: int = -1
    stage: int = -1
    gain: float = 0.0
    """Number of additional microbatches that the move gives within the period that the planner considers."""

    def sentence(self) -> str:
        return f"planner: {self.reason}"
