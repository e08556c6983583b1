"""Membership: peers that come, go and move, and the peers that serve each stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity
from swarm.events.wording import stage_name


@dataclass(frozen=True, slots=True)
class PeerSeen(Event):
    """A peer contacts this coordinator for the first time. It is a member until PeerLost or PeerGone."""

    actor: str

    def sentence(self) -> str:
        return f"{self.actor} connected"


@dataclass(frozen=True, slots=True)
class PeerDescribed(Event):
    """A peer's description of its machine, when it joins and when that changes. The texts are the peer's own."""

    actor: str
    machine: dict[str, str | float]
    """Flat: `device`, `processor`, `cores`, `threads`, `memory` (bytes), `gpu_memory` (bytes), `system`, `release`,
    `process` (random, the same for all peers of one process).

    Keys that the peer cannot read are missing. Texts come from the peer: at most 80 characters each.
    """

    def sentence(self) -> str:
        return f"{self.actor} runs on {', '.join(f'{key} {value}' for key, value in self.machine.items())}"


@dataclass(frozen=True, slots=True)
class PeerJoined(Event):
    """A peer holds a stage, or stands by (`stage` null). In a peer's own log: its state is loaded."""

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
    """Microbatches that the swarm gains, for the expected life of the arrangement."""
    cost: float
    """Microbatches that the swarm loses while the peer downloads its new stage."""
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} moves from stage {self.source} to {self.stage}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerLeaving(Event):
    """A peer is leaving. It hands on its work and is gone in `leaves_in_s` at most."""

    actor: str
    stage: int | None
    reason: str
    leaves_in_s: float
    """At most: earlier, once nothing depends on it."""

    def sentence(self) -> str:
        return (
            f"{self.actor} of {stage_name(self.stage)} is leaving ({self.reason}): "
            f"gone in {self.leaves_in_s:.0f} s at most"
        )


@dataclass(frozen=True, slots=True)
class PeerPaused(Event):
    """A peer computes no microbatches for now, as its owner has set.

    It hands on its work, and goes on applying what is decided.
    """

    actor: str
    stage: int | None
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} of {stage_name(self.stage)} is paused: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerResumed(Event):
    """The peer's pause is over: it gets work again."""

    actor: str
    stage: int | None
    reason: str
    """Why it was paused, as last told."""

    def sentence(self) -> str:
        return f"{self.actor} of {stage_name(self.stage)} goes on; it was paused: {self.reason}"


@dataclass(frozen=True, slots=True)
class PeerGone(Event):
    """A member left because it was told to: the run is over, or it was dismissed."""

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
    """The handshake refused a connection. The 1st to 10th of a peer, the 100th, … are logged."""

    severity: ClassVar[Severity] = "warning"

    peer: str
    reason: str
    count: int = 1

    def sentence(self) -> str:
        return f"{self.peer} was refused ({self.count} so far): {self.reason}"


@dataclass(frozen=True, slots=True)
class MemberSlowed(Event):
    """The devices of one pass send more messages than are read of a pass. The 1st to 10th time of an actor, the 100th,
    … are logged.
    """

    severity: ClassVar[Severity] = "warning"

    actor: str
    wait_s: float
    """Seconds for which nothing more was read from one of its streams."""
    count: int = 1

    def sentence(self) -> str:
        return (
            f"{self.actor} and the other devices of its pass send too many messages ({self.count} waits so far): "
            f"one stream was not read for {self.wait_s:.2g} s"
        )


@dataclass(frozen=True, slots=True)
class DuplicateIdentity(Event):
    """Two live processes use one key, because a home was copied. The older one leaves."""

    severity: ClassVar[Severity] = "warning"

    older: str
    """The process that must leave."""
    newer: str | None
    """None: the older process does not know it."""

    def sentence(self) -> str:
        return (
            f"two processes use one key: {self.older}, which must leave, and {self.newer or 'a newer one'}. "
            "If a home was copied to another machine, delete identity.key in the copy, or join there with a new home: "
            "swarm-peer join --home OTHER"
        )


@dataclass(frozen=True, slots=True)
class ManyReplicas(Event):
    """The planned number of replicas is too high: in more than one reduction in ten a replica dies, and it restarts.

    The plan is kept; the event is logged once.
    """

    planned: int
    advised: int
    reduce_s: float
    """Seconds of a reduction."""
    departures_per_hour: float
    """Of one peer."""

    def sentence(self) -> str:
        return (
            f"swarm.replicas = {self.planned} is too many: a reduce takes {self.reduce_s:.3g} s and a peer leaves "
            f"{self.departures_per_hour:.2g} times an hour, so a replica dies in more than one reduce in ten. "
            f"Use {self.advised} replicas and more stages, or compressed sums (sums.averaging)"
        )


@dataclass(frozen=True, slots=True)
class SeatAsked(Event):
    """No other peer can hold a stage, so one peer's process is asked to host another peer."""

    actor: str
    stage: int
    seats: int

    def sentence(self) -> str:
        return f"stage {self.stage} has no peer: {self.actor} is asked to host {self.seats} peers in its process"


@dataclass(frozen=True, slots=True)
class SeatTaken(Event):
    """This process hosts one more peer, as the coordinator asked. That peer logs to `home`."""

    seat: int
    home: str
    reason: str

    def sentence(self) -> str:
        return f"hosts one more peer in seat {self.seat} ({self.reason}); its home is {self.home}"


@dataclass(frozen=True, slots=True)
class SeatLeft(Event):
    """A hosted peer has ended. The other peers of this process continue."""

    seat: int
    reason: str

    def sentence(self) -> str:
        return f"seat {self.seat} is free again: {self.reason}"


@dataclass(frozen=True, slots=True)
class TableChanged(Event):
    """The peers that serve a stage, and their weights. Logged when they differ from the last logged ones."""

    pass_id: str
    stage: int
    number: int
    """Number of the table (StageTable.number)."""
    roster: list[str]
    weights: list[float]
    """By roster member: its relative speed, by which microbatches are divided. Four significant digits."""
    rates: list[float]
    """By roster member: the planner's microbatches/s in this stage. Three significant digits."""
    reason: str

    def sentence(self) -> str:
        shares = ", ".join(f"{a} ×{w:g}" for a, w in zip(self.roster, self.weights, strict=False))
        return f"stage {self.stage} is served by {shares or 'nobody'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ShareChanged(Event):
    """A replica has become twice as slow or as fast as when this was last logged, and its share has changed."""

    actor: str
    stage: int
    before: float
    """Seconds."""
    seconds: float
    microbatches: int
    """Its share of the step that opens."""

    def sentence(self) -> str:
        share = f"now does {self.microbatches} microbatches of stage {self.stage}"
        return f"{self.actor} needs {self.seconds:.3g} s per microbatch (was {self.before:.3g} s); it {share}"


@dataclass(frozen=True, slots=True)
class PlannerLooked(Event):
    """The planner's view: rates by stage, the slowest stage, and the planned move. Logged when `reason` changes."""

    slowest: int
    """The stage that limits the swarm."""
    rates: list[float]
    """By stage, microbatches/s."""
    reason: str
    actor: str = ""
    """The peer that is to move; empty: none."""
    source: int = -1
    stage: int = -1
    gain: float = 0.0
    """Microbatches within the planner's horizon."""

    def sentence(self) -> str:
        return f"planner: {self.reason}"
