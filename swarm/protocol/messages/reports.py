"""What peers tell the coordinator, which decides by it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, StageIndex
from swarm.protocol.messages.frames import Receipt
from swarm.protocol.messages.link_measurement import LinkRate

MAX_AWAITED = 8
"""Actors that a Status names as awaited."""
MAX_PAUSED = 80
"""Characters of the reason for a pause."""
MAX_SEATS = 16
"""Peers in one process."""


@dataclass(frozen=True, slots=True)
class Seating:
    """What a peer says of the process it runs in, if that may have several peers."""

    peers: tuple[str, ...]
    """Peer ids of all of them, its own among them, in the order in which they came."""
    grows: bool = False
    """The process takes one more on if this one is asked to (TakeSeats)."""
    on_call: bool = False
    """This one was taken on because the coordinator asked, and leaves when it is asked to (LeaveSeat)."""


@dataclass(frozen=True, slots=True)
class Means:
    """As in Join and Status."""

    capacity: float = 1.0
    memory: int | None = None
    uplink: float | None = None
    downlink: float | None = None
    seating: Seating | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """An actor without a stage presents itself. Repeated until assigned. `stage`: of its newest checkpoint on disk."""

    actor: Actor
    stage: StageIndex | None = None
    capacity: float = 1.0
    """Microbatches a second, forward and backward, through the whole model."""
    sequence: int = 0
    """As in Status."""
    memory: int | None = None
    """Bytes it plans with, together with the other peers of its process; None: not said."""
    uplink: float | None = None
    """Bytes a second that it can send, as measured or as its owner limits it; None: not known."""
    downlink: float | None = None
    """Bytes a second that it can receive, as measured; None: not known."""
    seating: Seating | None = None
    """None: it is alone in its process, and that takes no other one on."""
    paused: str = ""
    """As in Status."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Every bucket of the attempt is here; the reduced gradient lies in a separate buffer."""

    attempt: Attempt
    digest: str
    squared_norm: float
    loss_sum: float
    finite: bool = True
    receipt: Receipt | None = None
    """Of the whole stage; None where nothing builds on earlier visits."""
    shared: str = ""
    """Digest of what another stage must hold the same; empty where nothing is shared."""
    state: int = 0
    """Checksum of the parameters and moments that the gradients were computed with: replicas must hold the same."""
    spoilt: bool = False
    """Some of these are not finite."""
    unusable: bool = False
    """Some of them are not finite, or so large that nothing finite can be computed with them."""
    sketch: bytes = field(default=b"", repr=False)
    """Of what the sender itself has added, with signs that follow from `digest`: of what its stage holds alone, then
    of what another stage holds too. Empty where steps are not audited, and where the sums are not finite.
    """
    seal: int = 0
    """`seal_of` the same sketches of the reduced vector. 0: there are none, or they do not add up exactly."""
    outline: bytes = field(default=b"", repr=False)
    """A sketch of the reduced vector, with signs that follow from the step. Empty where only equal sums are right."""

    @property
    def answer(self) -> Hashable:
        """What replicas that hold the same reduced bytes must all say. Floats by their bits: a NaN equals itself."""
        numbers = self.squared_norm.hex(), self.loss_sum.hex(), self.finite
        return self.digest, *numbers, self.receipt, self.shared, self.seal, self.outline


@dataclass(frozen=True, slots=True)
class Status:
    """Sent every heartbeat and whenever something in it changed: what the coordinator reconciles against."""

    actor: Actor
    stage: StageIndex | None
    version: int | None
    pass_id: PassId | None = None
    numbers: tuple[int, ...] = ()
    """Of the tables of the pass that are known here, by stage; 0 for those that it was not told."""
    done: int = 0
    """Bit m is set when microbatch m is accumulated (TRAIN) or forwarded (other kinds) here."""
    prepared: Prepared | None = None
    seconds_per_microbatch: float | None = None
    queued: int = 0
    """Microbatches this peer could be working on now: without progress while this is positive, it is stalled."""
    fenced: bool = False
    checkpoint_version: int = -1
    """The newest checkpoint of its stage on its disk, −1 for none."""
    checkpoint_digest: str = ""
    sequence: int = 0
    """Grows with every Join and Status of an actor: an older one that comes later says nothing new."""
    state_term: int = 0
    """The newest term under which it was given its state or began a pass: what is older than a rollback is void."""
    term: int = 0
    """The newest term that it has heard of: it obeys nothing that is said under an older one."""
    uplink: float | None = None
    """Bytes a second that it sends at most, if it has a limit."""
    links: tuple[LinkRate, ...] = ()
    """What its links from other peers carry, as far as measured."""
    leaving: bool = False
    """Its owner wants it back: it takes nothing new, and goes when it is dismissed or when its time is over."""
    heard: PassId | None = None
    """The newest pass of which it was told as a listener."""
    loading: int | None = None
    """The version that it loads."""
    lacks: int | None = None
    """Of a listener: the first step, from the version it loads or holds on, whose decision it has not heard."""
    fetched: int = 0
    """Bytes of states and sums that it has taken from others: whether it gets on."""
    capacity: float = 1.0
    """As in Join, like the next four: a coordinator that has started again hears of them."""
    memory: int | None = None
    offered_uplink: float | None = None
    """`uplink` in Join."""
    downlink: float | None = None
    seating: Seating | None = None
    forwarded: int = 0
    """Bit m is set when microbatch m is forwarded here, in training: the next stage can have it."""
    reduced: int = 0
    """Parts and sums of the reduce under way that were made here or have come: whether it gets on."""
    awaited: tuple[Actor, ...] = ()
    """Whose parts of that reduce have not come; where all have, whose sums. `MAX_AWAITED` of them at most.

    Itself, as long as it has yet to compute something for it.
    """
    spoilt: bool = False
    """Parameters or moments of `version` are not finite: found when a checkpoint of it was to be saved."""
    paused: str = ""
    """Why it computes no microbatches for now; empty: it does. `MAX_PAUSED` characters at most.

    It keeps its state, applies what is decided, and finishes the reduce of what it has accumulated.
    """


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to Release: these are tombstoned here and will never be accumulated under this table number."""

    pass_id: PassId
    number: int
    microbatches: tuple[Microbatch, ...]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """`other` does not answer me; I go through a sibling."""

    pass_id: PassId
    other: Actor


@dataclass(frozen=True, slots=True)
class Result:
    """What the last stage found in a forward-only pass: a loss sum, or the next token."""

    pass_id: PassId
    microbatch: Microbatch
    loss_sum: float
    token: int = -1


@dataclass(frozen=True, slots=True)
class Failed:
    """I cannot go on in this pass: an exception while computing `microbatch`, or I lack the version it needs."""

    pass_id: PassId
    microbatch: Microbatch | None
    reason: str
    nonfinite: bool = False
    """What `microbatch` was to send to a neighbour holds NaN or infinity."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to Prove: the keyed checksum of parameters and moments. None: I do not hold that version any more.

    And the answer to a Disproved of a state that is gone already: None.
    """

    nonce: int
    checksum: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Goodbye: treated like a death, without the wait. Who had been dismissed is missed by nobody."""

    actor: Actor
    reason: str
