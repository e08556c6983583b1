"""Checks that the members of a group of coordinators maintain a single record."""

from __future__ import annotations

from typing import Protocol

from swarm.protocol.ids import Actor
from swarm.protocol.messages import (
    ArchivedEntry,
    Command,
    CommandEntry,
    Decision,
    DecisionEntry,
    Entry,
    Message,
    TermEntry,
)
from swarm.protocol.peer.leader import Control, term_of
from swarm.simulation.checks.watched import WorldView
from swarm.simulation.kernel.violation import Violation


class Recorded(Protocol):
    """Receives what the group has committed."""

    archived: int

    def writes(self, decision: Decision) -> None: ...

    def decided(self, decision: Decision) -> None: ...

    def rolled_back(self, version: int) -> None: ...

    def commanded(self, command: Command) -> None: ...


class OneRecord:
    """The check of the invariant "one record". In a run with a single coordinator, it has nothing to check."""

    def __init__(self, world: WorldView, recorded: Recorded) -> None:
        self._world = world
        self._recorded = recorded
        self.standing: list[Entry] = []
        """The committed entries."""
        self._leaders: dict[int, Actor] = {}
        """The leader of each ballot."""
        self._votes: dict[tuple[Actor, int], Actor] = {}
        self._terms: dict[int, Actor] = {}
        """The coordinator of each term."""

    def is_replaced(self, term: int) -> bool:
        """Return True if the record contains a later term."""
        return bool(self._terms) and term < max(self._terms)

    def speaks(self, sender: Actor, message: Message) -> None:
        """Check that a coordinator gives orders only under its own term."""
        if self._terms and isinstance(message, Control):
            term = term_of(message)
            if self._terms.get(term) != sender:
                raise Violation("one record", f"{sender} gives orders under term {term}, which is not its own")

    def leads(self, member: Actor, ballot: int) -> None:
        if self._leaders.setdefault(ballot, member) != member:
            raise Violation("one record", f"{member} and {self._leaders[ballot]} lead under ballot {ballot}")

    def votes(self, member: Actor, ballot: int, candidate: Actor) -> None:
        if self._votes.setdefault((member, ballot), candidate) != candidate:
            raise Violation("one record", f"{member} also votes for {candidate} under ballot {ballot}")

    def stands(self, index: int, entry: Entry) -> None:
        """A member has entry `index` (counted from 0) on its disk as committed."""
        if index < len(self.standing):
            if self.standing[index] != entry:
                raise Violation("one record", f"{entry} is committed in place of {self.standing[index]}")
            return
        if index > len(self.standing):
            raise Violation("one record", f"entry {index} is committed after only {len(self.standing)} entries")
        self.standing.append(entry)
        match entry:
            case TermEntry(ballot=ballot, term=term, rollback_to=rollback_to):
                if term <= max(self._terms, default=0):
                    raise Violation("no zombies", f"term {term} is taken after {max(self._terms)}")
                self._terms[term] = self._leaders[ballot]
                if rollback_to is not None:
                    self._recorded.archived = min(self._recorded.archived, rollback_to)
                    self._recorded.rolled_back(rollback_to)
            case DecisionEntry(ballot=ballot, decision=decision):
                if self._terms.get(decision.term) != self._leaders[ballot]:
                    raise Violation(
                        "one record", f"step {decision.step} is decided under term {decision.term} of another leader"
                    )
                self._recorded.writes(decision)
                self._recorded.decided(decision)
            case ArchivedEntry(version=version):
                stages, archives = range(self._world.settings.stages), self._world.archives
                held = sum(all((stage, version) in archive for stage in stages) for archive in archives)
                if 2 * held <= len(archives):
                    raise Violation(
                        "bounded loss", f"checkpoint {version} counts, but only {held} coordinators hold it"
                    )
            case CommandEntry(command=command):
                self._recorded.commanded(command)
