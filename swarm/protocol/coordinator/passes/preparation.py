"""The preparation of a step: which replicas are prepared, with which answers, and the decision that follows.

If all replicas of a stage have the same summed bytes, everything else that they report about the sums follows from
these bytes. So if one of them reports something else than most people (`People`), it is wrong. The word of most people
counts, and the stage need not add up its gradients once more.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from swarm.protocol import sketch
from swarm.protocol.clipping import step_scale
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import Answer, Answers, OwnSums
from swarm.protocol.coordinator.passes.drift import Drift, drift_of
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.lineage import mismatch
from swarm.protocol.messages import Decision, Open, Prepared, StageOutcome, StageTable
from swarm.protocol.update import Update


@dataclass(frozen=True, slots=True)
class Contradicted:
    """A replica whose report about the summed bytes is wrong: most people report otherwise about the same bytes."""

    actor: Actor
    stage: StageIndex
    reason: str
    plain: bool
    """True if no difference between machines explains it: it is about whether the sums are finite."""


class Preparation:
    """The reports of one pass. Each stage becomes complete on its own."""

    def __init__(
        self,
        opening: Open,
        tables: Sequence[StageTable],
        rate: float,
        partner: Callable[[int], StageIndex | None],
        people: People,
    ) -> None:
        """`tables`: the current tables; the caller replaces them. `rate`: the `Decision.rate`. `partner`: as for
        `PassState`.
        """
        self._people = people
        self.reports: dict[int, dict[Actor, Prepared]] = {s: {} for s in range(len(tables))}
        """For each stage, the Prepared of each actor under the current table."""
        self._answers: dict[int, Counter[Hashable]] = {s: Counter() for s in range(len(tables))}
        """For each stage and each answer, the number of these reports that give it."""
        self._opening = opening
        self._tables = tables
        self._rate = rate
        self._partner = partner

    def void(self, stages: Iterable[int]) -> None:
        """The table of a stage was replaced: what `stages` prepared under the old one is void."""
        for stage in stages:
            self.reports[stage] = {}
            self._answers[stage] = Counter()

    def prepare(self, actor: Actor, stage: int, prepared: Prepared) -> bool:
        """A member of the stage's roster is prepared under its current table. Return False if it had reported this
        before.
        """
        before = self.reports[stage].get(actor)
        if before == prepared:
            return False
        if before is not None:
            self._answers[stage] -= Counter((before.answer,))
        self.reports[stage][actor] = prepared
        self._answers[stage][prepared.answer] += 1
        return True

    def outcome(self, stage: int, without: frozenset[Actor]) -> StageOutcome | None:
        """The stage's outcome, if all members of its roster (without `without`) are prepared, and `_believed` knows
        which answer counts.
        """
        table = self._tables[stage]
        members = [actor for actor in table.roster if actor not in without]
        if not members or any(actor not in self.reports[stage] for actor in members):
            return None
        believed = self._believed(stage, without)
        return None if believed is None else StageOutcome(table.number, believed.digest, table.contributions())

    def _believed(self, stage: int, without: frozenset[Actor]) -> Prepared | None:
        """The report whose answer counts: the answer of all replicas or, if their bytes are equal, that of most people,
        who must be at least two. None: there is no such answer.
        """
        there = {actor: said for actor, said in self.reports[stage].items() if actor not in without}
        first = next(iter(there.values()), None)
        if (
            first is None
            or len(self._answers[stage]) == 1
            or {said.answer for said in there.values()} == {first.answer}
        ):
            return first
        if any((said.digest, said.receipt) != (first.digest, first.receipt) for said in there.values()):
            return None
        votes, counts = self._people.votes(actor.peer for actor in there), defaultdict[Hashable, Fraction](Fraction)
        for actor, said in there.items():
            counts[said.answer] += votes[actor.peer]
        answer = max(counts, key=lambda each: counts[each])
        several = self._people.count(actor.peer for actor, said in there.items() if said.answer == answer) > 1
        if not several or 2 * counts[answer] <= sum(counts.values()):
            return None
        return next(said for said in there.values() if said.answer == answer)

    def contradicted(self, without: frozenset[Actor]) -> list[Contradicted]:
        """The replicas whose reports are wrong. Call it once there is a decision."""
        found = []
        for stage in self.reports:
            if len(self._answers[stage]) == 1:
                continue
            believed = self._one(stage, without)
            for actor, said in self.reports[stage].items():
                if actor in without or said.answer == believed.answer:
                    continue
                plain = said.finite != believed.finite
                what = f"that its sums are {'' if said.finite else 'not '}finite" if plain else "another norm or sketch"
                reason = f"it reports {what}, but most replicas with the same sums do not"
                found.append(Contradicted(actor, StageIndex(stage), reason, plain))
        return found

    def decide(self, tokens: int, clip_norm: float, update: Update, without: frozenset[Actor]) -> Decision | None:
        """The decision, if every stage has an outcome. Scale 0 (SKIP) if a gradient is not finite."""
        if any(len(self.reports[s]) + len(without) < len(table.roster) for s, table in enumerate(self._tables)):
            return None  # checked first, because this method is called for every Prepared
        outcomes = [self.outcome(stage, without) for stage in range(len(self._tables))]
        if any(outcome is None for outcome in outcomes) or self._copies_differ(without):
            return None
        chosen = [self._one(stage, without) for stage in range(len(self._tables))]
        finite = all(p.finite for p in chosen)
        scale, norm = step_scale((p.squared_norm for p in chosen), tokens, clip_norm)
        return Decision(
            term=self._opening.pass_id.term,
            step=self._opening.pass_id.step,
            scale=scale if finite else 0.0,
            loss_sum=chosen[-1].loss_sum,
            tokens=tokens,
            gradient_norm=norm if finite else math.inf,
            outcomes=tuple(outcome for outcome in outcomes if outcome is not None),
            key_frames=self._key_frames(chosen),
            codecs=self._opening.codecs,
            rate=self._rate,
            update=update,
        )

    def drifts(self, without: frozenset[Actor], members: Members) -> tuple[Drift, ...]:
        """For each stage, the replicas that computed with different states. Call it once there is a decision."""
        found = []
        for stage, prepared in self.reports.items():
            states = {
                actor: (said.state, said.spoilt, said.unusable)
                for actor, said in prepared.items()
                if actor not in without
            }
            if (drift := drift_of(stage, states, members)) is not None:
                found.append(drift)
        return tuple(found)

    def spoilt(self, without: frozenset[Actor]) -> list[int]:
        """Stages that computed with a non-finite state. Call this only after a decision without drift."""
        return [stage for stage in self.reports if self._one(stage, without).spoilt]

    def unusable(self, without: frozenset[Actor]) -> list[int]:
        """Stages that computed with a state that gives nothing finite. Call this only after a decision without
        drift.
        """
        return [stage for stage in self.reports if self._one(stage, without).unusable]

    def not_finite(self, without: frozenset[Actor]) -> list[int]:
        """Stages whose sums are not finite. Call this only after a decision without drift."""
        return [stage for stage in self.reports if not self._one(stage, without).finite]

    def answers(self, without: frozenset[Actor]) -> Answers:
        """The answer of each stage. Call this only after there is a decision."""
        chosen = [self._one(stage, without) for stage in range(len(self._tables))]
        return tuple(
            Answer(p.digest, p.squared_norm if p.finite else math.inf, p.outline, self._adds_up(stage, p), p.loss_sum)
            for stage, p in enumerate(chosen)
        )

    def own_sums(self, without: frozenset[Actor]) -> list[tuple[OwnSums, ...]]:
        """For each stage, its peers' reported contributions to the sums of parameters that it does not share.

        Call it once there is a decision.
        """
        found = []
        for table, prepared in zip(self._tables, self.reports.values(), strict=True):
            there = []
            for actor, said in prepared.items():
                count, own = len(table.assigned_to(actor)), sketch.read(said.sketch)
                if actor not in without and said.finite and own is not None and count:
                    there.append(OwnSums(actor, count, own, said.sketch))
            found.append(tuple(there))
        return found

    def _adds_up(self, stage: int, chosen: Prepared) -> bool:
        """Return True if the sketches of the contributions add up to the sketch of the stage's sum, or if that is
        unknown.
        """
        if not chosen.finite or not chosen.seal:
            return True
        partner = self._partner(stage)
        parts = [[stage], *([[stage, partner]] if partner is not None else [])]
        sums = []
        for which, stages in enumerate(parts):
            those = [self.reports[s].get(actor) for s in stages for actor in self._tables[s].roster]
            if any(said is None for said in those):
                return True  # an actor that was lost after all others were prepared contributed too
            told = [sketch.read(said.sketch, which) for said in those if said is not None]
            if any(each is None for each in told):
                return False
            sums.append(sketch.added(each for each in told if each is not None))
        return sketch.seal_of(sums) == chosen.seal

    def mixed_copies(self, without: frozenset[Actor]) -> int | None:
        """The boundary whose two stages used different copies of a frame. None if there is none. Call this only after
        there is a decision.
        """
        return mismatch([self._one(stage, without).receipt for stage in range(len(self._tables))])

    def _key_frames(self, chosen: list[Prepared]) -> tuple[int, ...]:
        receipts = [prepared.receipt for prepared in chosen[1:]]
        everything = (1 << len(self._tables[0].assignment)) - 1
        return tuple(receipt.fresh & everything for receipt in receipts if receipt is not None)

    def _one(self, stage: int, without: frozenset[Actor]) -> Prepared:
        believed = self._believed(stage, without)
        assert believed is not None, "there is a decision, or the stage's answers do not differ"
        return believed

    def disagreeing(self) -> int | None:
        """The stage whose roster is completely prepared but gave different answers. None if there is none.

        If all stages are prepared but stages that share parameters have different sums of these, the last stage is
        returned.
        """
        everybody = True
        for stage, table in enumerate(self._tables):
            if len(self.reports[stage]) < len(table.roster):
                everybody = False
            elif len(self._answers[stage]) > 1 and self._believed(stage, frozenset()) is None:
                return stage
        return len(self._tables) - 1 if everybody and self._copies_differ(frozenset()) else None

    def _copies_differ(self, without: frozenset[Actor]) -> bool:
        """Return True if stages that share parameters have prepared different sums of them."""
        stages = [stage for stage in range(len(self._tables)) if self._partner(stage) is not None]
        return len({self._one(stage, without).shared for stage in stages}) > 1
