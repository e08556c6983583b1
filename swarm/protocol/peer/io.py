"""Inputs and actions of a peer's core, in addition to those of every core (`swarm.protocol.io`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, Attempt, BaseKey, Microbatch, PassId, PassKind, StageIndex, StepNumber
from swarm.protocol.io import Action, Emit, LeaveRequested, LinkLost, LinkUp, Received, Send, Stop, Tick
from swarm.protocol.messages import CodecPair, Decision, Donor, LinkRate, Means, Payload, WithPayload


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Frames and parts for `other` that were never sent, because there has never been a connection to it.

    Two peers that cannot dial each other notice this only when one of them has something to send; it then uses a
    detour. Messages for a peer whose connection broke are not sent by a detour, because such a peer is usually dead.
    """

    other: Actor
    messages: tuple[WithPayload, ...]


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """`LoadState` is done: the parameters and optimizer state of `stage` at `version` are in place."""

    stage: StageIndex
    version: int
    buckets: int
    """Number of buckets of the stage's gradient in the reduction; follows from the manifest and the stage."""
    first_round: int = 0
    """Number of buckets that are reduced before the others can be computed."""
    shared: int = 0
    """Number of buckets, from the first, whose parameters another stage holds too."""


@dataclass(frozen=True, slots=True)
class StateFailed:
    stage: StageIndex
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForwardDone:
    """The forward of a microbatch is done. `payload`: the encoded frame for the next stage."""

    pass_id: PassId
    microbatch: Microbatch
    payload: Payload = field(repr=False)
    seconds: float = 0.0
    whole: Payload | None = field(default=None, repr=False)
    """Set if `payload` needs a base: another frame that gives the same values and needs none."""
    received: int = 0
    """Digest of the received activation, if the run's codec uses activations of earlier steps. Otherwise 0."""
    sent: int = 0
    """Digest of the activation that the next stage decodes from `payload`."""
    kept: bool = True
    """True if the graph is kept. False: memory was short, so the backward will compute the forward again."""


@dataclass(frozen=True, slots=True)
class BackwardDone:
    """The backward of a microbatch is done. `payload`: the gradient for the stage before (None at stage 0)."""

    pass_id: PassId
    microbatch: Microbatch
    payload: Payload | None = field(repr=False)
    seconds: float = 0.0
    received: int = 0
    """The same as `ForwardDone.received`."""
    weights_due: bool = False
    """True if the weight gradients are not computed yet. The core orders them with `Weights`; only then is the
    microbatch in the accumulator. False: it is in the accumulator now.
    """


@dataclass(frozen=True, slots=True)
class WeightsDone:
    """`Weights` of a microbatch is done: the microbatch is in the accumulator."""

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
    """A forward, a backward or an optimizer step raised an exception. The accumulator may hold half a microbatch, so
    the peer fences itself.
    """

    pass_id: PassId
    microbatch: Microbatch | None
    reason: str
    nonfinite: bool = False
    """The same as `Failed.nonfinite`."""


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """Memory ran out. The peer frees what it can; when this happens again, it leaves."""

    what: str
    """Text: the operation that failed, and how."""
    before: int = 0
    """Number of graphs that were kept between forward and backward."""
    now: int = 0
    """Number of graphs that are kept from now on. For other microbatches, the forward is computed again."""


@dataclass(frozen=True, slots=True)
class PartEncoded:
    attempt: Attempt
    bucket: int
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class BucketSummed:
    """`SumBucket` is done. `payload`: the bytes that every member of the roster receives.

    The driver may leave it empty if the roster has one member.
    """

    attempt: Attempt
    bucket: int
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Assembled:
    """All buckets are in the separate reduced buffer. The digest and the stage's squared norm are computed."""

    attempt: Attempt
    digest: str
    squared_norm: float
    loss_sum: float
    finite: bool = True
    shared: str = ""
    """Digest of the buckets that another stage shares; empty: there are none."""
    state: int = 0
    """Checksum of the state. This and the next two fields have the same meaning as in Prepared."""
    spoilt: bool = False
    unusable: bool = False
    sketch: bytes = field(default=b"", repr=False)
    """Sketches of the sums. This and the next two fields have the same meaning as in Prepared."""
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
    number: int = 0
    """That of the order."""


@dataclass(frozen=True, slots=True)
class StateSpoilt:
    """The state of this version is not finite, so no checkpoint of it is saved."""

    version: int
    number: int = 0
    """That of the order."""


@dataclass(frozen=True, slots=True)
class StateShown:
    """`ShowState` is done. `checksum` None: the peer no longer held the requested version."""

    version: int
    nonce: int
    checksum: int | None


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """The link rates known to this peer: its own upload limit, and the rates of incoming links (see Status)."""

    uplink: float | None
    links: tuple[LinkRate, ...] = ()


@dataclass(frozen=True, slots=True)
class MeansChanged:
    """The peer's share of its machine has changed, because the number of peers in its process changed."""

    means: Means


@dataclass(frozen=True, slots=True)
class PauseChanged:
    """The owner's machine must compute no microbatches, for this reason. Empty: it may compute again."""

    reason: str


@dataclass(frozen=True, slots=True)
class SumsFetched:
    """`FetchSums` is done: the reduced buckets of `step` are here, as they were sent when the step was reduced."""

    stage: StageIndex
    step: StepNumber


@dataclass(frozen=True, slots=True)
class SumsMissing:
    """`FetchSums` has failed: no donor has the sums any more, or they cannot be kept here."""

    stage: StageIndex
    step: StepNumber
    reason: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of states and sums received from other peers since the process began."""

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
    | StateShown
    | LinksMeasured
    | MeansChanged
    | PauseChanged
    | SumsFetched
    | SumsMissing
    | Fetched
    | LeaveRequested
)


@dataclass(frozen=True, slots=True)
class OpenSeats(Action):
    """Run this number of peers in this process, if there is room for them."""

    seats: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadState(Action):
    """Load `stage` at `version` → StateLoaded or StateFailed.

    Fetch it from all `donors` at once, or as a checkpoint from the `archive` of a coordinator. If neither is given,
    initialise version 0. Donors keep a copy of their state while it is fetched, and continue to train.
    """

    stage: StageIndex
    version: int
    donors: tuple[Donor, ...] = ()
    archive: Actor | None = None


@dataclass(frozen=True, slots=True)
class Begin(Action):
    """A pass begins: zero the accumulator; drop the graphs, tasks and frames of all other passes."""

    pass_id: PassId
    kind: PassKind
    codecs: tuple[CodecPair, ...] = ()
    """The codecs, as in Open. Frames that were encoded with another codec are refused."""
    nonfinite: bool = False
    """The same as in Open. If False, a non-finite result causes a ComputeFailed, and a non-finite frame is refused."""


@dataclass(frozen=True, slots=True)
class Forward(Action):
    """Compute the forward of a microbatch → ForwardDone.

    The last stage of a TRAIN pass computes forward, loss and backward together → BackwardDone.
    """

    pass_id: PassId
    kind: PassKind
    microbatch: Microbatch
    payload: Payload = field(repr=False)
    decode_with: BaseKey | None = None
    """The base to which `payload` is relative. None: `payload` is whole."""
    encode_with: BaseKey | None = None
    """The base relative to which the result is encoded. None: the result is encoded as a key frame."""


@dataclass(frozen=True, slots=True)
class Backward(Action):
    """Compute the backward of a forwarded microbatch → BackwardDone. It has priority over forwards.

    The result is added to the accumulator now, or later by `Weights`.
    """

    pass_id: PassId
    microbatch: Microbatch
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Weights(Action):
    """Compute the weight gradients that a backward left out, and add them to the accumulator → WeightsDone.

    It has the lowest priority, because no peer needs the result before the reduction.
    """

    pass_id: PassId
    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class Discard(Action):
    """Drop the graph, input, due weight gradients and queued work of a microbatch that was given up."""

    pass_id: PassId
    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class EncodePart(Action):
    """Encode this peer's share of `bucket` → PartEncoded."""

    attempt: Attempt
    bucket: int
    carried: bool = False
    """True: add the residual that was left when this peer's share was compressed in the step before."""
    warm: bool = False
    """True if every member of the roster has a residual from the step before."""


@dataclass(frozen=True, slots=True)
class SumBucket(Action):
    """Add this peer's own share of `bucket` and the `parts` of the others → BucketSummed."""

    attempt: Attempt
    bucket: int
    parts: tuple[Payload, ...] = field(repr=False)
    """The shares of the other members, in the order of the roster."""
    place: int = 0
    """Number of `parts` that come before this peer's own share."""
    carried: bool = False
    """The same as in EncodePart, for this peer's own share. It also holds for the residual of this bucket's sum, if
    there is one.
    """
    warm: bool = False
    """The same as in EncodePart."""


@dataclass(frozen=True, slots=True)
class StoreSum(Action):
    """Copy a reduced bucket into the separate buffer of `attempt`."""

    attempt: Attempt
    bucket: int
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Assemble(Action):
    """All buckets of `attempt` are stored. Compute the digest and the norm → Assembled."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class CancelReduce(Action):
    """The attempt is void: none of its results may be used."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Apply(Action):
    """Run the optimizer step on the reduced buffer of `attempt` → AppliedStep. The frames of the pass may be
    dropped.
    """

    decision: Decision
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class SettleBases(Action):
    """`step` is applied. Keep the activations in `kept` as bases; drop those in `dropped` and all others of the
    step.
    """

    step: StepNumber
    kept: tuple[BaseKey, ...]
    dropped: tuple[BaseKey, ...]


@dataclass(frozen=True, slots=True)
class Lend(Action):
    """Keep what listeners of this stage need and cannot get later. The order replaces the one before.

    If `pass_id.version` is one of `versions`, copy the state before the step is applied; drop the copies of other
    versions. Drop the reduced buckets of steps before `since`.
    """

    pass_id: PassId
    versions: tuple[int, ...]
    since: int
    sums: bool
    """True: keep the reduced buckets when the step is applied, encoded as for another replica."""


@dataclass(frozen=True, slots=True)
class FetchSums(Action):
    """Fetch the reduced buckets of a decided step from `donors`, and keep them on disk → SumsFetched or SumsMissing.

    If the order is repeated during the fetch, it only changes the donors. If it is repeated after the fetch, the
    fetched sums differed from the decided digest. A LoadState of another version or stage drops all fetched sums.
    """

    stage: StageIndex
    step: StepNumber
    digest: str
    donors: tuple[Actor, ...]


@dataclass(frozen=True, slots=True)
class RestoreSums(Action):
    """Copy the fetched buckets of a step into the separate buffer of `attempt` → Assembled. Drop all work of passes."""

    attempt: Attempt
    whole: bool = False
    """True if the sums are uncompressed in a run that compresses, because a single replica computed the step."""


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(Action):
    """Copy the state now and write it in the background → CheckpointSaved or StateSpoilt."""

    version: int
    proven: int = 0
    """The newest version that this peer knows to be sound (swarm/protocol/soundness.py). The newest checkpoint up to
    this version is kept in addition to the newest of all.
    """
    number: int = 0
    """Names the state to be saved. The version is not enough: the peer may move to another stage at the same version,
    or reach the version again after a rollback.
    """


@dataclass(frozen=True, slots=True)
class ShowState(Action):
    """Compute the checksum of the held version, keyed with `nonce` → StateShown."""

    version: int
    nonce: int


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
    | ShowState
    | OpenSeats
)
