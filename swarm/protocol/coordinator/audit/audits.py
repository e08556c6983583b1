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

from collections.abc import Mapping
from dataclasses import dataclass, replace

from swarm.protocol.coordinator.audit.culprit_search import Accused, CulpritSearch, Tables, same, search
from swarm.protocol.coordinator.audit.exchange import compare, dealt, dealt_otherwise, exchange
from swarm.protocol.coordinator.audit.inquiry import Inquiry, StepSums
from swarm.protocol.coordinator.audit.selection import Selection
from swarm.protocol.coordinator.audit.vain_audits import VainAudits
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.answer import Answers
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, Pair
from swarm.protocol.messages import Decision, StageTable
from swarm.protocol.settings import Settings

MOST_ATTEMPTS = 10
"""After this number of attempts at a step that gave a different result or were aborted, the next result is decided,
unless an earlier result is more likely to be right.
"""
MOST_WAITS = 3
"""Maximum number of attempts that wait, before a search, for replicas that are away for a short time."""
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
    """Peers that get no work when the step is repeated, or, if it is decided, in some of the next steps."""


DECIDE = Ruling()
Rosters = list[list[Actor]]
"""One list of actors for each stage."""


class Audits:
    """Decides which steps are audited. Call `rosters` and `tables` before a training pass opens.

    Call `judge` when the pass is ready, or `gave_up` if it is aborted.
    """

    def __init__(self, settings: Settings, members: Members) -> None:
        self._settings = settings
        self._members = members
        self._selection = Selection(settings, members)
        self._unlike = False
        """True if machines differ in the last bits of the same step. Then parts cannot be compared."""
        self._vain = VainAudits()
        self._inquiry = Inquiry(-1)
        self.took_part: frozenset[str] = frozenset()
        """Peers that had a part in some attempt at the last decided step, if it was audited."""

    @property
    def comparing(self) -> bool:
        """True if the open step has been computed before. Then nothing else may change."""
        return self._inquiry.first is not None or self._inquiry.doubted

    @property
    def searching(self) -> bool:
        """True during a search, which needs the result of the step even if it is not finite."""
        return self._inquiry.search is not None

    @property
    def people_needed(self) -> int:
        """Number of people that each stage needs for the next attempt: two compare their results, and of three that
        differ, two can show who is right.
        """
        return 3 if self._inquiry.doubted else 2

    def forget(self) -> None:
        """The run has gone back to an earlier version: forget what is known about the next step."""
        self._inquiry = Inquiry(-1)
        self._selection.forget()
        self._vain.rolled_back()

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
            inquiry = self._inquiry = Inquiry(step)
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
        return [self._selection.without_half(inquiry, roster) for roster in rosters]

    def _may_exchange(self, inquiry: Inquiry) -> bool:
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
        if not inquiry.attempts:
            inquiry.opening = found
        inquiry.attempts.append((found.answers, found.served))
        if inquiry.search is not None:
            return self._go_on(found)
        people = self._members.people
        if inquiry.doubted and inquiry.came_to(found, people, tolerance):
            return self._noted(found, decision, agreed=True)
        if inquiry.doubted and (suspects := inquiry.suspects_alone(people, tolerance)):
            inquiry.away.update(suspects)
            self._selection.watch(suspects)
            inquiry.begin_anew()
            who = " and ".join(suspects)
            return Ruling(
                again=f"audited: all attempts without {who} gave the same result: the step is repeated without it"
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
        doubts = self._selection.screen.doubts(own_sums)
        for stage, those in enumerate(own_sums):
            here = [doubt for doubt in doubts if doubt.stage == stage and doubt.what != "short"]
            told_apart = len(those) > 2 or len(here) == 1 or (here and here[0].what == "long")
            if here and len(those) > 1 and not inquiry.away and told_apart:
                inquiry.away.add(here[0].actor.peer)
                again = f"refused, because {here[0].reason}: other peers compute its part"
                return Ruling(again=again, refused=(here[0].actor,))
        self._selection.screen.decided(own_sums)
        self._inquiry = Inquiry(-1)
        return DECIDE

    # ------------------------------------------------------------ when

    def _begin(self, found: CulpritSearch, decision: Decision) -> Ruling:
        inquiry = self._inquiry
        if not inquiry.doubted:
            found = self._without_vain(found)
        several = inquiry.doubted or any(self._has_siblings(*each) for each in enumerate(found.tables))
        most = MOST_ATTEMPTS if inquiry.likely else LAST_ATTEMPT
        why = ""
        if several and inquiry.failed < most:
            why = self._selection.reason(inquiry, found, decision, self._checkable(found))
            inquiry.marked |= inquiry.suspects
        if not why:
            return self._noted(found, decision, agreed=False if inquiry.doubted else None)
        inquiry.first = found
        if (decision.skip or not found.adds_up) and not inquiry.searches and not self._waits(found):
            return self._search_for(found, found.answers)  # the step has been computed by other peers too
        return Ruling(again=f"audited, because {why}: other replicas compute the step again")

    def _without_vain(self, found: CulpritSearch) -> CulpritSearch:
        """The same result, as if sketches that may start no audit now added up. Nothing is learned from these."""
        inquiry = self._inquiry
        vain = [
            stage
            for stage, each in enumerate(found.answers)
            if not (each.adds_up or self._vain.may_audit(stage, inquiry.step))
        ]
        if not vain:
            return found
        inquiry.own_sums = [() if stage in vain else sums for stage, sums in enumerate(inquiry.own_sums)]
        answers = [replace(each, adds_up=each.adds_up or s in vain) for s, each in enumerate(found.answers)]
        return replace(found, answers=tuple(answers))

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

    def _on_probation(self, stage: int, table: StageTable) -> bool:
        """Return True if a member of a stage, outside `table`, is left out of the step only as long as nobody needs
        it.
        """
        members = self._members.of_stage(stage)
        return any(m.on_probation and m.has_worked and m.actor not in table.roster for m in members)

    def _waits(self, first: CulpritSearch) -> bool:
        """Return True if a stage had one or two replicas in `first`, and further replicas will soon be back.

        One replica cannot be compared with another. If two replicas differ, nobody knows which is right.
        """
        few = any(
            len(table.roster) < 3 and (self._away(stage, table) or self._on_probation(stage, table))
            for stage, table in enumerate(first.tables)
        )
        self._inquiry.waits += few
        return few and self._inquiry.waits <= MOST_WAITS

    def _secret(self, what: str) -> int:
        return self._selection.draw(self._inquiry.step, what)

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
        self._selection.believe(parts.right)
        inquiry.unchecked = inquiry.checkable - parts.right
        if not inquiry.unchecked:
            return self._noted(found, decision, agreed=True)
        inquiry.suspects, inquiry.for_new = set(inquiry.unchecked), False
        what = "a peer's part gave a different result" if parts.wrong else "some parts were divided differently"
        return Ruling(again=f"audited: {what}: half of the replicas compute the step again")

    def _compare(self, found: CulpritSearch, first: CulpritSearch, decision: Decision) -> Ruling:
        """Compare the first attempt with one in which some peers were left out."""
        inquiry = self._inquiry
        if not same(first.answers, found.answers, self._settings.audit_tolerance):
            return self._differs(found, first)
        left_out = first.assigned - found.served
        new = not self._selection.has_checked(left_out)
        self._selection.believe(left_out)
        unchecked, inquiry.unchecked = inquiry.unchecked, inquiry.unchecked - left_out
        if inquiry.unchecked and inquiry.unchecked != unchecked:
            inquiry.suspects = set(inquiry.unchecked)
            return Ruling(again="audited: the step is repeated without the peers that are not checked yet")
        if inquiry.doubted or (inquiry.for_new and new and not self._selection.has_checked(inquiry.checkable)):
            return Ruling(again="audited: the step is repeated without the other peers")
        if inquiry.for_new and inquiry.drawn:
            inquiry.for_new = False
            return Ruling(again="audited: the step is repeated without peers drawn at random")
        return self._noted(found, decision, agreed=True)

    def _differs(self, found: CulpritSearch, first: CulpritSearch) -> Ruling:
        inquiry = self._inquiry
        inquiry.failed += 1
        if self._waits(first):
            inquiry.begin_anew()
            return Ruling(again="audited: the result differed: the step is repeated once other replicas are back")
        if inquiry.may_search:
            return self._search_for(first, found.answers)
        inquiry.begin_anew()
        return Ruling(again="audited: the result differs again")

    def _check(self, found: CulpritSearch, truth: Answers, decision: Decision) -> Ruling:
        """The search found no culprit, but every peer tried alone gave the result `truth`. Check a new result against
        it.

        A peer may have been honest only while it was tried alone.
        """
        inquiry = self._inquiry
        if same(truth, found.answers, self._settings.audit_tolerance):
            return self._noted(found, decision, agreed=True)
        inquiry.failed += 1
        if inquiry.failed >= MOST_ATTEMPTS:
            inquiry.begin_anew()
        return Ruling(again="audited: the result differs again")

    def _noted(self, found: CulpritSearch, decision: Decision, agreed: bool | None) -> Ruling:
        """Take over what was learned from the step, which is decided now as `found`, and prepare for the next step."""
        refused = self._suspects(found)
        self.took_part = frozenset()
        if self.comparing:
            self.took_part = frozenset(peer for _, served in self._inquiry.attempts for peer in served)
        self._selection.decided(self._inquiry, decision, audited=self.comparing)
        self._inquiry = Inquiry(-1)
        return Ruling(agreed=agreed, refused=refused)

    def _suspects(self, found: CulpritSearch) -> tuple[Actor, ...]:
        """The only peer with unusual sums in the first attempt, if that was wrong in its stage, and no culprit was
        found. It may have told the truth whenever the step was repeated.
        """
        inquiry, tolerance = self._inquiry, self._settings.audit_tolerance
        if (opening := inquiry.opening) is None or opening is found:
            return ()
        pairs = list(enumerate(zip(opening.answers, found.answers, strict=True)))
        wrong = [s for s, (one, two) in pairs if not replace(one, adds_up=two.adds_up).is_like(two, tolerance)]
        if not wrong and not opening.adds_up:
            self._vain.add([stage for stage, (one, _) in pairs if not one.adds_up], inquiry.step)
        rosters = [opening.tables[stage].roster for stage in wrong if len(opening.tables[stage].roster) > 2]
        marked = tuple(actor for roster in rosters for actor in roster if actor.peer in inquiry.marked)
        return marked if len(marked) == 1 else ()

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
                inquiry.opening = None
                self._vain.clear()
                inquiry.outcomes.clear()
                inquiry.workers.clear()
                self._selection.distrust({each.actor.peer for each in accused})
            elif heard and all(same(heard[0], each, tolerance) for each in heard):
                inquiry.truth = heard[0]
            return Ruling(again="audited: the step is repeated", expelled=accused)
        return Ruling(again=reason)
