"""The inquiry into one step: the attempts at it so far, what they gave, and which peers took part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.protocol.coordinator.audit.culprit_search import CulpritSearch, Search, Tables, same
from swarm.protocol.coordinator.audit.exchange import Doers
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import Answers, OwnSums

MOST_SEARCHES = 3
"""Maximum number of unsuccessful searches in one step. After these, the step is only repeated until two attempts, each
without half of the peers, give the same result.
"""

StepSums = Sequence[Sequence[OwnSums]]
"""One sequence of sums for each stage."""


@dataclass(slots=True)
class Inquiry:
    """What is known about the step that is to be decided next."""

    step: int
    first: CulpritSearch | None = None
    """The result of the attempt in which all peers took part."""
    opening: CulpritSearch | None = None
    """The result of the very first attempt. None if there was none, or a culprit was found."""
    marked: set[str] = field(default_factory=set)
    """Peers whose contributions were unusual in some attempt."""
    truth: Answers | None = None
    """The result that the step gave whichever peer was tried alone. Only this result may be decided. None: not known.
    """
    for_new: bool = False
    """True if the next attempt leaves out peers that were never left out before."""
    drawn: bool = False
    """True if the next attempt leaves out peers drawn at random."""
    doubted: bool = False
    """True if an earlier attempt gave a different result."""
    outcomes: list[tuple[Answers, set[str]]] = field(default_factory=list)
    """The distinct results so far. The set contains the peers that were left out of at least one attempt with this
    result.
    """
    attempts: list[tuple[Answers, frozenset[str]]] = field(default_factory=list)
    """For each attempt so far, its result and the peers that took part."""
    workers: set[str] = field(default_factory=set)
    """Peers that have done work which a sibling could have done instead."""
    spare: set[str] = field(default_factory=set)
    """Peers that have siblings, so that the next attempt can leave them out."""
    due: set[str] = field(default_factory=set)
    """Peers in `workers` and `spare` that took part in every attempt with the last result. They must still be left out
    once.
    """
    likely: bool = False
    """True if the last result is the most likely one: no other result leaves fewer people to be left out."""
    search: Search | None = None
    trial: Tables = ()
    """The tables of the search's next trial."""
    heard: list[Answers] = field(default_factory=list)
    """The results of the search's trials."""
    searches: int = 0
    """Number of unsuccessful searches so far."""
    waits: int = 0
    """Number of attempts that gave a different result while replicas of a stage were away."""
    failed: int = 0
    """Number of attempts that gave a different result or were aborted."""
    away: set[str] = field(default_factory=set)
    """Peers excluded from the step. They failed when they computed a stage alone, or left during a search."""
    own_sums: StepSums = ()
    """The peers' contributions in the attempt in which all peers computed."""
    suspects: set[str] = field(default_factory=set)
    """Peers whose contributions were most unlike those of their siblings."""
    doers: Doers = ()
    """The peer that computes each part of the next attempt, if it is an exchange. Empty otherwise."""
    exchanged: bool = False
    """True if an exchange was tried."""
    unchecked: set[str] = field(default_factory=set)
    """Peers whose parts an exchange has not confirmed. Each of them is left out of some attempt."""

    @property
    def may_search(self) -> bool:
        """True if the culprit may be searched for, or once more."""
        return self.searches < MOST_SEARCHES

    @property
    def takes_half(self) -> bool:
        """True if the next attempt leaves out half of the peers.

        After `MOST_SEARCHES` searches, every attempt does so, because a peer may lie whenever all take part.
        """
        compares = self.first is not None or self.truth is not None
        return self.search is None and (compares or not self.may_search)

    @property
    def checkable(self) -> set[str]:
        """Peers that worked in the first attempt, and whose part a sibling can do in this one.

        A peer that was alone in its stage at first is among them once a sibling has the state.
        """
        return self.first.assigned & self.spare if self.first is not None else set()

    def goes_on(self, tables: Tables) -> bool:
        """Return True if all peers of the search's next trial are in these tables, in the same stages. If not, begin
        the search again without the missing peers.
        """
        gone = {
            actor.peer
            for asked, table in zip(self.trial, tables, strict=True)
            for actor in asked.roster
            if actor not in table.roster
        }
        if gone:
            self.away |= gone
            self.begin_anew()
        return not gone

    def came_to(self, found: CulpritSearch, people: People, tolerance: float) -> bool:
        """Record the result of an attempt. Return True if it is right: leaving out each person's peers has not changed
        it.
        """
        self.workers |= {table.roster[place].peer for table in found.tables for place in table.assignment}
        without = next((w for answers, w in self.outcomes if same(answers, found.answers, tolerance)), None)
        if without is None:
            without = set()
            self.outcomes.append((found.answers, without))
        for group in people.together(sorted(self.workers & self.spare)):
            if found.served.isdisjoint(group):
                without.update(group)
        left_out = self.workers & self.spare
        self.due = left_out - without
        self.likely = all(people.count(self.due) <= people.count(left_out - w) for _, w in self.outcomes)
        return not self.due

    def suspects_alone(self, people: People, tolerance: float) -> list[str]:
        """If only one person can have told all lies, return the peers of that person; otherwise an empty list.

        Without the only liar, the step always gives the same result. If there are several liars, there may be no such
        person.
        """
        possible = []
        for group in people.together(sorted(self.spare)):
            without = [answers for answers, served in self.attempts if served.isdisjoint(group)]
            if all(same(without[0], answers, tolerance) for answers in without):
                possible.append((group, len(without)))
        return possible[0][0] if len(possible) == 1 and possible[0][1] > 1 else []

    def begin_anew(self) -> None:
        self.first = self.truth = self.search = None
        self.trial = self.own_sums = self.doers = ()
        self.unchecked.clear()
        self.doubted = True
