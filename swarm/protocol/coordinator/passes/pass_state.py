"""The coordinator's record of one open pass: its tables, the tokens that were sent, and the answers of its peers.

The record is discarded when the pass ends.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction

from swarm.protocol import sketch
from swarm.protocol.clipping import step_scale
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.drift import Drift, drift_of
from swarm.protocol.coordinator.passes.idle_time import IdleTime, excused
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Microbatch,
    PassKind,
    StageIndex,
)
from swarm.protocol.lineage import mismatch
from swarm.protocol.messages import (
    UNTOLD,
    Decision,
    Listener,
    Open,
    Prepared,
    Result,
    StageOutcome,
    StageTable,
    Status,
    attempt_under,
    is_near,
)
from swarm.protocol.timeouts import Observed
from swarm.protocol.update import Update

APART = 5.0
"""Two gradients count as alike if their distance is at most this multiple of tolerance × length.

The distance exceeds the difference of the lengths, because rounding errors of different machines point in random
directions.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a stage's reduction in one attempt."""

    digest: str
    squared_norm: float
    outline: bytes = b""
    """The same as `Prepared.outline`."""
    adds_up: bool = True
    """True if the sketches of the contributions add up to the sketch of the sum. If not, a peer has reported a false
    sketch.
    """

    @property
    def finite(self) -> bool:
        return math.isfinite(self.squared_norm)

    def is_like(self, other: Answer, tolerance: float) -> bool:
        """Return True if both may be the same gradient. `tolerance`: the largest relative difference of the lengths."""
        if self.adds_up != other.adds_up:
            return False
        if not (self.finite and other.finite):
            return self.finite == other.finite
        if self.digest == other.digest:
            # a peer that is alone in its half may report any norm for the same bytes
            return self.squared_norm == other.squared_norm
        one, two = math.sqrt(max(0.0, self.squared_norm)), math.sqrt(max(0.0, other.squared_norm))
        return abs(one - two) <= tolerance * max(one, two) and self._is_near(other, tolerance)

    def _is_near(self, other: Answer, tolerance: float) -> bool:
        """Return True if both gradients point in about the same direction, according to their outlines."""
        one, two = sketch.read(self.outline), sketch.read(other.outline)
        if one is None or two is None:
            return tolerance > 0.0 and one is two
        apart = [a - b for a, b in zip(one, two, strict=True)]
        return sketch.length(apart) <= APART * tolerance * max(sketch.length(one), sketch.length(two))


Answers = tuple[Answer, ...]
"""One answer per stage."""


@dataclass(frozen=True, slots=True)
class OwnSums:
    """The gradient that one peer contributed to its stage's sums."""

    actor: Actor
    microbatches: int
    sketch: sketch.Sketch
    told: bytes = field(default=b"", repr=False)
    """All sketches that the peer reported (`Prepared.sketch`)."""


class PassState:
    """The state of one pass. A new table replaces `tables[s]`. Each stage becomes complete on its own (`Prepared`)."""

    def __init__(
        self,
        opening: Open,
        *,
        weights: dict[Actor, float],
        now: float,
        probed: frozenset[Actor] = frozenset(),
        rate: float = 1.0,
        since: float | None = None,
        partner: Callable[[int], StageIndex | None] = lambda stage: None,
    ) -> None:
        """`opening`: the Open of the pass, with the first tables of all stages and no listeners.

        `partner`: for a stage, the stage that holds some of the same parameters (`Settings.partner`).
        """
        self.opening = opening
        """The Open message that peers get, with the current tables and the current listeners."""
        self.pass_id = opening.pass_id
        self.kind = opening.kind
        self.tables = tables = list(opening.tables)
        self.weights = weights
        self.rate = rate
        """The `Decision.rate` in force when the pass opened."""
        self.probed = probed
        """Actors on probation, which get at most one microbatch."""
        self.served: set[Actor] = set()
        """Actors that have or had work in the pass. No actor enters the pass twice."""
        self.entrants: dict[Actor, Actor] = {}
        """Listeners that have caught up and wait for work. The key is the actor that is asked to release microbatches
        for the listener.
        """
        self.listeners: tuple[Listener, ...] = ()
        """The same as `Open.listeners`. The listeners may change while the pass is open (`listen`)."""
        self._listens: dict[Actor, frozenset[int]] = {}
        """For each listener, the stages whose tables concern it."""
        self._loads: dict[Actor, StageIndex] = {}
        """For each listener that loads a state, its stage."""
        self.promotion: frozenset[Actor] = frozenset()
        """Members of the rosters that still lack the last decision. They were listeners before."""
        self.opened_at = now
        self._entered_at: dict[Actor, float] = {}
        """For each actor that entered the open pass, when it did."""
        self.since = now if since is None else since
        """The time when the pass was opened; for a pass of a sample, the time when the sample was begun."""
        self.judged_from = now
        """The time from which the duration of the pass is judged: `opened_at`, plus the time in which the coordinator
        stood still.
        """
        self.fences = 0
        self.disturbers: dict[Actor, str] = {}
        """Actors that were lost, fenced or too slow in this pass, and why."""
        self.kept_waiting: dict[Actor, set[str]] = {}
        """For each actor, the ids of excluded peers whose reduction had waited for it and for few others."""
        self.done_again = 0
        """Number of microbatches that these actors had accumulated and that others do again."""
        self.prepared: dict[int, dict[Actor, Prepared]] = {s: {} for s in range(len(tables))}
        """For each stage, the Prepared of each actor. Changed by `prepare` and `amend`."""
        self._answers: dict[int, Counter[Hashable]] = {s: Counter() for s in range(len(tables))}
        """For each stage and each answer, the number of these reports that give it."""
        self.results: dict[Microbatch, Result] = {}
        self.progress_at: dict[Actor, float] = {}
        self._queued: set[Actor] = set()
        """Actors that report work which they could compute now."""
        self.moved_at: dict[Actor, float] = {}
        """The time when each actor last reported that it forwarded or accumulated a microbatch."""
        self._awaited = IdleTime()
        self.releasing: dict[Actor, tuple[Microbatch, ...]] = {}
        """Microbatches that slow or leaving actors are asked to release under the current tables."""
        self.given: dict[Actor, tuple[Microbatch, ...]] = {}
        """Microbatches that actors have given up in their answers. They stay assigned to these actors until the stage's
        next table.
        """
        self.released: list[set[Microbatch]] = [set() for _ in tables]
        """For each stage, the microbatches that slow peers have given up. Nobody is asked for them again in this pass,
        however slow their new owner is.
        """
        self.digest_retries: dict[int, int] = {}
        self.digest_votes: defaultdict[tuple[int, Hashable], Fraction] = defaultdict(Fraction)
        """The votes for each answer of a stage, in attempts whose digests differed (`People`). Exact sums are equal in
        all attempts.
        """
        self.sealed_at: dict[int, float] = {}
        self._reduced: dict[Actor, tuple[tuple[int, ...], int]] = {}
        """For each actor, the progress of its reduction, and the table numbers of this reduction. The count begins
        again with new tables.
        """
        self._reduced_at: dict[Actor, float] = {}
        """The time when each actor's reduction last progressed."""
        self._reduce_moved_at: dict[int, float] = {}
        """For each stage, when a member of its roster last reported progress of the reduction."""
        self.services = Observed()
        self._before: dict[tuple[int, int], list[Actor]] = {}
        """(stage, microbatch) → its assignees before it was moved."""
        self._microbatches = len(tables[0].assignment)
        self._partner = partner
        self._fed: set[Microbatch] = set()
        self._begun: set[Actor] = set()
        """Actors that have reported that they have begun this pass. They get tokens before that."""
        self._done: dict[Actor, int] = {}
        self._forwarded: dict[Actor, int] = {}
        self._stage_of: dict[Actor, int] = {}
        self._shares: list[dict[Actor, tuple[Microbatch, ...]]] = []
        """For each stage, the assignment by actor under the current table."""
        self._sets: dict[Actor, tuple[tuple[Microbatch, ...], int]] = {}
        """Cache. For each actor, the microbatches that are assigned to it, and the same as a bit set."""
        self._busy: list[set[Actor]] = []
        """For each stage, the actors that have not accumulated everything assigned to them."""
        self._near = [frozenset(self.concerned(stage)) for stage in range(len(tables))]
        for stage, table in enumerate(tables):
            self._shares.append({})
            self._busy.append(set())
            self._take(stage, table)

    def _take(self, stage: int, table: StageTable) -> None:
        """Update all fields that depend on the table of a stage."""
        self._shares[stage] = table.shares()
        self._stage_of |= dict.fromkeys(table.roster, stage)
        self.served.update(table.roster)
        self._busy[stage] = {actor for actor in table.roster if self.unfinished(actor)}

    # ------------------------------------------------------------ who

    def listen(self, listeners: tuple[Listener, ...]) -> None:
        """Replace the listeners."""
        self.listeners = listeners
        self._listens = {each.actor: self._near[each.stage] for each in listeners}
        self._loads = {each.actor: each.stage for each in listeners if each.loads}

    def loads(self, actor: Actor) -> StageIndex | None:
        """The stage whose state a listener is loading. None: it does not listen, or it holds the state."""
        return self._loads.get(actor)

    def enter(self, actor: Actor, now: float) -> None:
        """A listener enters its stage's next table. Its clocks start now."""
        self._entered_at[actor] = self.progress_at[actor] = self.moved_at[actor] = now
        self.listen(tuple(each for each in self.listeners if each.actor != actor))

    def began_at(self, actor: Actor) -> float:
        """The time since which the actor has had work in the pass."""
        return self._entered_at.get(actor, self.opened_at)

    def unbegun(self, actor: Actor) -> list[Microbatch]:
        """The microbatches assigned to an actor of which it has reported no forward."""
        forwarded = self._forwarded.get(actor, 0)
        return [m for m in self.unfinished(actor) if not forwarded >> m & 1]

    def stage_of(self, actor: Actor) -> int | None:
        return self._stage_of.get(actor)

    def assigned_to(self, actor: Actor) -> tuple[Microbatch, ...]:
        """The microbatches assigned to an actor, in increasing order. Empty if the actor has no work in the pass."""
        stage = self._stage_of.get(actor)
        return () if stage is None else self._shares[stage][actor]

    def is_assigned(self, actor: Actor, stage: int, m: int) -> bool:
        """Return True if `actor` computes microbatch `m` in `stage`. `m` may be any number that a peer sent."""
        return 0 <= m < self._microbatches and self.tables[stage].assignee(m) == actor

    def senders(self, actor: Actor, m: Microbatch) -> list[Actor]:
        """The actors that send the inputs of microbatch `m` to `actor`.

        If the actor reports that it has forwarded `m`, these are the senders of the backward inputs. Otherwise they are
        the senders of both directions, because the report may be late. Actors to which `m` was assigned earlier in this
        pass are included, because they may have sent an input too.
        """
        stage = self._stage_of[actor]
        forward, backward = range(max(0, stage - 1), stage), range(stage + 1, min(stage + 2, len(self.tables)))
        if self._forwarded.get(actor, 0) >> m & 1:
            forward = range(0)
        near = (*forward, *backward)
        before = [who for stage in near for who in self._before.get((stage, m), ())]
        return [*(self.tables[stage].assignee(m) for stage in near), *before]

    def attempt(self, stage: int) -> Attempt:
        """The reduction attempt of a stage under the current tables."""
        return attempt_under(self.tables, self.pass_id, StageIndex(stage), self._partner(stage))

    def concerned(self, stage: int) -> list[int]:
        """The stages that must know a table of `stage`, and whose tables `stage` must know: those near it, and its
        partner.
        """
        return [s for s in range(len(self.tables)) if is_near(s, stage) or s == self._partner(stage)]

    def reduces_with(self, stage: int) -> list[int]:
        """The stage, and its partner that shares parameters with it. A new table of either voids the reductions of
        both.
        """
        partner = self._partner(stage)
        return [stage] if partner is None else [stage, partner]

    def stages_near(self, actor: Actor) -> frozenset[int]:
        """The stages whose tables the actor receives: those that concern its own stage, and those for the stage it
        listens to.
        """
        stages = self._listens.get(actor, frozenset[int]())
        return stages if (own := self._stage_of.get(actor)) is None else stages | self._near[own]

    def told(self, stages: frozenset[int]) -> tuple[StageTable, ...]:
        """The current tables of `stages`. All other stages have `UNTOLD` instead of a table."""
        return tuple(table if s in stages else UNTOLD for s, table in enumerate(self.tables))

    @property
    def actors(self) -> list[Actor]:
        return [actor for table in self.tables for actor in table.roster]

    def done_of(self, actor: Actor) -> int:
        return self._done.get(actor, 0)

    def has_work(self, actor: Actor) -> bool:
        """Return True if any microbatch is assigned to the actor."""
        return bool(self.assigned_to(actor))

    def unfinished(self, actor: Actor) -> list[Microbatch]:
        done = self.done_of(actor)
        return [m for m in self.assigned_to(actor) if not done >> m & 1]

    def lacks_result_of(self, actor: Actor) -> bool:
        """Return True if a result of the last stage is missing for one of the actor's microbatches (forward-only
        pass).
        """
        return self.stage_of(actor) == len(self.tables) - 1 and any(
            m not in self.results for m in self.assigned_to(actor)
        )

    def progress_of(self, actor: Actor) -> tuple[int, int]:
        """The numbers of microbatches that the actor reports to have accumulated and forwarded."""
        mine, known = self.assigned_to(actor), self._sets.get(actor)
        if known is None or known[0] is not mine:
            known = self._sets[actor] = mine, sum(1 << m for m in mine)
        done = self.done_of(actor)
        return (done & known[1]).bit_count(), ((done | self._forwarded.get(actor, 0)) & known[1]).bit_count()

    def accumulated(self, stage: int) -> int:
        """Number of microbatches that the roster of a stage has accumulated, as reported."""
        return sum(self.progress_of(actor)[0] for actor in self.tables[stage].roster)

    # ------------------------------------------------------------ feeding

    def feed(self, actor: Actor, key: FrameKey) -> bool:
        """Record that tokens are sent to an actor. Return False if it may not have them: they are not its input in
        stage 0.
        """
        if key.boundary or key.direction is not Direction.FORWARD or not self.is_assigned(actor, 0, key.microbatch):
            return False
        self._fed.add(key.microbatch)
        return True

    # ------------------------------------------------------------ progress

    def on_status(self, status: Status, now: float) -> None:
        actor = status.actor
        if actor not in self._begun:
            self._begun.add(actor)
            self.progress_at.setdefault(actor, now)  # until now it was busy with the step before
        before = self._done.get(actor, 0)
        if status.done != before:
            gained = (status.done & ~before).bit_count()
            if actor in self.progress_at and gained:
                self.services.add((now - self.progress_at[actor]) / gained)
            self._done[actor] = status.done
            self.progress_at[actor] = now
            if (stage := self.stage_of(actor)) is not None:
                (self._busy[stage].add if self.unfinished(actor) else self._busy[stage].discard)(actor)
        if status.done != before or status.forwarded != self._forwarded.get(actor, 0):
            self._forwarded[actor] = status.forwarded
            self.moved_at[actor] = now
            self._awaited.moved(actor)
        if status.queued == 0:
            self.progress_at[actor] = now
            self._queued.discard(actor)
        else:
            self._queued.add(actor)
        if (reduced := (status.numbers, status.reduced)) > self._reduced.get(actor, ((), 0)):
            self._reduced[actor] = reduced
            self._reduced_at[actor] = now
            if (stage := self.stage_of(actor)) is not None:
                self._reduce_moved_at.update(dict.fromkeys(self.reduces_with(stage), now))
        for stage, busy in enumerate(self._busy):
            if not busy and stage not in self.sealed_at:
                self.sealed_at[stage] = now

    def _is_at_hand(self, stage: int, m: int, actor: Actor) -> bool:
        """Return True if the input of `actor`'s next computation on its microbatch `m` is available at a neighbour."""
        if self.done_of(actor) >> m & 1:
            return False
        if self.kind is not PassKind.TRAIN:
            if stage == 0:
                return m in self._fed and actor in self._begun
            return bool(self.done_of(self.tables[stage - 1].assignee(m)) >> m & 1)
        if stage + 1 < len(self.tables) and self.done_of(self.tables[stage + 1].assignee(m)) >> m & 1:
            return True
        if self._forwarded.get(actor, 0) >> m & 1:
            return False
        if stage == 0:
            return m in self._fed and actor in self._begun
        return bool(self._forwarded.get(self.tables[stage - 1].assignee(m), 0) >> m & 1)

    def awaited_since(self, actor: Actor, now: float) -> tuple[float | None, float | None]:
        """Return two times. Each may be None.

        The first is the time since which the actor has had available work and made no progress, at every call of this
        method. The second is the time since which all inputs of its remaining work have been available, once it knows
        the pass. Since then, the actor cannot be waiting for an unavailable input that occupies a slot.
        """
        stage = self.stage_of(actor)
        there = [] if stage is None else [self._is_at_hand(stage, m, actor) for m in self.unfinished(actor)]
        return self._awaited.seen(actor, any(there), bool(there) and all(there) and actor in self._begun, now)

    def has_queued(self, actor: Actor) -> bool:
        """Return True if the actor reports work that it could be computing."""
        return actor in self._queued

    def in_hand_s(self, actor: Actor, now: float) -> float:
        """The seconds for which an actor with available work has finished nothing, neither a forward nor a microbatch.
        0 if it has no work.

        Forwards count, because the first stages of a deep pipeline compute nothing else while the pipeline fills.
        """
        if not self.has_queued(actor):
            return 0.0
        return now - max(self.progress_at.get(actor, self.judged_from), self.moved_at.get(actor, self.judged_from))

    def excuse(self, seconds: float, now: float) -> None:
        """Do not count these seconds against any actor."""
        self._awaited.excuse(seconds, now)
        self.judged_from = min(now, self.judged_from + seconds)
        self.moved_at = excused(self.moved_at, seconds, now)
        self.progress_at = excused(self.progress_at, seconds, now)
        self.sealed_at = excused(self.sealed_at, seconds, now)
        self._reduced_at = excused(self._reduced_at, seconds, now)
        self._reduce_moved_at = excused(self._reduce_moved_at, seconds, now)

    def is_back(self, actor: Actor, now: float) -> None:
        """An actor is heard again. Restart its clocks, because it still has to report what it did meanwhile."""
        self.progress_at[actor] = self.moved_at[actor] = now
        self._awaited.moved(actor)

    def amend(self, stage: int, table: StageTable) -> list[Microbatch]:
        """Replace the table. Void what was prepared or released under the old one. Return the microbatches that
        moved.
        """
        before = self.tables[stage]
        self.tables[stage] = table
        for actor in before.roster:
            del self._stage_of[actor]
        self._take(stage, table)
        for concerned in self.reduces_with(stage):
            self.prepared[concerned] = {}
            self._answers[concerned] = Counter()
        self.sealed_at.pop(stage, None)
        for actor in before.roster:
            self.releasing.pop(actor, None)
            self.given.pop(actor, None)
            self.entrants.pop(actor, None)
        moved = [m for m in range(self._microbatches) if before.assignee(m) != table.assignee(m)]
        for m in moved:
            self._before.setdefault((stage, m), []).append(before.assignee(m))
        return [Microbatch(m) for m in moved]

    def sealed_since(self, stage: int) -> float | None:
        """The time since which all inputs of the stage's reduction are accumulated. None: some are missing."""
        stages = self.reduces_with(stage)
        return max(self.sealed_at[s] for s in stages) if all(s in self.sealed_at for s in stages) else None

    def reduce_still_since(self, stage: int) -> float | None:
        """The time since which the stage's sealed reduction has made no reported progress. None: the stage is not
        sealed.
        """
        since = self.sealed_since(stage)
        return None if since is None else max(since, self._reduce_moved_at.get(stage, since))

    def reduces_since(self, actor: Actor) -> float | None:
        """The time since which an actor has reported no progress of its stage's reduction. None: the reduction has not
        begun.
        """
        stage = self.stage_of(actor)
        since = None if stage is None else self.sealed_since(stage)
        return None if since is None else max(since, self._reduced_at.get(actor, since))

    # ------------------------------------------------------------ deciding

    def prepare(self, actor: Actor, stage: int, prepared: Prepared) -> bool:
        """A member of the stage's roster is prepared under its current table. Return False if it had reported this
        before.
        """
        before = self.prepared[stage].get(actor)
        if before == prepared:
            return False
        if before is not None:
            self._answers[stage] -= Counter((before.answer,))
        self.prepared[stage][actor] = prepared
        self._answers[stage][prepared.answer] += 1
        return True

    def outcome(self, stage: int, without: frozenset[Actor]) -> StageOutcome | None:
        """The stage's outcome, if all members of its roster (without `without`) are prepared with equal answers."""
        table = self.tables[stage]
        members = [actor for actor in table.roster if actor not in without]
        prepared = [self.prepared[stage].get(actor) for actor in members]
        there = [p for p in prepared if p is not None]
        if not members or len(there) < len(members) or len({p.answer for p in there}) != 1:
            return None
        return StageOutcome(table.number, there[0].digest, table.contributions())

    def decide(self, tokens: int, clip_norm: float, update: Update, without: frozenset[Actor]) -> Decision | None:
        """The decision, if every stage has an outcome. Scale 0 (SKIP) if a gradient is not finite."""
        if any(len(self.prepared[s]) + len(without) < len(table.roster) for s, table in enumerate(self.tables)):
            return None  # checked first, because this method is called for every Prepared
        outcomes = [self.outcome(stage, without) for stage in range(len(self.tables))]
        if any(outcome is None for outcome in outcomes) or self._copies_differ(without):
            return None
        chosen = [self._one(stage, without) for stage in range(len(self.tables))]
        finite = all(p.finite for p in chosen)
        scale, norm = step_scale((p.squared_norm for p in chosen), tokens, clip_norm)
        return Decision(
            term=self.pass_id.term,
            step=self.pass_id.step,
            scale=scale if finite else 0.0,
            loss_sum=chosen[-1].loss_sum,
            tokens=tokens,
            gradient_norm=norm if finite else math.inf,
            outcomes=tuple(outcome for outcome in outcomes if outcome is not None),
            key_frames=self._key_frames(chosen),
            codecs=self.opening.codecs,
            rate=self.rate,
            update=update,
        )

    def drifts(self, without: frozenset[Actor], members: Members) -> tuple[Drift, ...]:
        """For each stage, the replicas that computed with different states. Call it once there is a decision."""
        found = []
        for stage, prepared in self.prepared.items():
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
        return [stage for stage in self.prepared if self._one(stage, without).spoilt]

    def unusable(self, without: frozenset[Actor]) -> list[int]:
        """Stages that computed with a state that gives nothing finite. Call this only after a decision without
        drift.
        """
        return [stage for stage in self.prepared if self._one(stage, without).unusable]

    def not_finite(self, without: frozenset[Actor]) -> list[int]:
        """Stages whose sums are not finite. Call this only after a decision without drift."""
        return [stage for stage in self.prepared if not self._one(stage, without).finite]

    def answers(self, without: frozenset[Actor]) -> Answers:
        """The answer of each stage. Call this only after there is a decision."""
        chosen = [self._one(stage, without) for stage in range(len(self.tables))]
        return tuple(
            Answer(p.digest, p.squared_norm if p.finite else math.inf, p.outline, self._adds_up(stage, p))
            for stage, p in enumerate(chosen)
        )

    def own_sums(self, without: frozenset[Actor]) -> list[tuple[OwnSums, ...]]:
        """For each stage, its peers' reported contributions to the sums of parameters that it does not share.

        Call it once there is a decision.
        """
        found = []
        for prepared in self.prepared.values():
            there = []
            for actor, said in prepared.items():
                count, own = len(self.assigned_to(actor)), sketch.read(said.sketch)
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
        parts = [
            self.reduces_with(stage)[:1],
            *([self.reduces_with(stage)] if self._partner(stage) is not None else []),
        ]
        sums = []
        for which, stages in enumerate(parts):
            those = [self.prepared[s].get(actor) for s in stages for actor in self.tables[s].roster]
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
        return mismatch([self._one(stage, without).receipt for stage in range(len(self.tables))])

    def _key_frames(self, chosen: list[Prepared]) -> tuple[int, ...]:
        receipts = [prepared.receipt for prepared in chosen[1:]]
        everything = (1 << self._microbatches) - 1
        return tuple(receipt.fresh & everything for receipt in receipts if receipt is not None)

    def _one(self, stage: int, without: frozenset[Actor]) -> Prepared:
        return next(p for actor, p in self.prepared[stage].items() if actor not in without)

    def disagreeing(self) -> int | None:
        """The stage whose roster is completely prepared but gave different answers. None if there is none.

        If all stages are prepared but stages that share parameters have different sums of these, the last stage is
        returned.
        """
        everybody = True
        for stage, table in enumerate(self.tables):
            if len(self.prepared[stage]) < len(table.roster):
                everybody = False
            elif len(self._answers[stage]) > 1:
                return stage
        return len(self.tables) - 1 if everybody and self._copies_differ(frozenset()) else None

    def _copies_differ(self, without: frozenset[Actor]) -> bool:
        """Return True if stages that share parameters have prepared different sums of them."""
        stages = [stage for stage in range(len(self.tables)) if self._partner(stage) is not None]
        return len({self._one(stage, without).shared for stage in stages}) > 1
