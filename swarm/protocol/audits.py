"""Whether what a step came to is right: some steps are computed again, without some peers, and must come out the same.

A peer may compute wrong numbers that look sound: on purpose, or because its memory or its graphics card is broken. Its
siblings agree about the reduced bytes nevertheless, for they add up what it gave them. So when a step is ready to be
decided, the coordinator sometimes does not decide it, and has it computed once more by half of every stage's replicas.
Sums are exact, so the digests must be equal, if those who were left out have told the truth; between machines of unlike
kinds, the norms nearly so. If they are not, `finding` tells who it was. Peers notice nothing but a step that is done
again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from statistics import median

from swarm.protocol.finding import Accused, Answers, Finding, Search, same, search
from swarm.protocol.ids import Actor
from swarm.protocol.ledger import Ledger
from swarm.protocol.members import Members
from swarm.protocol.messages import Decision, StageTable
from swarm.protocol.settings import Settings

NEW_PER_PERIOD = 5
"""Audits for the sake of newcomers in the time of one that is drawn, at most."""
JUMP = 4.0
"""Times the usual gradient norm: a step with more is audited."""
USUAL_STEPS = 16
MOST_DISTURBED = 3
"""Trials of one search that may fail because peers came, went or were too slow, before it begins anew."""
MOST_SEARCHES = 3
"""Of one step, in vain. After that it is only done again, until it comes out the same with and without half."""
MOST_ATTEMPTS = 10
"""That it may come out otherwise. Then it is decided as it came out the last time."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be done about a step that is ready to be decided."""

    again: str = ""
    """Why it is to be done again. Empty: decide it."""
    audited: bool = False
    """It was done again without some of its peers, and came out the same."""
    unresolved: bool = False
    """It came out otherwise each time, and nobody was found."""
    expelled: tuple[Accused, ...] = ()
    """Who is to have no part in the run any more."""


DECIDE = Ruling()
Rosters = list[list[Actor]]
"""By stage."""


class Audits:
    """`rosters` and `tables` before a training pass opens, `judge` when it is ready to be decided."""

    def __init__(self, settings: Settings, members: Members) -> None:
        self._settings = settings
        self._members = members
        self._vouched: set[str] = set()
        """Peers without whom a step came out the same."""
        self._norms: deque[float] = deque(maxlen=USUAL_STEPS)
        self._last = -NEW_PER_PERIOD * settings.audit_every
        """The last step that was audited."""
        self._first: Finding | None = None
        """What the open step came to when it was computed for the first time, while it is audited."""
        self._search: Search | None = None
        self._trial: tuple[StageTable, ...] = ()
        """What the search wants to know the outcome of."""
        self._disturbed = 0
        self._step = -1
        self._doubted = False
        """That step came out otherwise before."""
        self._searches = 0
        """Of that step, in vain, so far."""
        self._differed = 0
        """How often it came out otherwise, and nobody was found."""
        self._away: set[str] = set()
        """Peers that went, or gave up microbatches, while somebody was looked for: they have no part in that step."""

    @property
    def comparing(self) -> bool:
        """Whether the open step has been computed before, so that everything else must stay as it was."""
        return self._first is not None

    def forget(self) -> None:
        """The history goes on from another version."""
        self._drop()
        self._step = -1

    def rosters(self, step: int, rosters: Rosters) -> Rosters:
        """Who has a part in the next attempt at `step`, of those who could have."""
        if self._first is not None and self._first.step != step:
            self.forget()
        if step == self._step and self._away:
            rosters = [[actor for actor in roster if actor.peer not in self._away] or roster for roster in rosters]
        if self._first is None or self._search is not None:
            return rosters
        return [self._without_half(roster) for roster in rosters]

    def tables(self, wired: tuple[StageTable, ...]) -> tuple[StageTable, ...]:
        """Who does what in it; `wired`, but while somebody is looked for."""
        if self._search is None:
            return wired
        there = {actor for table in wired for actor in table.roster}
        gone = {actor.peer for table in self._trial for actor in table.roster if actor not in there}
        if not gone:
            return self._trial
        self._away |= gone
        self._drop()  # it is to be begun anew, with who is there
        return wired

    def judge(self, ledger: Ledger, decision: Decision, without: frozenset[Actor]) -> Ruling:
        """`ledger`: of a training pass whose stages are all prepared; `without`: who died when all others were."""
        if not self._settings.audit_every:
            return DECIDE
        if decision.step != self._step:
            self._step, self._searches, self._differed, self._doubted = decision.step, 0, 0, False
            self._away.clear()
        found = Finding(decision.step, tuple(ledger.tables), ledger.answers(without))
        if self._first is None:
            return self._begin(found, decision)
        if self._search is None:
            return self._compare(found, self._first)
        return self._go_on(found)

    # ------------------------------------------------------------ when

    def _begin(self, found: Finding, decision: Decision) -> Ruling:
        why = self._why(found, decision)
        if not why or all(len(table.roster) == 1 for table in found.tables):
            if not decision.skip:
                self._norms.append(decision.gradient_norm)
            return Ruling(unresolved=self._differed >= MOST_ATTEMPTS)
        self._first = found
        if decision.skip:
            return self._search_for(found, found.answers)  # it has been computed by others too
        return Ruling(again=f"audited, since {why}: it is done again by half of the replicas")

    def _why(self, found: Finding, decision: Decision) -> str:
        """Why a step is audited; empty: it is not."""
        step, every, norm = found.step, self._settings.audit_every, decision.gradient_norm
        if self._differed >= MOST_ATTEMPTS:
            return ""
        if decision.skip:
            return "" if self._searches else "it is not finite"
        if self._doubted:
            return "it came out otherwise before"
        if len(self._norms) == USUAL_STEPS and norm > JUMP * median(self._norms):
            return f"its gradient norm {norm:.3g} is more than {JUMP:g} times the usual one"
        if self._draw(step) % every == 0:
            return f"one step in {every} is"
        if (step - self._last) * NEW_PER_PERIOD >= every and (new := self._unknown(found)):
            return f"{new} of its peers never were"
        return ""

    def _unknown(self, found: Finding) -> int:
        """How many who did something that a sibling could have done have never been left out of an audited step."""
        return len(_workers(found) - self._vouched)

    def _without_half(self, roster: list[Actor]) -> list[Actor]:
        """Nobody can tell who is left out; those are who have not been yet, if there are any."""
        order = sorted(roster, key=lambda actor: (actor.peer in self._vouched, self._draw(self._step, actor.peer)))
        out = order[: len(roster) // 2]
        return [actor for actor in roster if actor not in out]

    def _draw(self, step: int, what: str = "") -> int:
        drawn = hashlib.blake2b(f"{step} {what}".encode(), key=self._settings.audit_secret, digest_size=8)
        return int.from_bytes(drawn.digest(), "big")

    # ------------------------------------------------------------ what comes of it

    def _compare(self, found: Finding, first: Finding) -> Ruling:
        """The step was computed again, without some."""
        if not same(first.answers, found.answers, self._settings.audit_tolerance):
            self._differed += 1
            if self._searches < MOST_SEARCHES:
                return self._search_for(first, found.answers)
            self._drop()
            return Ruling(again="audited: it came out otherwise again")
        before = self._unknown(first)
        self._vouched |= _workers(first) - {actor.peer for table in found.tables for actor in table.roster}
        if 0 < self._unknown(first) < before:
            return Ruling(again="audited: it is done again without the others")
        self._last = found.step
        self._drop()
        return Ruling(audited=True)

    def _search_for(self, first: Finding, again: Answers) -> Ruling:
        arrivals = {member.actor: place for place, member in enumerate(self._members)}
        self._search = search(first, again, arrivals, self._settings.audit_tolerance)
        self._disturbed = 0
        self._searches += 1
        self._doubted = True
        return self._next(None, "audited: it came out otherwise without some of its peers")

    def _go_on(self, found: Finding) -> Ruling:
        """A trial of the search has come out."""
        if found.tables == self._trial:
            return self._next(found.answers, "audited: looking for who computes otherwise than others")
        self._disturbed += 1
        if self._disturbed > MOST_DISTURBED:
            for asked, table in zip(self._trial, found.tables, strict=True):
                share, left = asked.shares(), table.shares()
                self._away |= {actor.peer for actor in share if len(left.get(actor, ())) < len(share[actor])}
            self._drop()
        return Ruling(again="audited: microbatches changed hands, so nothing can be compared")

    def _next(self, answers: Answers | None, reason: str) -> Ruling:
        assert self._search is not None
        try:
            self._trial = next(self._search) if answers is None else self._search.send(answers)
        except StopIteration as found:
            self._drop()
            accused: tuple[Accused, ...] = found.value
            if accused:
                self._searches = self._differed = 0
                self._vouched -= {each.actor.peer for each in accused}
            return Ruling(again="audited: it is done again", expelled=accused)
        return Ruling(again=reason)

    def _drop(self) -> None:
        self._first = self._search = None
        self._trial = ()


def _workers(found: Finding) -> set[str]:
    """Peers who did something that a sibling could have done."""
    several = [table for table in found.tables if len(table.roster) > 1]
    return {table.roster[place].peer for table in several for place in table.assignment}
