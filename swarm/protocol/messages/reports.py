"""Messages from peers to the coordinator, on which its decisions depend."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, StageIndex
from swarm.protocol.messages.frames import Receipt
from swarm.protocol.messages.link_measurement import LinkRate
from swarm.protocol.stage_needs import ComputeKind

MAX_AWAITED = 8
"""Largest number of actors in `Status.awaited`."""
MAX_PAUSED = 80
"""Largest length of the reason for a pause, in characters."""
MAX_SEATS = 16
"""Largest number of peers in one process."""


@dataclass(frozen=True, slots=True)
class Seating:
    """A peer's description of its process, if the process can run several peers."""

    peers: tuple[str, ...]
    """The ids of all peers in the process, the sender included, in the order in which they were added."""
    grows: bool = False
    """True if the process adds one more peer when the coordinator asks the sender for it (TakeSeats)."""
    on_call: bool = False
    """True if the sender was added because the coordinator asked for it. It leaves when the coordinator asks
    (LeaveSeat).
    """


@dataclass(frozen=True, slots=True)
class Means:
    """The resources of a peer. The fields have the same meaning as in Join."""

    capacity: float = 1.0
    memory: int | None = None
    uplink: float | None = None
    downlink: float | None = None
    seating: Seating | None = None
    kind: ComputeKind = ComputeKind.HOST_FP32


@dataclass(frozen=True, slots=True)
class Join:
    """A peer without a stage introduces itself. It repeats this until it gets a stage. `stage`: the stage of its newest
    checkpoint on disk.
    """

    actor: Actor
    stage: StageIndex | None = None
    capacity: float = 1.0
    """Microbatches per second, forward and backward, through the whole model."""
    sequence: int = 0
    """The same as `Status.sequence`."""
    memory: int | None = None
    """Bytes of its device's memory for the peer and all other peers of its process together; None: unknown."""
    uplink: float | None = None
    """Bytes per second that it can send, as measured or as its owner limits it; None: unknown."""
    downlink: float | None = None
    """Bytes per second that it can receive, as measured; None: unknown."""
    seating: Seating | None = None
    """The process in which the peer runs. None: the process runs only this peer and adds no others."""
    paused: str = ""
    """The same as `Status.paused`."""
    kind: ComputeKind = ComputeKind.HOST_FP32
    """How it computes. The memory that a stage needs depends on this."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The sender has all buckets of the attempt. It keeps the reduced gradient in a separate buffer."""

    attempt: Attempt
    digest: str
    squared_norm: float
    loss_sum: float
    finite: bool = True
    receipt: Receipt | None = None
    """The receipt of the whole stage; None if no codec in the run builds on earlier visits."""
    shared: str = ""
    """Digest of the reduced gradients of parameters that another stage shares. That stage must report the same. Empty:
    no shared parameters.
    """
    state: int = 0
    """Checksum of the parameters and moments before this step. All replicas must report the same."""
    spoilt: bool = False
    """True if some of these parameters or moments are not finite."""
    unusable: bool = False
    """True if some of them are not finite, or so large that computing with them overflows."""
    sketch: bytes = field(default=b"", repr=False)
    """Sketches of the gradients that the sender itself accumulated: first of the parameters of its stage alone, then of
    shared ones.

    The signs of the projections follow from `digest`. Empty if steps are not audited, or if the sums are not finite.
    """
    seal: int = 0
    """`seal_of` the sketches of the summed vector. 0 if there are none, or if the sketches of the contributions do not
    add up exactly.
    """
    outline: bytes = field(default=b"", repr=False)
    """A sketch of the summed vector, whose signs follow from the step number. Empty if only equal sums count as
    correct.
    """

    @property
    def answer(self) -> Hashable:
        """The values in which replicas with the same summed bytes must agree. Floats are compared by their bits, so NaN
        equals NaN.
        """
        numbers = self.squared_norm.hex(), self.loss_sum.hex(), self.finite
        return self.digest, *numbers, self.receipt, self.shared, self.seal, self.outline


@dataclass(frozen=True, slots=True)
class Status:
    """Sent at every heartbeat and after every change. The coordinator compares it with its own view and corrects
    differences.
    """

    actor: Actor
    stage: StageIndex | None
    version: int | None
    pass_id: PassId | None = None
    numbers: tuple[int, ...] = ()
    """For each stage, the number of the pass's table that the peer knows; 0 if it knows none."""
    done: int = 0
    """Bit m is set if the peer has accumulated microbatch m (TRAIN) or forwarded it (other kinds)."""
    prepared: Prepared | None = None
    seconds_per_microbatch: float | None = None
    queued: int = 0
    """Number of microbatches that the peer could compute now. A peer with a positive number and no progress is stalled.
    """
    fenced: bool = False
    checkpoint_version: int = -1
    """The newest checkpoint of its stage on its disk; −1: none."""
    checkpoint_digest: str = ""
    sequence: int = 0
    """Increases with every Join and Status of an actor. The coordinator ignores a message with a lower number than an
    earlier one.
    """
    state_term: int = 0
    """The newest term under which it received its state or began a pass. If this is before a rollback, its state no
    longer counts.
    """
    term: int = 0
    """The newest term that it knows. It ignores orders of older terms."""
    uplink: float | None = None
    """The peer's upload limit in bytes per second; None: no limit."""
    links: tuple[LinkRate, ...] = ()
    """Measured rates of its links from other peers."""
    leaving: bool = False
    """True if the owner wants the peer to leave. It accepts no new work and exits when it is dismissed or its time runs
    out.
    """
    heard: PassId | None = None
    """The newest pass of which it was told as a listener."""
    loading: int | None = None
    """The version that it is loading."""
    lacks: int | None = None
    """If it listens: the first step after the version that it loads or holds whose decision it does not know."""
    fetched: int = 0
    """Bytes of states and sums fetched from others so far. Shows whether the download progresses."""
    capacity: float = 1.0
    """This and the next four fields have the same meaning as in Join. A restarted coordinator learns them from
    here.
    """
    memory: int | None = None
    offered_uplink: float | None = None
    """The same as `Join.uplink`."""
    downlink: float | None = None
    seating: Seating | None = None
    forwarded: int = 0
    """Bit m is set if the peer has forwarded microbatch m in training, so that the next stage can have it."""
    reduced: int = 0
    """Number of parts and sums of the current reduction that the peer has made or received. Shows whether it
    progresses.
    """
    awaited: tuple[Actor, ...] = ()
    """Actors whose parts of that reduction are missing; once all parts are here, those whose sums are missing.

    At most `MAX_AWAITED`. Includes the sender itself while it still has to compute for the reduction.
    """
    spoilt: bool = False
    """True if some parameters or moments of `version` are not finite, which the peer noticed when it saved a
    checkpoint.
    """
    paused: str = ""
    """The reason why the peer computes no microbatches now; empty: it computes. At most `MAX_PAUSED` characters.

    A paused peer keeps its state, applies decisions, and finishes the reduction of what it has accumulated.
    """
    kind: ComputeKind = ComputeKind.HOST_FP32
    """The same as `Join.kind`."""


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to Release. The sender will never accumulate these microbatches under this table number."""

    pass_id: PassId
    number: int
    microbatches: tuple[Microbatch, ...]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """`other` does not answer the sender. The sender uses a replica of `other`'s stage to forward its messages."""

    pass_id: PassId
    other: Actor


@dataclass(frozen=True, slots=True)
class Result:
    """The last stage's result of a microbatch in a forward-only pass: a sum of losses, or the next token."""

    pass_id: PassId
    microbatch: Microbatch
    loss_sum: float
    token: int = -1


@dataclass(frozen=True, slots=True)
class Failed:
    """The sender cannot continue in this pass: computing `microbatch` raised an exception, or it lacks the version that
    the pass needs.
    """

    pass_id: PassId
    microbatch: Microbatch | None
    reason: str
    nonfinite: bool = False
    """True if the output of `microbatch` for a neighbouring stage contains NaN or infinity."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to Prove: the keyed checksum of parameters and moments. None if the sender no longer holds that
    version.

    It is also the answer to a Disproved about a state that the sender has already discarded. Then it is None.
    """

    nonce: int
    checksum: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender leaves. The coordinator treats it as dead without waiting. The exit of a dismissed peer has no
    effect.
    """

    actor: Actor
    reason: str
