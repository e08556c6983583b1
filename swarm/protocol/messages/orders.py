"""What the coordinator tells peers."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import NEVER, Actor, Microbatch, PassId, PassKind, StageIndex, Term
from swarm.protocol.messages.decision import CodecPair, Decision
from swarm.protocol.messages.stage_tables import StageTable

MAX_DONORS = 8


@dataclass(frozen=True, slots=True)
class Donor:
    """A replica of a stage from which others may fetch its state."""

    actor: Actor
    person: int
    """The number of the person whose device it is, within one message: what a person's devices say counts once."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Hold `stage` at `version`: fetch it from `donors` or from the `archive`, or initialise it (version 0, neither).

    In a run from imported parameters version 0 is fetched like any other; a peer initialises nothing there. `stage`
    None: stand by. In a newer term the version may be lower than the one held: that is a rollback.
    """

    term: Term
    stage: StageIndex | None
    version: int
    donors: tuple[Donor, ...] = ()
    """At most MAX_DONORS. Who is in the stage for longest comes first."""
    archive: Actor | None = None
    """The coordinator whose archive has the version, if no replica holds it."""
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
    donors: tuple[Donor, ...] = ()
    """As in Assign. Only for a listener that loads."""

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
class Prove:
    """Show that you hold `stage` at `version`: with a checksum of it that is keyed with `nonce` (→ Proof).

    Who does not hold the version yet answers when it does. Repeated until answered.
    """

    term: Term
    stage: StageIndex
    version: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Disproved:
    """What you answered to `nonce` is not what your siblings answered: load your state anew. Repeated until you do."""

    term: Term
    nonce: int


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
