"""Everything that actors say to each other. The drivers map these one to one onto proto/swarm/v1.

All messages are idempotent: they may be lost, repeated, delayed or reordered (the simulator does all four). What
arrives with an old pass, table number or incarnation changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from swarm.protocol.ids import (
    NEVER,
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Key,
    Microbatch,
    PartKey,
    PassId,
    PassKind,
    StageIndex,
    StepNumber,
    SumKey,
    Term,
)
from swarm.protocol.update import STILL, Update

Payload = object
"""Opaque to the core: bytes in the real driver, toy numbers in the simulator."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a frame was made from, in a run whose codec builds on earlier visits. Digests of reconstructions, 63 bits.

    0 says none. What the digests are for: `crossings`.
    """

    source: int = 0
    """Of an activation: the input it was computed from. Of a gradient: the activation it was computed with."""
    base: int = 0
    """The payload is the change of this. 0: it is whole."""
    fresh: bool = False
    """A key frame: however it is sent, it owes nothing to an earlier visit."""
    trail: int = 0
    """Of a gradient: a digest of all activations from its boundary on that it was computed with."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Which copies of activations the gradient of a set of microbatches was computed with, in the same runs.

    Sums of 63-bit digests over the microbatches, modulo 2^63.
    """

    inputs: int = 0
    """What came in."""
    sources: int = 0
    """What that was computed from, in the stage before."""
    trails: int = 0
    """The trails of the gradients made here."""
    echoes: int = 0
    """The trails of the gradients that came in."""
    fresh: int = 0
    """Bit m is set when microbatch m came in as a key frame."""


@dataclass(frozen=True, slots=True)
class StageTable:
    """Who serves a stage in a pass: numbered; a higher number replaces a lower one whole.

    `assignment[m]` is an index into `roster`. A roster member without microbatches still takes part in the reduce.
    """

    number: int
    roster: tuple[Actor, ...]
    assignment: tuple[int, ...]
    carried: tuple[int, ...] = ()
    """By member, in a run that averages compressed gradients: its place in the roster that decided the step before.

    −1: it has none there, so its residuals are empty (swarm/protocol/residuals.py).
    """
    lines: tuple[int, ...] = ()
    """By member, how fast its line is, kB a second: who has a slow one sums less (swarm/protocol/bucket_owners.py).

    Empty: all sum as much.
    """

    def assignee(self, microbatch: int) -> Actor:
        return self.roster[self.assignment[microbatch]]

    def assigned_to(self, actor: Actor) -> frozenset[Microbatch]:
        if actor not in self.roster:
            return frozenset()
        index = self.roster.index(actor)
        return frozenset(Microbatch(m) for m, who in enumerate(self.assignment) if who == index)

    def set_of(self, actor: Actor) -> int:
        """What is assigned to an actor, as a bit set."""
        return sum(1 << m for m in self.assigned_to(actor))

    def shares(self) -> dict[Actor, tuple[Microbatch, ...]]:
        """What is assigned to each member of the roster, in order: of all of them at once."""
        mine: list[list[Microbatch]] = [[] for _ in self.roster]
        for m, who in enumerate(self.assignment):
            mine[who].append(Microbatch(m))
        return {actor: tuple(those) for actor, those in zip(self.roster, mine, strict=True)}

    def contributions(self) -> tuple[Contribution, ...]:
        """By member. Empty where sums are exact: then it does not matter who has added what."""
        sets = [0] * len(self.carried)
        for m, who in enumerate(self.assignment if sets else ()):
            sets[who] |= 1 << m
        return tuple(Contribution(bits, before) for bits, before in zip(sets, self.carried, strict=True))


MAX_AWAITED = 8
NEAR = 2
"""How many stages away from its own a peer is told the tables: those beside it send to it and reduce, those behind them
may pass on what two neighbours cannot send each other. With the whole view everything would grow with all peers."""
UNTOLD = StageTable(0, (), ())
"""In place of the table of a stage that is farther away."""


def is_near(one: int, other: int) -> bool:
    """Whether peers of a stage are told the table of another, unless for what both hold (`Settings.partner`)."""
    return abs(one - other) <= NEAR


def attempt_under(
    tables: Sequence[StageTable], pass_id: PassId, stage: StageIndex, partner: StageIndex | None
) -> Attempt:
    """What `stage` reduces under these tables. `partner`: the stage that shares parameters with it."""
    return Attempt(pass_id, stage, tables[stage].number, -1 if partner is None else tables[partner].number)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one member of a roster has put into a step whose gradients were averaged compressed."""

    microbatches: int
    """Bit set."""
    carried: int
    """As in StageTable."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage prepared: the table number and the digest of its reduced bytes."""

    number: int
    digest: str
    contributions: tuple[Contribution, ...] = ()
    """In the order of the roster, in a run that averages compressed gradients: what the bytes depend on."""


@dataclass(frozen=True, slots=True)
class CodecPair:
    """What crosses a boundary is coded with, by the names that manifests use."""

    forward: str
    """Of activations."""
    backward: str
    """Of their gradients."""

    def of(self, direction: Direction) -> str:
        return self.forward if direction is Direction.FORWARD else self.backward


@dataclass(frozen=True, slots=True)
class LinkRate:
    """What a link really carries, as its receiver measures it."""

    sender: Actor
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision record of one training step: written durably by the coordinator before anyone is told."""

    term: Term
    step: StepNumber
    scale: float
    """What every gradient sum is multiplied by: clip ÷ tokens. 0 means SKIP: the version advances, nothing else."""
    loss_sum: float
    tokens: int
    """What the loss is summed over; of a classifier, images."""
    gradient_norm: float
    outcomes: tuple[StageOutcome, ...]
    key_frames: tuple[int, ...] = ()
    """By boundary 1, 2, …: bit m is set when microbatch m crossed as a key frame. Empty where the codec has none."""
    codecs: tuple[CodecPair, ...] = ()
    """By boundary 1, 2, …: what the step crossed with. Empty where the manifest says it all."""
    rate: float = 1.0
    """What the learning rate of the schedule is multiplied by in this step."""
    update: Update = STILL

    @property
    def skip(self) -> bool:
        return self.scale == 0.0


# ---------------------------------------------------------------- coordinator → peer


@dataclass(frozen=True, slots=True)
class Assign:
    """Hold `stage` at `version`: initialise (version 0, no source) or copy the state of `source`.

    In a run from imported parameters version 0 has a source like any other; a peer initialises nothing there.
    `source` is a replica, or the coordinator's archive when `from_archive`. `stage` None: stand by. In a newer term the
    version may be lower than the one held: that is a rollback.
    """

    term: Term
    stage: StageIndex | None
    version: int
    source: Actor | None = None
    from_archive: bool = False
    move: int = 0
    """Within a term a peer leaves its stage only for a higher number: a late or repeated order moves nobody back."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who takes up a stage while the others train: it loads `version`, and applies the steps that are decided since."""

    actor: Actor
    stage: StageIndex
    version: int
    """While it `loads`: the version to load. Later: the one it holds."""
    loads: bool
    move: int = 0
    """As in Assign."""
    void_before: Term = NEVER
    """What it was given under an older term is not what its siblings hold: void, as after a rollback."""


@dataclass(frozen=True, slots=True)
class Open:
    """A pass opens. Carries the decision of the step before, so that a peer that lacks it applies it first."""

    pass_id: PassId
    kind: PassKind
    tables: tuple[StageTable, ...]
    """By stage; `UNTOLD` for those that do not concern the receiver."""
    decision: Decision | None
    codecs: tuple[CodecPair, ...] = ()
    """By boundary 1, 2, …: what everything crosses with in this pass. Empty where the manifest says it all."""
    nonfinite: bool = False
    """Something was not finite when this step was tried before: now it crosses the boundaries too, and spoils the
    gradients of all stages, so that the step can be decided as a SKIP.
    """
    listeners: tuple[Listener, ...] = ()
    """Of all stages. They have no part in the pass; it may be told again with others."""
    rolled_back_in: Term = NEVER
    """The term of the last rollback: a state from before it is of a history that does not stand."""
    step_s: float = 0.0
    """Seconds that a step takes of late; 0 while that is not known."""
    save: bool = False
    """The version that the pass needs is to be saved as a checkpoint, whatever the manifest says."""
    steps: int = 0
    """After so many steps the run ends; 0: after as many as the manifest says."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the tables, by stage."""
        return tuple(table.number for table in self.tables)


@dataclass(frozen=True, slots=True)
class Amend:
    """Stage `stage` has a new table in the open pass."""

    pass_id: PassId
    stage: StageIndex
    table: StageTable
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Please give up these microbatches if you have not begun to accumulate them. Repeated until answered."""

    pass_id: PassId
    number: int
    microbatches: tuple[Microbatch, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """A decision, when no pass follows at once: before a pause, and at the end (`finished`). And to a listener."""

    decision: Decision
    term: Term
    """Under which it is told: the decision may be of an older one."""
    finished: bool = False
    save: bool = False
    """As in Open: the version that it leads to is to be saved."""


@dataclass(frozen=True, slots=True)
class Halt:
    """The run cannot go on: stop, as failed. Repeated until you are gone."""

    reason: str
    term: Term
    expelled: bool = False
    """The run goes on, without you."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """You are out of this pass, whatever you did in it is void."""

    pass_id: PassId
    reason: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """You said that you are leaving: nothing depends on you any more. Repeated until you are gone."""

    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class TakeSeats:
    """Have so many peers in your process: a stage has nobody else. Repeated until they are there."""

    term: Term
    seats: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveSeat:
    """You were taken on for a stage that others hold now: leave, as if your owner asked. Repeated until you do."""

    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class Excuse:
    """The organiser lets you go: leave, as if your owner asked. Repeated until you do."""

    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class Twin:
    """An older process that has your key is still alive somewhere: your home has been copied. It is told to leave."""

    incarnation: int


MAX_BANNED = 4096


@dataclass(frozen=True, slots=True)
class Banned:
    """These peers have no part in the run any more: open nothing to them, take nothing from them. No core sees it."""

    number: int
    """Of the command that changed the list last: a list of a lower number is out of date."""
    peers: tuple[str, ...]
    """At most MAX_BANNED, the last ones."""


# ---------------------------------------------------------------- peer → coordinator


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
class Leave:
    """Goodbye: treated like a death, without the wait. Who had been dismissed is missed by nobody."""

    actor: Actor
    reason: str


WORK_KINDS = ("forward", "backward", "waiting", "reducing", "applying", "recovering")
"""What a peer's time goes into, as events name it."""
LINK_KINDS = ("forward", "backward", "sums", "state", "control")
"""What it sends, as events name it."""
MAX_SPANS = 64
MAX_LINK_USES = 32
MAX_TRAITS = 16


@dataclass(frozen=True, slots=True)
class Trait:
    """Something about a machine: a text, or a number if there is one."""

    name: str
    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Of a peer's time. `start` and `length`: milliseconds, from when it heard Open."""

    kind: int
    """Index into WORK_KINDS."""
    microbatch: int
    """The first; −1: none."""
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What the sender has to do with another actor."""

    other: Actor
    rate: float | None = None
    """Bytes a second at which the other's frames come in."""
    rtt_s: float | None = None
    via: Actor | None = None
    """Who passes frames on; None: they go straight."""
    sent: tuple[int, ...] = ()
    """Bytes to the other since the last report, by LINK_KINDS."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a peer did in one training pass, as it measured that itself: from when it heard Open to the next one."""

    pass_id: PassId
    stage: StageIndex
    seconds: tuple[float, ...]
    """By WORK_KINDS."""
    spans: tuple[Span, ...] = ()
    usage: tuple[Figure, ...] = ()
    links: tuple[LinkUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a peer tells for people to see. Nothing is decided by it, and nobody misses it when it is lost."""

    actor: Actor
    machine: tuple[Trait, ...] = ()
    """What it runs on; empty: as told before."""
    work: Work | None = None


# ---------------------------------------------------------------- coordinator → coordinator, in a group of several


@dataclass(frozen=True, slots=True)
class Command:
    """What the organiser has told the run to do. What the names mean: `controls`."""

    number: int
    """Commands of a run are counted from 1."""
    name: str
    value: str
    by: str
    why: str
    request: str
    """Of which it came: one that is repeated is one command."""


@dataclass(frozen=True, slots=True)
class TermEntry:
    """A leader takes a term. `rollback_to`: the history goes on from this version."""

    ballot: int
    """Of the leader that appended it, as in all entries."""
    term: Term
    rollback_to: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    ballot: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class ArchivedEntry:
    """A majority of the group holds every stage of checkpoint `version`."""

    ballot: int
    version: int
    term: Term
    """In which it was ordered."""
    digests: tuple[str, ...]
    """By stage, of the files."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    ballot: int
    command: Command


Entry = TermEntry | DecisionEntry | ArchivedEntry | CommandEntry


@dataclass(frozen=True, slots=True)
class Canvass:
    """May I lead under `ballot`? With the index and ballot of my log's last entry."""

    ballot: int
    last_index: int
    last_ballot: int
    binding: bool
    """False: would you? Nothing is promised, so that who is merely cut off disturbs nobody."""


@dataclass(frozen=True, slots=True)
class Vote:
    ballot: int
    """That of the canvass if granted, else the newest that the voter knows."""
    granted: bool
    binding: bool
    """As in the canvass."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A checkpoint in the leader's archive, to be copied."""

    version: int
    term: Term
    """In which it was ordered."""
    digests: tuple[str, ...]
    """By stage, of the files."""


@dataclass(frozen=True, slots=True)
class Append:
    """The leader's log goes on after entry `before` with these. Without entries: I am here."""

    ballot: int
    before: int
    before_ballot: int
    entries: tuple[Entry, ...]
    committed: int
    """Entries up to this one stand for good."""
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer, once it is on disk."""

    ballot: int
    """The newest that the sender knows: if it is higher than the leader's, that one leads no more."""
    matched: int
    """Up to here the logs are the same; if `refused`, go on from before here."""
    refused: bool = False
    held: int = -1
    """The version offered, if it is held; −1: it is not."""
    held_in: int = 0
    """The term of that offer."""
    peers: int = 0
    """So many peers of the swarm the sender hears."""


@dataclass(frozen=True, slots=True)
class Adjourn:
    """The leader ends the run: everybody may go."""

    ballot: int
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Steer:
    """The organiser has told me this; you lead. Repeated until answered."""

    request: str
    command: str
    value: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Steered:
    """The answer: it is in force, as a command of this number (`text` says what it does); or why not (`error`)."""

    request: str
    number: int
    text: str
    error: str


MAX_LOG_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LogWant:
    """Send me what your event log holds from `offset` on."""

    log: str
    """The name of the log that is known here (LogChunk); empty: none."""
    offset: int
    before: str
    """A hash of the last bytes in front of it."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of the sender's event log, at most `MAX_LOG_BYTES`."""

    log: str
    """A hash of the log's beginning: another one is another log."""
    offset: int
    lines: bytes = field(repr=False)


# ---------------------------------------------------------------- anyone → anyone


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered at once, to tell how long that takes. Cores never see it."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int
    """That of the Ping."""


@dataclass(frozen=True, slots=True)
class Want:
    """An actor asks for the frames, parts and sums that it lacks.

    This is the only rule for recovery. It is also the only flow control: a frame moves only when a peer wants it. Parts
    and sums of a reduce are sent without being asked for; only lost ones are wanted.
    """

    keys: tuple[Key, ...]
    bases: tuple[int, ...] = ()
    """Of which base the sender can use a change, for each key (0: of none). Empty: of none at all."""
    again: bool = False
    """It was wanted before and has not come: whoever has yet to make it says so (Pending)."""

    def base(self, index: int) -> int:
        return self.bases[index] if self.bases else 0


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer to a Want that came again: the way is open, and the frames will come when they are made.

    In a deep pipeline most gradients take longer than any deadline that notices a lost frame soon.
    """

    keys: tuple[FrameKey, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    key: FrameKey
    payload: Payload = field(repr=False)
    lineage: Lineage | None = None


@dataclass(frozen=True, slots=True)
class ReducePart:
    """One contributor's share of a bucket. `microbatches` (bit set) lets the reducer check disjoint and complete."""

    key: PartKey
    microbatches: int
    payload: Payload = field(repr=False)
    receipt: Receipt | None = None
    """Of `microbatches`."""


@dataclass(frozen=True, slots=True)
class ReducedPart:
    key: SumKey
    payload: Payload = field(repr=False)
    receipt: Receipt | None = None
    """Of all microbatches."""


WithPayload = Frame | ReducePart | ReducedPart
"""Messages that carry raw bytes, which only the stages they are for can judge."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass `message` on: `origin` and `destination` cannot reach each other."""

    origin: Actor
    destination: Actor
    message: Want | WithPayload


Message = (
    Assign
    | Open
    | Amend
    | Release
    | Decide
    | Halt
    | Fenced
    | Dismiss
    | TakeSeats
    | LeaveSeat
    | Excuse
    | Twin
    | Banned
    | Join
    | Prepared
    | Status
    | Released
    | Unreachable
    | Result
    | Failed
    | Leave
    | Telemetry
    | LogWant
    | LogChunk
    | Ping
    | Pong
    | Canvass
    | Vote
    | Append
    | Appended
    | Adjourn
    | Steer
    | Steered
    | Want
    | Pending
    | Frame
    | ReducePart
    | ReducedPart
    | Relay
)
