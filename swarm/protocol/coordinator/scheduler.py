"""Chooses the next pass and makes its opening: after a decided step, evaluation and samples if due, otherwise the next
step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from swarm.protocol.coordinator.audit.audits import Audits
from swarm.protocol.coordinator.codec_choice.choice import CodecChoice
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.roster_weights import RosterWeights
from swarm.protocol.ids import Actor, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.messages import Open
from swarm.protocol.residuals import Rosters
from swarm.protocol.settings import Settings

ENTERING_WEIGHT = 0.25
"""Weight of an actor that enters a roster without the last decision. It is small, so that the actor can finish its
share even if it begins late.
"""
LATE_WEIGHT = 0.5
"""Weight of an actor that enters a roster during the pass. It can begin at once, but its inputs still have to arrive.
"""
NEW_WEIGHT = 0.25
"""Weight of an actor that has taken part in no decided step, if its siblings have."""


class Scheduler:
    """`due` returns the kind of the next pass, `pass_state` creates it, and the other methods report its end."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        failure_history: FailureHistory,
        rosters: Rosters,
        choice: CodecChoice,
        weights: RosterWeights,
        audits: Audits,
    ) -> None:
        self._settings = settings
        self._audits = audits
        self._rosters = rosters
        self._history = history
        self._members = members
        self._failure_history = failure_history
        self._choice = choice
        self._weights = weights
        self._index = 0
        """Index of the last forward-only pass in this term."""
        self._evaluated = -1
        """The newest version whose evaluation is complete or was abandoned."""
        self._sampled = 0
        """Number of tokens of the text sample after that evaluation so far."""
        self._sample_since = 0.0
        """The time when the first of these tokens was begun."""
        self._opened = -1
        """The newest version whose evaluation has begun."""

    def due(self) -> PassKind | None:
        """The kind of the next pass. None: all steps are decided, evaluated and sampled."""
        settings, version = self._settings, self._history.version
        over = version == self._history.end(settings)
        pause = settings.evaluate_every > 0 and (over or (version > 0 and version % settings.evaluate_every == 0))
        if pause and self._evaluated < version:
            return PassKind.EVALUATE
        if pause and self._sampled < settings.sample_tokens:
            return PassKind.GENERATE
        return None if over else PassKind.TRAIN

    def pass_state(
        self,
        kind: PassKind,
        rosters: list[list[Actor]],
        now: float,
        promotion: Collection[Actor] = (),
        step_s: float = 0.0,
    ) -> PassState:
        """A new pass of `kind` with these replicas, by stage: it gets an id and tables.

        `promotion`: the replicas that still lack the last decision and begin later. `step_s`: as in Open.
        """
        version, failure_history = self._history.version, self._failure_history
        weights: dict[Actor, float] = {}
        for stage, roster in enumerate(rosters):
            weights |= self._weights.of(roster, stage)
            if kind is PassKind.TRAIN:
                weights |= {actor: min(weights[actor], NEW_WEIGHT) for actor in self._new_of(roster)}
        weights |= {a: min(weights[a], ENTERING_WEIGHT) for a in promotion}
        microbatches = {
            PassKind.TRAIN: self._settings.microbatches,
            PassKind.EVALUATE: self._settings.evaluate_microbatches,
            PassKind.GENERATE: 1,
        }[kind]
        probed = frozenset(actor for actor in weights if failure_history.probation.is_tried(actor.peer))
        if kind is PassKind.TRAIN:
            rosters = self._audits.rosters(version, rosters, weights, failure_history.blocked(version), probed)
            pass_id = PassId(self._history.term, StepNumber(version))
            if self._settings.averages_compressed:
                rosters = self._rosters.in_order(pass_id, rosters)
            for actor in weights:
                if (member := self._members.get(actor)) is not None and member.version == version:
                    member.prepared = None  # a Prepared from before this pass is void
        else:
            self._index += 1
            if kind is PassKind.EVALUATE and self._opened != version:
                self._opened = version
                failure_history.next_evaluation()
            if kind is PassKind.EVALUATE or not self._sampled:
                self._sample_since = now
            pass_id = PassId(self._history.term, StepNumber(version - 1), self._index)
        idle: list[list[Actor]] = [[] for _ in rosters]
        if kind is not PassKind.TRAIN:
            rosters, idle = self._without_idle(rosters)
            probed = probed.union(*idle)
        turns = failure_history.turns if kind is PassKind.TRAIN else failure_history.nonfinite
        tables = wire(rosters, weights, microbatches, failure_history.blocked(version), turns, probed)
        tables = tuple(
            replace(table, roster=(*table.roster, *others)) for table, others in zip(tables, idle, strict=True)
        )
        if kind is PassKind.TRAIN and self._settings.averages_compressed:
            tables = tuple(
                replace(table, carried=self._rosters.carried(pass_id, stage, table.roster))
                for stage, table in enumerate(tables)
            )
        elif kind is PassKind.TRAIN:
            tables = tuple(replace(table, lines=self._weights.lines(table.roster)) for table in tables)
        if kind is PassKind.TRAIN:
            self._weights.dealt(tables)
            tables = self._audits.tables(tables)
            if not self._audits.comparing:
                self._choice.choose(tables, version, step_s)
        opening = Open(
            pass_id,
            kind,
            tables,
            self._history.decision,
            self._choice.current,
            nonfinite=kind is PassKind.TRAIN and failure_history.nonfinite > 0,
            rolled_back_in=Term(self._history.rolled_back_in),
            step_s=step_s,
            save=self._history.is_asked,
            steps=self._history.controls.steps or 0,
        )
        pass_state = PassState(
            opening,
            weights=weights,
            now=now,
            probed=probed,
            rate=self._history.controls.rate,
            since=None if kind is PassKind.TRAIN else self._sample_since,
            partner=self._settings.partner,
            people=self._members.people,
        )
        pass_state.promotion = frozenset(promotion)
        return pass_state

    def _new_of(self, roster: Collection[Actor]) -> list[Actor]:
        """The actors of the roster that have taken part in no decided step. Empty if this is true of all, as at the
        start of the run.
        """
        there = {actor: member for actor in roster if (member := self._members.get(actor)) is not None}
        new = [actor for actor, member in there.items() if not member.has_counted]
        return new if len(new) < len(there) else []

    def _without_idle(self, rosters: list[list[Actor]]) -> tuple[list[list[Actor]], list[list[Actor]]]:
        """For each stage: the actors that get work in a forward-only pass, and those without work because they delayed
        earlier ones.
        """
        busy = [[a for a in roster if not self._failure_history.is_idle(a.peer)] or roster for roster in rosters]
        return busy, [[a for a in roster if a not in those] for roster, those in zip(rosters, busy, strict=True)]

    def weight(self, actor: Actor, pass_state: PassState, stage: StageIndex) -> float | None:
        """Weight of an actor that enters a roster of the open pass. None if it cannot enter, because it lacks residuals
        that the others have.
        """
        if self._settings.averages_compressed and self._rosters.carried(pass_state.pass_id, stage, (actor,)) != (-1,):
            return None
        roster = [*pass_state.tables[stage].roster, actor]
        most = NEW_WEIGHT if actor in self._new_of(roster) else LATE_WEIGHT
        return min(most, self._weights.of(roster, stage)[actor])

    @property
    def samples(self) -> bool:
        """True while a text sample has begun and is not complete."""
        return self._sampled > 0

    def completed(self, kind: PassKind) -> None:
        """A forward-only pass has its result."""
        if kind is PassKind.EVALUATE:
            self._evaluated = self._history.version
            self._sampled = 0
        else:
            self._sampled += 1

    def aborted(self, kind: PassKind) -> bool:
        """Return True if an aborted pass is abandoned: a sample at once, an evaluation at the third abort, a step
        never.
        """
        if kind is PassKind.TRAIN or (kind is PassKind.EVALUATE and self._failure_history.aborts <= 2):
            return False
        self.dropped()
        return True

    def dropped(self) -> None:
        """Skip the evaluation that is due, or the sample after it. The next one takes place as scheduled."""
        self._evaluated = self._history.version
        self._sampled = self._settings.sample_tokens

    def new_term(self) -> None:
        """Restart the count of passes. After a rollback, later evaluations must be done again."""
        self._index = 0
        self._evaluated = min(self._evaluated, self._history.version)
