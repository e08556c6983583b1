"""The replicated log of a group of coordinators: the committed state, and the entries that may still change.

A member has the whole log on disk. In memory it keeps the ballots by index, and the entries that are not settled yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from swarm.protocol.controls import Controls
from swarm.protocol.messages import ArchivedEntry, CommandEntry, Decision, DecisionEntry, Entry, TermEntry
from swarm.protocol.soundness import Soundness


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the run after some entries."""

    term: int = 0
    decision: Decision | None = None
    """The last committed decision. None: the next step is 0."""
    rolled_back_in: int = 0
    """The term of the last rollback; 0: none."""
    archived: ArchivedEntry | None = None
    """The newest checkpoint that a majority holds."""
    since_archived: tuple[Decision, ...] = ()
    """The decisions since the oldest checkpoint in `older` and `archived`, including the one that led to it.

    A rollback returns to the version of one of these decisions, or to version 0.
    """
    controls: Controls = field(default_factory=Controls)
    """The organiser's commands. A rollback does not undo them."""
    older: tuple[ArchivedEntry, ...] = ()
    """Checkpoints before `archived`: the newest one that is known to be sound, and all later ones."""
    soundness: Soundness = field(default_factory=Soundness)

    @property
    def version(self) -> int:
        """Number of steps that are decided."""
        return 0 if self.decision is None else self.decision.step + 1

    @property
    def checkpoints(self) -> tuple[ArchivedEntry, ...]:
        """All known checkpoints, oldest first."""
        return self.older if self.archived is None else (*self.older, self.archived)

    @property
    def last_sound(self) -> int:
        """The newest checkpoint that is known to be sound and that a majority holds; 0: the initial state."""
        return max((c.version for c in self.checkpoints if c.version <= self.soundness.proven), default=0)

    def after(self, entry: Entry) -> Standing:
        match entry:
            case TermEntry(term=term, rollback_to=version):
                if version is None:
                    return replace(self, term=term)
                kept = tuple(decision for decision in self.since_archived if decision.step < version)
                there = tuple(each for each in self.checkpoints if each.version <= version)
                last, archived = kept[-1] if kept else None, there[-1] if there else None
                sound = self.soundness.rolled_back(version)
                return Standing(term, last, term, archived, kept, self.controls, there[:-1], sound)
            case DecisionEntry(decision=decision):
                since, sound = (*self.since_archived, decision), self.soundness.after(decision)
                return replace(self, decision=decision, since_archived=since, soundness=sound)
            case ArchivedEntry(version=version):
                older = self.checkpoints
                while len(older) > 1 and older[1].version <= self.soundness.proven:
                    older = older[1:]
                oldest = older[0].version if older else version
                kept = tuple(decision for decision in self.since_archived if decision.step + 1 >= oldest)
                return replace(self, archived=entry, since_archived=kept, older=older)
            case CommandEntry(command=command):
                return replace(self, controls=self.controls.after(command))


@dataclass(frozen=True, slots=True)
class Stored:
    """What a member finds on its disk when it starts."""

    ballot: int = 0
    vote: str = ""
    """The peer id that got this member's vote in `ballot`; empty: none."""
    committed: int = 0
    """Entries up to this index are committed, as far as this member knew."""
    standing: Standing = Standing()
    """The state after the committed entries."""
    starts: tuple[tuple[int, int], ...] = ()
    """(index, ballot) of the first entry of each ballot among the committed entries."""
    tail: tuple[Entry, ...] = ()
    """The entries after the committed ones."""


class RaftLog:
    """Entries are numbered from 1. Entries up to `base` are only on disk, later ones also in memory."""

    def __init__(self, stored: Stored) -> None:
        self.base = stored.committed
        self._tail: list[Entry] = []
        self._starts: list[tuple[int, int]] = list(stored.starts)
        self.extend(stored.tail)

    @property
    def last(self) -> int:
        return self.base + len(self._tail)

    @property
    def last_ballot(self) -> int:
        return self._starts[-1][1] if self._starts else 0

    def ballot_at(self, index: int) -> int:
        """The ballot of an entry of this log; 0 before the first entry."""
        if index <= 0:
            return 0
        return self._starts[bisect_right(self._starts, index, key=lambda start: start[0]) - 1][1]

    def agrees(self, index: int, ballot: int) -> bool:
        """Return True if this log has an entry of `ballot` at `index`. Then all entries before it are equal in both
        logs too.
        """
        return index <= self.last and self.ballot_at(index) == ballot

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if not self._starts or self._starts[-1][1] != entry.ballot:
                self._starts.append((self.last + 1, entry.ballot))
            self._tail.append(entry)

    def cut(self, first: int) -> None:
        """Remove the entries from index `first` on. They must not be settled."""
        assert first > self.base, "committed entries are never cut"
        del self._tail[first - self.base - 1 :]
        while self._starts and self._starts[-1][0] >= first:
            self._starts.pop()

    def entries(self, first: int, last: int | None = None) -> tuple[Entry, ...]:
        """The entries from index `first` to `last`, or to the end. `first` must be in memory."""
        assert first > self.base
        stop = None if last is None else last - self.base
        return tuple(self._tail[first - self.base - 1 : stop])

    def release(self, index: int) -> None:
        """Entries up to this index are on disk and committed. Drop them from memory."""
        if index > self.base:
            del self._tail[: index - self.base]
            self.base = index
