"""Whether what a step came to is right: some steps are computed again by other peers, and must come out the same.

A peer may compute wrong numbers that look sound: on purpose, or because its memory or its graphics card is broken. Its
siblings add its wrong numbers to theirs, so all still agree about the reduced bytes. So when a step is ready to be
decided, the coordinator sometimes does not decide it, and has it computed once more: each replica's part by a sibling
(`exchange`), or all by half of the replicas of every stage. Sums are exact, so the digests must be equal, if those
whose part others did have told the truth; between machines of unlike kinds, the sums nearly so. Which steps: some are
drawn, and those in which somebody's sums are unlike its siblings' (`Screen`). If they are not equal, a search tells who
it was. Peers notice nothing but a step that is done again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from swarm.protocol.coordinator.audit.culprit_search import Accused, CulpritSearch, Search, Tables, same, search
from swarm.protocol.coordinator.audit.exchange import Doers, compare, dealt, exchange
from swarm.protocol.coordinator.audit.screen import Screen
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.pass_state import Answers, OwnSums, PassState
from swarm.protocol.ids import Actor, Pair
from swarm.protocol.messages import Decision
from swarm.protocol.settings import Settings

NEW_PER_PERIOD = 16
"""Audits for the sake of newcomers in the time of one that is drawn, at most."""
JUMP = 4.0
"""Times the usual gradient norm: a step with more is audited."""
USUAL_STEPS = 16
MOST_SEARCHES = 3
"""Of one step, in vain. After that it is only done again, until it comes out the same with two halves."""
MOST_ATTEMPTS = 10
"""That it may come out otherwise, or be given up. Then it is decided when it comes out as seems right by then."""
WATCHED_STEPS = 8
"""Steps with somebody who alone can have told a lie that must come out the same without it."""
LAST_ATTEMPT = 3 * MOST_ATTEMPTS
"""Then it is decided as it comes out."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be done about a step that is ready to be decided."""

    again: str = ""
    """Why it is to be done again. Empty: decide it."""
    agreed: bool | None = None
    """It was done again without some of its peers, and came out the same; or otherwise each time, and nobody was found.

    None: it was not audited.
    """
    expelled: tuple[Accused, ...] = ()
    """Who is to have no part in the run any more."""
    refused: tuple[Actor, ...] = ()
    """Without whom it is to be done again."""


DECIDE = Ruling()
Rosters = list[list[Actor]]
"""By stage."""
StepSums = Sequence[Sequence[OwnSums]]
"""By stage."""


@dataclass(slots=True)
class _Inquiry:
    """What is known of the step that is to be decided next."""

    step: int
    first: CulpritSearch | None = None
    """What it came to when all computed it."""
    truth: Answers | None = None
    """What it came to whoever was tried alone: only that is decided."""
    for_new: bool = False
    """Who was never left out is left out now."""
    drawn: bool = False
    """Or whoever the lot falls on."""
    doubted: bool = False
    """It came out otherwise before."""
    outcomes: list[tuple[Answers, set[str]]] = field(default_factory=list)
    """What it came to since then, and all without whom it came to that in some attempt."""
    attempts: list[tuple[Answers, frozenset[str]]] = field(default_factory=list)
    """What it came to each time, from the first on, and who had a part in it."""
    workers: set[str] = field(default_factory=set)
    """Peers that did something in those attempts that a sibling could have done."""
    spare: set[str] = field(default_factory=set)
    """Peers that can be left out of the next attempt, since they have siblings."""
    due: set[str] = field(default_factory=set)
    """Those of them without whom it never came to what it came to last."""
    likely: bool = False
    """They are fewer than with any other outcome so far, or as few."""
    search: Search | None = None
    trial: Tables = ()
    """What the search wants to know the outcome of."""
    heard: list[Answers] = field(default_factory=list)
    """What its trials came to."""
    searches: int = 0
    """In vain, so far."""
    failed: int = 0
    """Attempts that came out otherwise, or were given up."""
    away: set[str] = field(default_factory=set)
    """Peers that failed when they had a stage alone, or went while somebody was looked for: they have no part in it."""
    own_sums: StepSums = ()
    """What peers had contributed to it when all computed it."""
    suspects: set[str] = field(default_factory=set)
    """Whose contributions were most unlike others'."""
    doers: Doers = ()
    """Of the next attempt, if it is an exchange. Empty: it is none."""
    exchanged: bool = False
    """There was an exchange, or an attempt at one."""
    unchecked: set[str] = field(default_factory=set)
    """Whose parts an exchange has not shown to be right: each is left out of an attempt."""

    @property
    def takes_half(self) -> bool:
        """Whether the next attempt goes without half; at last all do, since somebody may lie when all are there."""
        compares = self.first is not None or self.truth is not None
        return self.search is None and (compares or self.searches >= MOST_SEARCHES)

    def goes_on(self, tables: Tables) -> bool:
        """Whether all who are to be tried are in these tables, in their stages. If not, it is begun without them."""
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
        """Whether it came to the same without each person's peers: that is right, whoever else may lie at times."""
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
        """The peers of the one person who can have told all lies, if no other can; else none.

        Without the only liar, it comes to the same always. It need not be one if several lie.
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
    """`rosters` and `tables` before a training pass opens; then `judge` when it is ready, or `gave_up`."""

    def __init__(self, settings: Settings, members: Members) -> None:
        self._settings = settings
        self._members = members
        self._vouched: set[str] = set()
        """Peers without whom a step came out the same."""
        self._idle: set[str] = set()
        """Peers that were there when newcomers were audited, and had nothing to do that could have been looked at."""
        self._watched: dict[str, int] = {}
        """Peers that alone can have told a lie: steps that are yet to come out the same without them."""
        self._unlike = False
        """Whether the machines compute the same step with other last bits: then parts cannot be compared."""
        self._norms: deque[float] = deque(maxlen=USUAL_STEPS)
        self._last = -NEW_PER_PERIOD * settings.audit_every
        """The last step that was audited."""
        self._inquiry = _Inquiry(-1)
        self.took_part: frozenset[str] = frozenset()
        """Peers that had a part in some attempt at the last decided step, if it was audited."""
        self._screen = Screen()

    @property
    def comparing(self) -> bool:
        """Whether the open step has been computed before, so that everything else must stay as it was."""
        return self._inquiry.first is not None or self._inquiry.doubted

    @property
    def searching(self) -> bool:
        """Whether what it comes to is to be known, even if it is not finite."""
        return self._inquiry.search is not None

    def forget(self) -> None:
        """The history goes on from another version."""
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
        """Who has a part in the next attempt at `step`, of those who could have. The rest: as `wire` takes it."""
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
        """Who is suspected is better left out; and so is half if an exchange has come to nothing."""
        return not (self._unlike or inquiry.exchanged or inquiry.doubted or inquiry.suspects)

    def tables(self, wired: Tables) -> Tables:
        """Who does what in it; `wired`, but while somebody is looked for."""
        inquiry = self._inquiry
        trial = inquiry.trial
        if inquiry.doers:
            return dealt(wired, inquiry.doers)
        return trial if inquiry.search is not None and inquiry.goes_on(wired) else wired

    def gave_up(self, pass_state: PassState) -> None:
        """An attempt came to nothing. Whoever had a stage alone, for the sake of the audit, is not tried so again."""
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
        """`pass_state`: of a training pass whose stages are all prepared; `without`: who died when all others were."""
        if not self._settings.audit_every:
            return self._refuse(pass_state.own_sums(without)) if self._settings.screened else DECIDE
        inquiry = self._inquiry
        found = CulpritSearch(
            tuple(pass_state.tables),
            pass_state.answers(without),
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
            return Ruling(again=f"audited: without {who} alone it always came to the same: it is done without it")
        if inquiry.truth is not None:
            return self._check(found, inquiry.truth, decision)
        if inquiry.first is not None and inquiry.doers:
            return self._compare_parts(found, inquiry.first, pass_state.own_sums(without), decision)
        if inquiry.first is not None:
            return self._compare(found, inquiry.first, decision)
        inquiry.own_sums = pass_state.own_sums(without)
        return self._begin(found, decision)

    def _refuse(self, own_sums: StepSums) -> Ruling:
        """Steps of this run cannot be compared. Who is unlike others is left out, once: if it is the data, so be it."""
        inquiry = self._inquiry
        doubts = self._screen.doubts(own_sums)
        for stage, those in enumerate(own_sums):
            here = [doubt for doubt in doubts if doubt.stage == stage and doubt.what != "short"]
            told_apart = len(those) > 2 or len(here) == 1 or (here and here[0].what == "long")
            if here and len(those) > 1 and not inquiry.away and told_apart:
                inquiry.away.add(here[0].actor.peer)
                again = f"refused, since {here[0].reason}: others do its part"
                return Ruling(again=again, refused=(here[0].actor,))
        self._screen.decided(own_sums)
        self._inquiry = _Inquiry(-1)
        return DECIDE

    # ------------------------------------------------------------ when

    def _begin(self, found: CulpritSearch, decision: Decision) -> Ruling:
        inquiry = self._inquiry
        several = inquiry.doubted or any(len(table.roster) > 1 for table in found.tables)
        most = MOST_ATTEMPTS if inquiry.likely else LAST_ATTEMPT
        why = self._why(found, decision) if several and inquiry.failed < most else ""
        if not why:
            self._noted(decision)
            return Ruling(agreed=False if inquiry.doubted else None)
        inquiry.first = found
        if (decision.skip or not found.adds_up) and not inquiry.searches:
            return self._search_for(found, found.answers)  # it has been computed by others too
        return Ruling(again=f"audited, since {why}: it is done again by other replicas")

    def _why(self, found: CulpritSearch, decision: Decision) -> str:
        """Why a step is audited; empty: it is not."""
        inquiry, every, norm = self._inquiry, self._settings.audit_every, decision.gradient_norm
        drawn = ""
        if inquiry.doubted:
            drawn = "it came out otherwise before"
        elif decision.skip:
            drawn = "it is not finite"
        elif not found.adds_up:
            drawn = "what its peers say of their sums does not come to the whole"
        elif doubts := self._screen.doubts(inquiry.own_sums):
            drawn = doubts[0].reason
            inquiry.suspects = {doubts[0].actor.peer}
        elif watched := self._watched.keys() & found.workers:
            drawn = f"{' and '.join(sorted(watched))} may have told a lie before"
            inquiry.suspects = set(watched)
        elif len(self._norms) == USUAL_STEPS and norm > JUMP * median(self._norms):
            drawn = f"its gradient norm {norm:.3g} is more than {JUMP:g} times the usual one"
        elif inquiry.step % every == self._draw(inquiry.step // every, "which") % every:  # so no two are far apart
            drawn = f"one step in {every} is"
        due = (inquiry.step - self._last) * NEW_PER_PERIOD >= every
        new = found.workers - self._vouched
        if not due and not new & self._idle:
            new = set()
        inquiry.for_new, inquiry.drawn = bool(new), drawn != ""
        if new:
            there = {member.actor.peer for member in self._members}
            self._idle = ((self._idle | found.idle) & there) - new - self._vouched
        return f"{len(new)} of its peers never were" if new else drawn

    def _without_half(self, roster: list[Actor]) -> list[Actor]:
        """Nobody can tell who is left out; but those who never were are, for newcomers and after a doubt.

        The devices of one person are left out together, as far as the others are enough: they may lie together.
        """
        inquiry, due = self._inquiry, set[str]()
        if inquiry.doubted:
            due = inquiry.due
        elif inquiry.first is not None:
            due = (
                inquiry.first.workers - self._vouched if inquiry.for_new else inquiry.suspects or inquiry.first.workers
            )
        salt = f"{inquiry.first is None} {inquiry.failed} {len(inquiry.attempts)} "
        people, out = self._members.people, list[str]()

        def turn(group: list[str]) -> tuple[bool, int]:
            """The same in every stage."""
            return due.isdisjoint(group), self._draw(inquiry.step, salt + people.of(group[0]))

        for group in sorted(people.together(actor.peer for actor in roster), key=turn):
            if len(out) >= len(roster) // 2:
                break
            few = len(out) + len(group) < len(roster)  # somebody else is left
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
        """The step was computed again by all, each part by another."""
        inquiry, tolerance = self._inquiry, self._settings.audit_tolerance
        if not same(first.answers, found.answers, tolerance):
            return self._differs(found, first)
        if not same(first.answers, found.answers, 0.0):
            self._unlike = True
            return Ruling(again="audited: the last bits differ between machines: it is done again by half of them")
        parts = compare(first.tables, found.tables, inquiry.own_sums, own_sums)
        self._believe(parts.right)
        inquiry.unchecked = (first.workers - parts.right) & inquiry.spare
        if not inquiry.unchecked:
            self._noted(decision)
            return Ruling(agreed=True)
        inquiry.suspects, inquiry.for_new = set(inquiry.unchecked), False
        what = "the part of a peer came out otherwise" if parts.wrong else "some parts were divided anew meanwhile"
        return Ruling(again=f"audited: {what}: it is done again by half of the replicas")

    def _compare(self, found: CulpritSearch, first: CulpritSearch, decision: Decision) -> Ruling:
        """The step was computed again, without some."""
        inquiry = self._inquiry
        if not same(first.answers, found.answers, self._settings.audit_tolerance):
            return self._differs(found, first)
        left_out = first.workers - found.served
        new = left_out - self._vouched
        self._believe(left_out)
        unchecked, inquiry.unchecked = inquiry.unchecked, inquiry.unchecked - left_out
        if inquiry.unchecked and inquiry.unchecked != unchecked:
            inquiry.suspects = set(inquiry.unchecked)
            return Ruling(again="audited: it is done again without the others")
        if inquiry.doubted or (inquiry.for_new and new and first.workers - self._vouched):
            return Ruling(again="audited: it is done again without the others")
        if inquiry.for_new and inquiry.drawn:
            inquiry.for_new = False
            return Ruling(again="audited: it is done again without whoever the lot falls on")
        self._noted(decision)
        return Ruling(agreed=True)

    def _differs(self, found: CulpritSearch, first: CulpritSearch) -> Ruling:
        inquiry = self._inquiry
        inquiry.failed += 1
        if inquiry.searches < MOST_SEARCHES:
            return self._search_for(first, found.answers)
        inquiry.begin_anew()
        return Ruling(again="audited: it came out otherwise again")

    def _believe(self, peers: Collection[str]) -> None:
        """What they did in this step was right: it came to the same when others did it."""
        self._vouched |= set(peers)
        for peer in self._watched.keys() & peers:
            self._watched[peer] -= 1
            if not self._watched[peer]:
                del self._watched[peer]
        self._screen.believe(peers)

    def _check(self, found: CulpritSearch, truth: Answers, decision: Decision) -> Ruling:
        """Nobody was found, but who was tried alone agreed with all others: somebody told the truth only then."""
        inquiry = self._inquiry
        if same(truth, found.answers, self._settings.audit_tolerance):
            self._noted(decision)
            return Ruling(agreed=True)
        inquiry.failed += 1
        if inquiry.failed >= MOST_ATTEMPTS:
            inquiry.begin_anew()
        return Ruling(again="audited: it came out otherwise again")

    def _noted(self, decision: Decision) -> None:
        """It is decided."""
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
        return self._next(None, "audited: it came out otherwise without some of its peers")

    def _go_on(self, found: CulpritSearch) -> Ruling:
        """A trial of the search has come out."""
        inquiry = self._inquiry
        if not inquiry.goes_on(found.tables):
            return Ruling(again="audited: some are gone, so nothing can be compared")
        inquiry.heard.append(found.answers)
        return self._next(found.answers, "audited: looking for who computes otherwise than others")

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
            return Ruling(again="audited: it is done again", expelled=accused)
        return Ruling(again=reason)
