"""Inputs and actions of a peer's core, beside those of every core (`swarm.protocol.io`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, Attempt, BaseKey, Microbatch, PassId, PassKind, StageIndex, StepNumber
from swarm.protocol.io import Action, Emit, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import CodecPair, Decision, LinkRate, Means, Payload, WithPayload


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Frames and parts for `other` of which nothing has left: there has never been a connection.

    Two that cannot dial each other find that out when one has something for the other, and it goes around then. What is
    for somebody whose connection broke does not: as a rule that one is dead.
    """

    other: Actor
    messages: tuple[WithPayload, ...]


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """`LoadState` is done: parameters and optimizer state of `stage` at `version` are in place."""

    stage: StageIndex
    version: int
    buckets: int
    """Into how many buckets the stage's gradient is divided for the reduce: a function of the manifest and stage."""
    first_round: int = 0
    """So many of them are reduced before the others can be computed."""
    shared: int = 0
    """How many of them, from the first, are of parameters that another stage holds too."""


@dataclass(frozen=True, slots=True)
class StateFailed:
    stage: StageIndex
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForwardDone:
    """`Forward` of a microbatch is done; `payload` is the encoded frame for the next stage."""

    pass_id: PassId
    microbatch: Microbatch
    payload: Payload = field(repr=False)
    seconds: float = 0.0
    whole: Payload | None = field(default=None, repr=False)
    """The same reconstruction as a frame that needs no base, where `payload` needs one."""
    received: int = 0
    """Digest of the activation that came in, in a run whose codec builds on earlier visits (else 0)."""
    sent: int = 0
    """Digest of what the next stage makes of `payload`."""
    kept: bool = True
    """The graph is. Where memory does not suffice for it, the backward computes the forward again."""


@dataclass(frozen=True, slots=True)
class BackwardDone:
    """The backward of a microbatch is done. `payload` is the gradient for the stage before (None at stage 0)."""

    pass_id: PassId
    microbatch: Microbatch
    payload: Payload | None = field(repr=False)
    seconds: float = 0.0
    received: int = 0
    """As in ForwardDone."""
    weights_due: bool = False
    """The gradients of the weights are not computed yet: the core orders them with `Weights`, and the microbatch is in
    the accumulator when that is done. False: it is there now."""


@dataclass(frozen=True, slots=True)
class WeightsDone:
    """`Weights` of a microbatch is done: it is in the accumulator."""

    pass_id: PassId
    microbatch: Microbatch
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ResultDone:
    """The last stage finished a microbatch of a forward-only pass."""

    pass_id: PassId
    microbatch: Microbatch
    loss_sum: float
    token: int = -1


@dataclass(frozen=True, slots=True)
class ComputeFailed:
    """Forward, backward or apply raised. Half a microbatch may be in the accumulator: the peer fences itself."""

    pass_id: PassId
    microbatch: Microbatch | None
    reason: str
    nonfinite: bool = False
    """As in Failed."""


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """There was no memory for something. What can be given up is; after the second time this peer leaves."""

    what: str
    """What failed, and how."""
    before: int = 0
    """Graphs that were kept between forward and backward."""
    now: int = 0
    """As many as are kept from now on: of the others the forward is computed again."""


@dataclass(frozen=True, slots=True)
class PartEncoded:
    attempt: Attempt
    bucket: int
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class BucketSummed:
    """`SumBucket` is done; `payload` is what every member of the roster receives, byte for byte.

    Whoever computed it may leave it empty where the roster has one member.
    """

    attempt: Attempt
    bucket: int
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Assembled:
    """All buckets lie in the separate reduced buffer; digest and per-stage squared norm are computed."""

    attempt: Attempt
    digest: str
    squared_norm: float
    loss_sum: float
    finite: bool = True
    shared: str = ""
    """Digest of the buckets that another stage holds too; empty where there are none."""
    state: int = 0
    """As in Prepared, like the next two."""
    spoilt: bool = False
    unusable: bool = False
    sketch: bytes = field(default=b"", repr=False)
    """As in Prepared, like the next two."""
    seal: int = 0
    outline: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """The optimizer step is done: the peer holds version `step + 1`."""

    step: StepNumber
    digest: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class StateSpoilt:
    """The state of this version is not finite, and no checkpoint is made of it."""

    version: int


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """What this peer knows of its links by now: its own limit, and what comes in (see Status)."""

    uplink: float | None
    links: tuple[LinkRate, ...] = ()


@dataclass(frozen=True, slots=True)
class MeansChanged:
    """What this peer has of its machine is another part of it, since its process has more peers now, or fewer."""

    means: Means


@dataclass(frozen=True, slots=True)
class SumsFetched:
    """`FetchSums` is done: the reduced buckets of `step` lie here, each as it was sent when the step was reduced."""

    stage: StageIndex
    step: StepNumber


@dataclass(frozen=True, slots=True)
class SumsMissing:
    """`FetchSums` has come to nothing: no donor has them any more, or they cannot be kept here."""

    stage: StageIndex
    step: StepNumber
    reason: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """So many bytes of states and sums have come from other peers, since the process began."""

    nbytes: int


PeerInput = (
    Received
    | LinkLost
    | LinkUp
    | Undelivered
    | Tick
    | StateLoaded
    | StateFailed
    | ForwardDone
    | BackwardDone
    | WeightsDone
    | ResultDone
    | ComputeFailed
    | MemoryShort
    | PartEncoded
    | BucketSummed
    | Assembled
    | AppliedStep
    | CheckpointSaved
    | StateSpoilt
    | LinksMeasured
    | MeansChanged
    | SumsFetched
    | SumsMissing
    | Fetched
    | LeaveRequested
)


@dataclass(frozen=True, slots=True)
class OpenSeats(Action):
    """Have so many peers in this process, if it has room for them."""

    seats: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadState(Action):
    """Take up `stage` at `version`: initialise (0, no `source`), or from `source`.

    Or from `donors`, from several at once: each keeps a copy of that version for it.
    """

    stage: StageIndex
    version: int
    source: Actor | None
    from_archive: bool
    donors: tuple[Actor, ...] = ()


@dataclass(frozen=True, slots=True)
class Begin(Action):
    """A pass begins: zero the accumulator, drop graphs, tasks and frames of every other pass."""

    pass_id: PassId
    kind: PassKind
    codecs: tuple[CodecPair, ...] = ()
    """As in Open: what crosses a boundary otherwise than with these is refused."""
    nonfinite: bool = False
    """As in Open. Otherwise what is not finite is a ComputeFailed, and refused when it comes."""


@dataclass(frozen=True, slots=True)
class Forward(Action):
    """Compute a microbatch → ForwardDone. On the last stage of a TRAIN pass: forward, loss and backward in one →
    BackwardDone."""

    pass_id: PassId
    kind: PassKind
    microbatch: Microbatch
    payload: Payload = field(repr=False)
    decode_with: BaseKey | None = None
    """The base that `payload` is the change of; None: it is whole."""
    encode_with: BaseKey | None = None
    """The base to encode the change of; None: a key frame."""


@dataclass(frozen=True, slots=True)
class Backward(Action):
    """Backward of a forwarded microbatch → BackwardDone. Goes before forward work.

    Adds to the accumulator, or leaves that to `Weights`.
    """

    pass_id: PassId
    microbatch: Microbatch
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Weights(Action):
    """Compute the weights' gradients that a backward left due; adds to the accumulator, then → WeightsDone.

    Goes after backward and forward work: nobody waits for it before the reduce.
    """

    pass_id: PassId
    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class Discard(Action):
    """Forget graph, input, due weights' gradients and queued work of a microbatch that was given up."""

    pass_id: PassId
    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class EncodePart(Action):
    """Encode this peer's share of `bucket` → PartEncoded."""

    attempt: Attempt
    bucket: int
    carried: bool = False
    """With what compressing this peer's share lost in the step before."""
    warm: bool = False
    """Every member of the roster carries something over from the step before."""


@dataclass(frozen=True, slots=True)
class SumBucket(Action):
    """Add own share and the others' `parts` of `bucket` → BucketSummed."""

    attempt: Attempt
    bucket: int
    parts: tuple[Payload, ...] = field(repr=False)
    """In the order of the roster."""
    place: int = 0
    """How many of them come before the own share."""
    carried: bool = False
    """As in EncodePart, for the own share; and with what compressing this bucket's sum lost here, if it did."""
    warm: bool = False
    """As in EncodePart."""


@dataclass(frozen=True, slots=True)
class StoreSum(Action):
    """Put a reduced bucket into the separate buffer of `attempt`."""

    attempt: Attempt
    bucket: int
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Assemble(Action):
    """All buckets of `attempt` are stored: digest and norm → Assembled."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class CancelReduce(Action):
    """The attempt is void; nothing of it may be used."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Apply(Action):
    """Optimizer step from the reduced buffer of `attempt` → AppliedStep. Retention of the pass may be dropped."""

    decision: Decision
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class SettleBases(Action):
    """`step` is applied: of what crossed in it, keep `kept` as bases; forget `dropped`, and the rest of the step."""

    step: StepNumber
    kept: tuple[BaseKey, ...]
    dropped: tuple[BaseKey, ...]


@dataclass(frozen=True, slots=True)
class Lend(Action):
    """Others take up this stage while it trains: keep for them what they cannot have later. Replaces what was ordered.

    If `pass_id.version` is one of `versions`, copy the state before the step is applied; drop copies of others. Drop
    the reduced buckets of steps before `since`.
    """

    pass_id: PassId
    versions: tuple[int, ...]
    since: int
    sums: bool
    """When the step is applied, keep its reduced buckets as they were sent, or would have been to another replica."""


@dataclass(frozen=True, slots=True)
class FetchSums(Action):
    """Take the reduced buckets of a decided step from `donors`, and keep them on disk → SumsFetched or SumsMissing.

    Ordered again while it is under way: with other donors. Ordered again after it was done: what came is not what was
    decided. A LoadState of another version, or stage, drops them all.
    """

    stage: StageIndex
    step: StepNumber
    digest: str
    donors: tuple[Actor, ...]


@dataclass(frozen=True, slots=True)
class RestoreSums(Action):
    """Put the fetched buckets of a step into the separate buffer of `attempt` → Assembled. Drop all work of passes."""

    attempt: Attempt
    whole: bool = False
    """One replica took the step alone, in a run that averages compressed: so its sums are not compressed."""


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(Action):
    """Snapshot now, write in the background → CheckpointSaved, or StateSpoilt."""

    version: int
    proven: int = 0
    """The newest version that has proved its worth (swarm/protocol/soundness.py), as far as is known here: the newest
    checkpoint up to it is kept beside the newest of all."""


PeerAction = (
    Send
    | Emit
    | Stop
    | LoadState
    | Begin
    | Forward
    | Backward
    | Weights
    | Discard
    | EncodePart
    | SumBucket
    | StoreSum
    | Assemble
    | CancelReduce
    | Apply
    | SettleBases
    | Lend
    | FetchSums
    | RestoreSums
    | SaveCheckpoint
    | OpenSeats
)
