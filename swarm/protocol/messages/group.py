"""Messages between the coordinators of a group, and the entries of their common log."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Term
from swarm.protocol.messages.decision import Decision


@dataclass(frozen=True, slots=True)
class Command:
    """A command from the organiser to the run. `swarm.protocol.controls` explains the names."""

    number: int
    """The commands of a run are numbered from 1."""
    name: str
    value: str
    by: str
    why: str
    request: str
    """The id of the request that caused the command. A repeated request causes only one command."""


@dataclass(frozen=True, slots=True)
class TermEntry:
    """A leader begins a term. `rollback_to`: the version from which the history continues, if the term begins with a
    rollback.
    """

    ballot: int
    """The ballot of the leader that appended the entry. The same holds for all other entries."""
    term: Term
    rollback_to: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    ballot: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class ArchivedEntry:
    """A majority of the group holds the shards of all stages of checkpoint `version`."""

    ballot: int
    version: int
    term: Term
    """The term in which the checkpoint was ordered."""
    digests: tuple[str, ...]
    """Digests of the files, by stage."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    ballot: int
    command: Command


Entry = TermEntry | DecisionEntry | ArchivedEntry | CommandEntry


@dataclass(frozen=True, slots=True)
class Canvass:
    """A candidate asks for a vote: may it lead under `ballot`? It names the index and ballot of the last entry of its
    log.
    """

    ballot: int
    last_index: int
    last_ballot: int
    binding: bool
    """False: a pre-vote. The voter says how it would vote and promises nothing, so a candidate that is merely cut off
    does not disturb the leader.
    """


@dataclass(frozen=True, slots=True)
class Vote:
    ballot: int
    """The ballot of the canvass if the vote is granted. Otherwise the newest ballot that the voter knows."""
    granted: bool
    binding: bool
    """The same as in the canvass."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A checkpoint in the leader's archive, which the followers should copy."""

    version: int
    term: Term
    """The term in which the checkpoint was ordered."""
    digests: tuple[str, ...]
    """Digests of the files, by stage."""


@dataclass(frozen=True, slots=True)
class Append:
    """The leader's log continues with `entries` after entry `before`. Without entries this is a heartbeat."""

    ballot: int
    before: int
    before_ballot: int
    entries: tuple[Entry, ...]
    committed: int
    """The index of the last committed entry. Entries up to this one are final."""
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """A follower's answer to Append, sent once the entries are on disk."""

    ballot: int
    """The newest ballot that the sender knows. If it is higher than the leader's, that leader steps down."""
    matched: int
    """The index up to which the logs agree. If `refused`: the leader should send entries from before this index."""
    refused: bool = False
    held: int = -1
    """The version of the offered checkpoint if the sender holds it; −1 otherwise."""
    held_in: int = 0
    """The term of that checkpoint."""
    peers: int = 0
    """The number of the swarm's peers from which the sender receives messages."""


@dataclass(frozen=True, slots=True)
class Adjourn:
    """The leader ends the run. All members may exit."""

    ballot: int
    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Steer:
    """A follower forwards a command of the organiser to the leader. It repeats this until the leader answers."""

    request: str
    command: str
    value: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Steered:
    """The leader's answer to Steer: the command's number and its effect (`text`), or why it was rejected (`error`)."""

    request: str
    number: int
    text: str
    error: str
