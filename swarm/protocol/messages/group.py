"""What the coordinators of a group tell each other, and the entries of the log that they share."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Term
from swarm.protocol.messages.decision import Decision


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
