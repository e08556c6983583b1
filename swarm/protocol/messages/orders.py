"""Messages from the coordinator to peers."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import NEVER, Actor, Microbatch, PassId, PassKind, StageIndex, Term
from swarm.protocol.messages.decision import CodecPair, Decision
from swarm.protocol.messages.stage_tables import StageTable

MAX_DONORS = 8


@dataclass(frozen=True, slots=True)
class Donor:
    """A replica of a stage. Other peers may fetch the stage's state from it."""

    actor: Actor
    person: int
    """A number for the person who owns the device, valid within one message. All devices of one person count as one
    source.
    """


@dataclass(frozen=True, slots=True)
class Assign:
    """An order to hold `stage` at `version`. `stage` None: stand by without a stage.

    The receiver fetches the state from `donors` or from `archive`. If both are empty, it initialises version 0 itself.
    In a run from imported parameters, version 0 is fetched like any other version. In a newer term, the version may be
    lower than the one that the peer holds: that is a rollback.
    """

    term: Term
    stage: StageIndex | None
    version: int
    donors: tuple[Donor, ...] = ()
    """The replicas from which the state can be fetched, at most MAX_DONORS. The one that has held the stage for longest
    comes first.
    """
    archive: Actor | None = None
    """The coordinator whose archive holds the version, if no replica holds it."""
    move: int = 0
    """A counter of moves. Within a term, a peer changes its stage only for a higher number, so a late or repeated order
    has no effect.
    """


@dataclass(frozen=True, slots=True)
class Listener:
    """A peer that takes up a stage while the others train. It loads `version`, then applies the steps decided since."""

    actor: Actor
    stage: StageIndex
    version: int
    """While `loads` is true: the version to load. Afterwards: the version that it holds."""
    loads: bool
    move: int = 0
    """The same as `Assign.move`."""
    void_before: Term = NEVER
    """A state that the peer received under an older term than this no longer counts, because it differs from the other
    replicas' state.
    """


@dataclass(frozen=True, slots=True)
class Open:
    """A pass begins. A peer that lacks the decision of the step before first applies `decision`."""

    pass_id: PassId
    kind: PassKind
    tables: tuple[StageTable, ...]
    """The tables, by stage. Stages that the receiver need not know have `UNTOLD`."""
    decision: Decision | None
    codecs: tuple[CodecPair, ...] = ()
    """The codecs of this pass, one pair per boundary 1, 2, …. Empty: as the manifest says."""
    nonfinite: bool = False
    """True if an earlier attempt at this step met a non-finite value. Then frames with non-finite values may cross the
    boundaries, so that the gradients of all stages become non-finite and the step can be decided as a SKIP.
    """
    listeners: tuple[Listener, ...] = ()
    """The listeners of all stages. They do not take part in the pass. The message may be sent again with other
    listeners.
    """
    rolled_back_in: Term = NEVER
    """The term of the last rollback. A state from an earlier term belongs to a discarded history."""
    step_s: float = 0.0
    """Recent duration of a step in seconds; 0 if unknown."""
    save: bool = False
    """Save the version that the pass needs as a checkpoint, whatever the manifest says."""
    steps: int = 0
    """The run ends after this number of steps; 0: after the number in the manifest."""
    donors: tuple[Donor, ...] = ()
    """The same as `Assign.donors`. Set only for a listener that loads."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the tables, by stage."""
        return tuple(table.number for table in self.tables)


@dataclass(frozen=True, slots=True)
class Amend:
    """Stage `stage` has a new table in the current pass."""

    pass_id: PassId
    stage: StageIndex
    table: StageTable
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Asks a peer to give up those of `microbatches` that it has not begun to accumulate. Repeated until answered."""

    pass_id: PassId
    number: int
    microbatches: tuple[Microbatch, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """A decision after which no pass begins at once: before a pause, or at the end of the run (`finished`). Listeners
    get it too.
    """

    decision: Decision
    term: Term
    """The term of the sender. The decision may belong to an older term."""
    finished: bool = False
    save: bool = False
    """Save the resulting version as a checkpoint, as in Open."""


@dataclass(frozen=True, slots=True)
class Halt:
    """The run cannot continue: the receiver stops and reports failure. Repeated until the receiver is gone."""

    reason: str
    term: Term
    expelled: bool = False
    """True if the run continues without the receiver."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The receiver is excluded from this pass. All its work in the pass is void."""

    pass_id: PassId
    reason: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The answer to a peer that wants to leave: the run no longer depends on it. Repeated until the peer is gone."""

    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class TakeSeats:
    """The receiver's process should run this number of peers, because a stage has no peer. Repeated until it does."""

    term: Term
    seats: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveSeat:
    """The receiver was added for a stage that other peers hold now. It should leave, as if its owner had asked for it.
    Repeated until it leaves.
    """

    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class Excuse:
    """The organiser dismisses the receiver. It should leave, as if its owner had asked for it. Repeated until it
    leaves.
    """

    term: Term
    reason: str


@dataclass(frozen=True, slots=True)
class Prove:
    """Asks for a proof that the receiver holds `stage` at `version`: a checksum keyed with `nonce` (see Proof).

    A peer that does not hold the version yet answers once it does. Repeated until answered.
    """

    term: Term
    stage: StageIndex
    version: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Disproved:
    """The receiver's Proof for `nonce` was wrong: it must load its state again. Repeated until it does."""

    term: Term
    nonce: int


@dataclass(frozen=True, slots=True)
class Twin:
    """Tells the newer of two processes with the same key that an older one is still alive, so the home directory was
    copied. The older process is told to leave.
    """

    incarnation: int


MAX_BANNED = 4096


@dataclass(frozen=True, slots=True)
class Banned:
    """These peers are excluded from the run: open no connections to them and accept none. The drivers handle it, not
    the cores.
    """

    number: int
    """The number of the command that last changed the list. A list with a lower number is outdated."""
    peers: tuple[str, ...]
    """The ids of the excluded peers, at most MAX_BANNED: the most recently banned ones."""
