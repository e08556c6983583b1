"""Audits check the result of a step: other peers compute some steps again and must get the same result.

A peer may compute plausible but wrong numbers, on purpose or because its memory or graphics card is defective. Its
siblings add these numbers to theirs, so all replicas still hold the same sum. So the coordinator sometimes lets peers
compute a step again before it decides the step. Either a sibling computes each replica's part (`exchange`), or half of
the replicas of every stage compute the whole step. If the replaced peers were honest, the digests are equal, because
sums are exact. (Between different kinds of machines, the sums are nearly equal.) Some audited steps are drawn at
random. In others, a peer's sums are unlike its siblings' (`Screen`). If the results differ, a search finds the culprit.
The peers learn only that a step is repeated.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from swarm.protocol.coordinator.audit.culprit_search import Accused, CulpritSearch, Search, Tables, same, search
from swarm.protocol.coordinator.audit.exchange import Doers, compare, dealt, dealt_otherwise, exchange
from swarm.protocol.coordinator.audit.screen import Screen
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import Answers, OwnSums
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, Pair
from swarm.protocol.messages import Decision, StageTable
from swarm.protocol.settings import Settings

NEW_PER_PERIOD = 16
"""At most this many audits of newcomers take place for each audit that is drawn at random."""
JUMP = 4.0
"""A step is audited if its gradient norm exceeds the usual one by this factor."""
USUAL_STEPS = 16
MOST_SEARCHES = 3
"""Maximum number of unsuccessful searches in one step. After these, the step is only repeated until two attempts, each
without half of the peers, give the same result.
"""
MOST_ATTEMPTS = 10
"""After this number of attempts at a step that gave a different result or were aborted, the next result is decided,
unless an earlier result is more likely to be right.
"""
MOST_WAITS = 3
"""Maximum number of attempts that wait, before a search, for replicas that are away for a short time."""
WATCHED_STEPS = 8
"""A peer that is the only possible liar is watched: this number of steps must give the same result without it."""
LAST_ATTEMPT = 3 * MOST_ATTEMPTS
"""After this number of attempts that gave a different result or were aborted, the next result is decided in any case.
"""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the coordinator should do with a step that is ready to be decided."""

    again: str = ""
    """The reason why the step must be repeated. Empty: decide it."""
    agreed: bool | None = None
    """True if the step gave the same result when it was repeated without some of its peers. False if the results
    differed every time and no culprit was found.

    None: the step was not audited.
    """
    expelled: tuple[Accused, ...] = ()
    """Peers to expel from the run."""
    refused: tuple[Actor, ...] = ()
    """Peers that get no work when the step is repeated."""


DECIDE = Ruling()
Rosters = list[list[Actor]]
"""One list of actors for each stage."""
StepSums = Sequence[Sequence[OwnSums]]
"""One sequence of sums for each stage."""


@dataclass(slots=True)
class _Inquiry:
    """What is known about the step that is to be decided next."""

    step: int
    first: CulpritSearch | None = None
    """The result of the attempt in which all peers took part."""
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
    def takes_half(self) -> bool:
        """True if the next attempt leaves out half of the peers.

        After `MOST_SEARCHES` searches, every attempt does so, because a peer may lie whenever all take part.
        """
        compares = self.first is not None or self.truth is not None
        return self.search is None and (compares or self.searches >= MOST_SEARCHES)

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


class Audits:
    """Decides which steps are audited. Call `rosters` and `tables` before a training pass opens.

    Call `judge` when the pass is ready, or `gave_up` if it is aborted.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        self._settings = settings
        self._members = members
        self._vouched: set[str] = set()
        """Peers that others have checked: a step gave the same result without them."""
        self._idle: set[str] = set()
        """Peers that were present when newcomers were audited, but had no work that could be checked."""
        self._watched: dict[str, int] = {}
        """For each peer that is the only possible liar of some step: how many more steps must give the same result
        without it.
        """
        self._unlike = False
        """True if machines differ in the last bits of the same step. Then parts cannot be compared."""
        self._norms: deque[float] = deque(maxlen=USUAL_STEPS)
        self._last = -NEW_PER_PERIOD * settings.audit_every
        """The last step that was audited."""
        self._inquiry = _Inquiry(-1)
        self.took_part: frozenset[str] = frozenset()
        """Peers that had a part in some attempt at the last decided step, if it was audited."""
        self._screen = Screen()

    @property
    def comparing(self) -> bool:
        """True if the open step has been computed before. Then nothing else may change."""
        return self._inquiry.first is not None or self._inquiry.doubted

    @property
    def searching(self) -> bool:
        """True during a search, which needs the result of the step even if it is not finite."""
        return self._inquiry.search is not None

    def forget(self) -> None:
        """The run has gone back to an earlier version: forget what is known about the next step."""
        self._inquiry = _Inquiry(-1)
        self._norms.clear()
        self._screen.forget()

    def rosters(
        self,
        step: int,
        rosters: Rosters,
        weights: Mapping[Actor, float],
        blocked: frozenset[Pair] = frozenset(),
        probed: frozenset[Actor] = frozenset(),
    ) -> Rosters:
        """Return those of `rosters` that take part in the next attempt at `step`. `wire` explains the other
        arguments.
        """
        inquiry = self._inquiry
        if inquiry.step != step:
            inquiry = self._inquiry = _Inquiry(step)
        if inquiry.away:
            rosters = [[actor for actor in roster if actor.peer not in inquiry.away] or roster for roster in rosters]
        inquiry.spare = {actor.peer for roster in rosters if len(roster) > 1 for actor in roster}
        inquiry.doers = ()
        if not inquiry.takes_half:
            return rosters
        if inquiry.first is not None and self._may_exchange(inquiry):
            inquiry.exchanged = True
            people = self._members.people
            inquiry.doers = exchange(inquiry.first, rosters, weights, blocked, probed, people, self._secret)
            if inquiry.doers:
                return rosters
        return [self._without_half(roster) for roster in rosters]

    def _may_exchange(self, inquiry: _Inquiry) -> bool:
        """Return True if the next attempt may be an exchange.

        Leaving out half of the peers is better if there are suspects, or if an exchange was already tried.
        """
        return not (self._unlike or inquiry.exchanged or inquiry.doubted or inquiry.suspects)

    def tables(self, wired: Tables) -> Tables:
        """Return the tables of the next attempt. These are `wired`, unless the attempt is an exchange or part of a
        search.
        """
        inquiry = self._inquiry
        trial = inquiry.trial
        if inquiry.doers:
            return dealt(wired, inquiry.doers)
        if inquiry.first is not None and inquiry.takes_half:
            return dealt_otherwise(wired, inquiry.first.tables)
        return trial if inquiry.search is not None and inquiry.goes_on(wired) else wired

    def gave_up(self, pass_state: PassState) -> None:
        """An attempt was aborted. A peer that had a stage alone because of the audit is not tried alone again."""
        inquiry = self._inquiry
        if not self.comparing or inquiry.step != pass_state.pass_id.step:
            return
        inquiry.failed += 1
        alone = {
            table.roster[0].peer
            for stage, table in enumerate(pass_state.tables)
            if len(table.roster) == 1 and len(self._members.of_stage(stage)) > 1
        }
        if alone:
            inquiry.away |= alone
            inquiry.begin_anew()

    def judge(self, pass_state: PassState, decision: Decision, without: frozenset[Actor]) -> Ruling:
        """Decide what to do with a training pass whose stages are all prepared. `without`: actors that died after all
        others were prepared.
        """
        if not self._settings.audit_every:
            return self._refuse(pass_state.preparation.own_sums(without)) if self._settings.screened else DECIDE
        inquiry = self._inquiry
        found = CulpritSearch(
            tuple(pass_state.tables),
            pass_state.preparation.answers(without),
            pass_state.weights,
            frozenset(actor.peer for actor in pass_state.served),
        )
        tolerance = self._settings.audit_tolerance
        inquiry.attempts.append((found.answers, found.served))
        if inquiry.search is not None:
            return self._go_on(found)
        people = self._members.people
        if inquiry.doubted and inquiry.came_to(found, people, tolerance):
            self._noted(decision)
            return Ruling(agreed=True)
        if inquiry.doubted and (suspects := inquiry.suspects_alone(people, tolerance)):
            inquiry.away.update(suspects)
            self._watched.update(dict.fromkeys(suspects, WATCHED_STEPS))
            inquiry.begin_anew()
            who = " and ".join(suspects)
            return Ruling(
                again=f"audited: only without {who} the result was always the same: the step is repeated without it"
            )
        if inquiry.truth is not None:
            return self._check(found, inquiry.truth, decision)
        if inquiry.first is not None and inquiry.doers:
            return self._compare_parts(found, inquiry.first, pass_state.preparation.own_sums(without), decision)
        if inquiry.first is not None:
            return self._compare(found, inquiry.first, decision)
        inquiry.own_sums = pass_state.preparation.own_sums(without)
        return self._begin(found, decision)

    def _refuse(self, own_sums: StepSums) -> Ruling:
        """Judge a step of a run whose steps cannot be compared. The peer whose sums are most unlike others' is left
        out, once.

        If the sums are still unusual afterwards, the data may be the cause, so the step is decided.
        """
        inquiry = self._inquiry
        doubts = self._screen.doubts(own_sums)
        for stage, those in enumerate(own_sums):
            here = [doubt for doubt in doubts if doubt.stage == stage and doubt.what != "short"]
            told_apart = len(those) > 2 or len(here) == 1 or (here and here[0].what == "long")
            if here and len(those) > 1 and not inquiry.away and told_apart:
                inquiry.away.add(here[0].actor.peer)
                again = f"refused, since {here[0].reason}: other peers compute its part"
                return Ruling(again=again, refused=(here[0].actor,))
        self._screen.decided(own_sums)
        self._inquiry = _Inquiry(-1)
        return DECIDE

    # ------------------------------------------------------------ when

    def _begin(self, found: CulpritSearch, decision: Decision) -> Ruling:
        inquiry = self._inquiry
        several = inquiry.doubted or any(self._has_siblings(*each) for each in enumerate(found.tables))
        most = MOST_ATTEMPTS if inquiry.likely else LAST_ATTEMPT
        why = self._why(found, decision) if several and inquiry.failed < most else ""
        if not why:
            self._noted(decision)
            return Ruling(agreed=False if inquiry.doubted else None)
        inquiry.first = found
        if (decision.skip or not found.adds_up) and not inquiry.searches and not self._waits(found):
            return self._search_for(found, found.answers)  # the step has been computed by other peers too
        return Ruling(again=f"audited, since {why}: other replicas compute the step again")

    def _checkable(self, found: CulpritSearch) -> set[str]:
        """Peers that worked, and whose part a sibling can do in the next attempt."""
        several = [table for stage, table in enumerate(found.tables) if self._has_siblings(stage, table)]
        return {table.roster[place].peer for table in several for place in table.assignment}

    def _has_siblings(self, stage: int, table: StageTable) -> bool:
        """Return True if the next attempt at the step can have several replicas in the stage.

        A replica that was left out of the last step may have received its sums since this one opened.
        """
        if len(table.roster) > 1:
            return True
        return any(member.version == self._inquiry.step for member in self._away(stage, table))

    def _away(self, stage: int, table: StageTable) -> list[Member]:
        """The members of a stage that have worked in it, are not in `table`, and will soon be back.

        The last step was decided without these members, so they still fetch its sums.
        """
        return [
            member for member in self._members.of_stage(stage) if member.takes_part and member.actor not in table.roster
        ]

    def _waits(self, first: CulpritSearch) -> bool:
        """Return True if a stage had one or two replicas in `first`, and further replicas will soon be back.

        One replica cannot be compared with another. If two replicas differ, nobody knows which is right.
        """
        few = any(len(table.roster) < 3 and self._away(stage, table) for stage, table in enumerate(first.tables))
        self._inquiry.waits += few
        return few and self._inquiry.waits <= MOST_WAITS

    def _why(self, found: CulpritSearch, decision: Decision) -> str:
        """The reason why a step is audited, as text; empty: it is not audited."""
        inquiry, every, norm = self._inquiry, self._settings.audit_every, decision.gradient_norm
        drawn = ""
        if inquiry.doubted:
            drawn = "an earlier attempt gave a different result"
        elif decision.skip:
            drawn = "its result is not finite"
        elif not found.adds_up:
            drawn = "the sketches of its peers' sums do not add up to the sketch of the total"
        elif doubts := self._screen.doubts(inquiry.own_sums):
            drawn = doubts[0].reason
            inquiry.suspects = {doubts[0].actor.peer}
        elif watched := self._watched.keys() & found.workers:
            drawn = f"{' and '.join(sorted(watched))} may have reported false sums before"
            inquiry.suspects = set(watched)
        elif len(self._norms) == USUAL_STEPS and norm > JUMP * median(self._norms):
            drawn = f"its gradient norm {norm:.3g} is more than {JUMP:g} times the usual one"
        # so that the distance between audited steps is limited
        elif inquiry.step % every == self._draw(inquiry.step // every, "which") % every:
            drawn = f"one step in {every} is audited"
        due = (inquiry.step - self._last) * NEW_PER_PERIOD >= every
        new = self._checkable(found) - self._vouched
        if not due and not new & self._idle:
            new = set()
        inquiry.for_new, inquiry.drawn = bool(new), drawn != ""
        if new:
            there = {member.actor.peer for member in self._members}
            self._idle = ((self._idle | found.idle) & there) - new - self._vouched
        return f"{len(new)} of its peers have never been audited" if new else drawn

    def _without_half(self, roster: list[Actor]) -> list[Actor]:
        """The roster without one half, drawn at random so that peers cannot predict it. Peers that must be checked are
        left out first.

        The devices of one person are left out together, if enough others remain, because they may lie together.
        """
        inquiry, due = self._inquiry, set[str]()
        if inquiry.doubted:
            due = inquiry.due
        elif inquiry.first is not None:
            due = inquiry.checkable - self._vouched if inquiry.for_new else inquiry.suspects or inquiry.checkable
        salt = f"{inquiry.first is None} {inquiry.failed} {len(inquiry.attempts)} "
        people, out = self._members.people, list[str]()

        def turn(group: list[str]) -> tuple[bool, int]:
            """The sort key of a group of peers. It is the same in every stage."""
            return due.isdisjoint(group), self._draw(inquiry.step, salt + people.of(group[0]))

        for group in sorted(people.together(actor.peer for actor in roster), key=turn):
            if len(out) >= len(roster) // 2:
                break
            few = len(out) + len(group) < len(roster)  # at least one other peer is left
            out += group if few else group[: len(roster) // 2 - len(out)]
        return [actor for actor in roster if actor.peer not in out]

    def _secret(self, what: str) -> int:
        return self._draw(self._inquiry.step, what)

    def _draw(self, step: int, what: str = "") -> int:
        drawn = hashlib.blake2b(f"{step} {what}".encode(), key=self._settings.audit_secret, digest_size=8)
        return int.from_bytes(drawn.digest(), "big")

    # ------------------------------------------------------------ what comes of it

    def _compare_parts(
        self, found: CulpritSearch, first: CulpritSearch, own_sums: StepSums, decision: Decision
    ) -> Ruling:
        """Compare two attempts: all peers took part in the second one, but each part was computed by another peer."""
        inquiry, tolerance = self._inquiry, self._settings.audit_tolerance
        if not same(first.answers, found.answers, tolerance):
            return self._differs(found, first)
        if not same(first.answers, found.answers, 0.0):
            self._unlike = True
            return Ruling(
                again="audited: the last bits differ between machines: half of the replicas compute the step again"
            )
        parts = compare(first.tables, found.tables, inquiry.own_sums, own_sums)
        self._believe(parts.right)
        inquiry.unchecked = inquiry.checkable - parts.right
        if not inquiry.unchecked:
            self._noted(decision)
            return Ruling(agreed=True)
        inquiry.suspects, inquiry.for_new = set(inquiry.unchecked), False
        what = "a peer's part gave a different result" if parts.wrong else "some parts were divided differently"
        return Ruling(again=f"audited: {what}: half of the replicas compute the step again")

    def _compare(self, found: CulpritSearch, first: CulpritSearch, decision: Decision) -> Ruling:
        """Compare the first attempt with one in which some peers were left out."""
        inquiry = self._inquiry
        if not same(first.answers, found.answers, self._settings.audit_tolerance):
            return self._differs(found, first)
        left_out = first.assigned - found.served
        new = left_out - self._vouched
        self._believe(left_out)
        unchecked, inquiry.unchecked = inquiry.unchecked, inquiry.unchecked - left_out
        if inquiry.unchecked and inquiry.unchecked != unchecked:
            inquiry.suspects = set(inquiry.unchecked)
            return Ruling(again="audited: the step is repeated without the other peers")
        if inquiry.doubted or (inquiry.for_new and new and inquiry.checkable - self._vouched):
            return Ruling(again="audited: the step is repeated without the other peers")
        if inquiry.for_new and inquiry.drawn:
            inquiry.for_new = False
            return Ruling(again="audited: the step is repeated without peers drawn at random")
        self._noted(decision)
        return Ruling(agreed=True)

    def _differs(self, found: CulpritSearch, first: CulpritSearch) -> Ruling:
        inquiry = self._inquiry
        inquiry.failed += 1
        if self._waits(first):
            inquiry.begin_anew()
            return Ruling(again="audited: the result differed: the step is repeated once other replicas are back")
        if inquiry.searches < MOST_SEARCHES:
            return self._search_for(first, found.answers)
        inquiry.begin_anew()
        return Ruling(again="audited: the result differs again")

    def _believe(self, peers: Collection[str]) -> None:
        """These peers computed this step correctly, because others got the same result."""
        self._vouched |= set(peers)
        for peer in self._watched.keys() & peers:
            self._watched[peer] -= 1
            if not self._watched[peer]:
                del self._watched[peer]
        self._screen.believe(peers)

    def _check(self, found: CulpritSearch, truth: Answers, decision: Decision) -> Ruling:
        """The search found no culprit, but every peer tried alone gave the result `truth`. Check a new result against
        it.

        A peer may have been honest only while it was tried alone.
        """
        inquiry = self._inquiry
        if same(truth, found.answers, self._settings.audit_tolerance):
            self._noted(decision)
            return Ruling(agreed=True)
        inquiry.failed += 1
        if inquiry.failed >= MOST_ATTEMPTS:
            inquiry.begin_anew()
        return Ruling(again="audited: the result differs again")

    def _noted(self, decision: Decision) -> None:
        """Take over what was learned from the step, which is decided now, and prepare for the next step."""
        self.took_part = frozenset()
        if self.comparing:
            self.took_part = frozenset(peer for _, served in self._inquiry.attempts for peer in served)
            self._last = decision.step
        if not decision.skip:
            self._norms.append(decision.gradient_norm)
            self._screen.decided(self._inquiry.own_sums)
        self._inquiry = _Inquiry(-1)

    def _search_for(self, first: CulpritSearch, again: Answers) -> Ruling:
        inquiry = self._inquiry
        arrivals = {member.actor: place for place, member in enumerate(self._members)}
        inquiry.search = search(first, again, arrivals, self._members.people, self._settings.audit_tolerance)
        inquiry.searches += 1
        inquiry.doubted = True
        inquiry.heard.clear()
        return self._next(None, "audited: the result differs without some of its peers")

    def _go_on(self, found: CulpritSearch) -> Ruling:
        """Continue the search with the result of its last trial."""
        inquiry = self._inquiry
        if not inquiry.goes_on(found.tables):
            return Ruling(again="audited: some peers are gone, so results cannot be compared")
        inquiry.heard.append(found.answers)
        return self._next(found.answers, "audited: searching for the peer with different results")

    def _next(self, answers: Answers | None, reason: str) -> Ruling:
        inquiry = self._inquiry
        assert inquiry.search is not None
        try:
            inquiry.trial = next(inquiry.search) if answers is None else inquiry.search.send(answers)
        except StopIteration as found:
            accused: tuple[Accused, ...] = found.value
            heard, tolerance = inquiry.heard, self._settings.audit_tolerance
            inquiry.begin_anew()
            if accused:
                inquiry.searches = inquiry.failed = 0
                inquiry.outcomes.clear()
                inquiry.workers.clear()
                self._vouched -= {each.actor.peer for each in accused}
            elif heard and all(same(heard[0], each, tolerance) for each in heard):
                inquiry.truth = heard[0]
            return Ruling(again="audited: the step is repeated", expelled=accused)
        return Ruling(again=reason)
