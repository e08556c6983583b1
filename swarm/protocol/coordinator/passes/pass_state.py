"""The coordinator's record of one open pass: tables, fed tokens, who prepared what. Dropped when it closes."""

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
"""Times as far as their lengths two vectors may differ: what machines round otherwise points in all directions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a stage's gradient came to."""

    digest: str
    squared_norm: float
    outline: bytes = b""
    """As in Prepared."""
    adds_up: bool = True
    """The sketches of what was contributed come to that of the sum: if not, somebody has not told the truth."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.squared_norm)

    def is_like(self, other: Answer, tolerance: float) -> bool:
        """Return True if both may be the same gradient. `tolerance`: by which part of it its length may differ."""
        if self.adds_up != other.adds_up:
            return False
        if not (self.finite and other.finite):
            return self.finite == other.finite
        if self.digest == other.digest:
            return self.squared_norm == other.squared_norm  # who is alone in a half may say anything of the same bytes
        one, two = math.sqrt(max(0.0, self.squared_norm)), math.sqrt(max(0.0, other.squared_norm))
        return abs(one - two) <= tolerance * max(one, two) and self._is_near(other, tolerance)

    def _is_near(self, other: Answer, tolerance: float) -> bool:
        """Return True if it points to where the other does, as far as the outlines tell."""
        one, two = sketch.read(self.outline), sketch.read(other.outline)
        if one is None or two is None:
            return tolerance > 0.0 and one is two
        apart = [a - b for a, b in zip(one, two, strict=True)]
        return sketch.length(apart) <= APART * tolerance * max(sketch.length(one), sketch.length(two))


Answers = tuple[Answer, ...]
"""By stage."""


@dataclass(frozen=True, slots=True)
class OwnSums:
    """What a peer has added to its stage's sums."""

    actor: Actor
    microbatches: int
    sketch: sketch.Sketch
    told: bytes = field(default=b"", repr=False)
    """As in Prepared: all its sketches."""


class PassState:
    """`tables[s]` grows by amendments. Completeness is per stage (`Prepared`)."""

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

        `partner`: of a stage, the one that holds some of the same parameters (`Settings.partner`).
        """
        self.opening = opening
        """Told with the tables as they are now and the listeners of now."""
        self.pass_id = opening.pass_id
        self.kind = opening.kind
        self.tables = tables = list(opening.tables)
        self.weights = weights
        self.rate = rate
        """As in Decision: the one in force when the pass opens."""
        self.probed = probed
        """Who is on probation, and given one microbatch at most."""
        self.served: set[Actor] = set()
        """Who has, or had, a part in the pass. Nobody comes into it twice."""
        self.entrants: dict[Actor, Actor] = {}
        """Who is to have what somebody is asked to release, by whom: a listener that has caught up."""
        self.listeners: tuple[Listener, ...] = ()
        """As in Open: who they are may change while the pass is open (`listen`)."""
        self._listens: dict[Actor, frozenset[int]] = {}
        """By listener, the stages whose tables concern it."""
        self._loads: dict[Actor, StageIndex] = {}
        """By listener that loads a state, its stage."""
        self.promotion: frozenset[Actor] = frozenset()
        """Of the rosters: who has caught up, but for the last decision, and was a listener before."""
        self.opened_at = now
        self._entered_at: dict[Actor, float] = {}
        """When it came into the open pass, of who did."""
        self.since = now if since is None else since
        """As `opened_at`, but of a sample's pass: when the sample was begun."""
        self.judged_from = now
        """As `opened_at`, but later by the time in which the coordinator itself stood still."""
        self.fences = 0
        self.disturbers: dict[Actor, str] = {}
        """Who was lost, fenced or too slow in this pass, and why."""
        self.kept_waiting: dict[Actor, set[str]] = {}
        """By actor, the peers that were excluded from a reduce and had waited for it, and for few others."""
        self.done_again = 0
        """Microbatches that such had accumulated, and others do again."""
        self.prepared: dict[int, dict[Actor, Prepared]] = {s: {} for s in range(len(tables))}
        """By stage. Written by `prepare` and `amend`."""
        self._answers: dict[int, Counter[Hashable]] = {s: Counter() for s in range(len(tables))}
        """By stage, how many of those say what."""
        self.results: dict[Microbatch, Result] = {}
        self.progress_at: dict[Actor, float] = {}
        self._queued: set[Actor] = set()
        """Who says that it has work at hand."""
        self.moved_at: dict[Actor, float] = {}
        """When an actor last said that it has forwarded or accumulated something."""
        self._awaited = IdleTime()
        self.releasing: dict[Actor, tuple[Microbatch, ...]] = {}
        """What slow peers, and those who leave, are asked to give up under the tables as they are now."""
        self.given: dict[Actor, tuple[Microbatch, ...]] = {}
        """What those of them have given up that have answered. Still theirs, until there is a new table."""
        self.released: list[set[Microbatch]] = [set() for _ in tables]
        """By stage, what a slow peer gave up. It is not asked for again in this pass, however slow its new owner is."""
        self.digest_retries: dict[int, int] = {}
        self.digest_votes: defaultdict[tuple[int, Hashable], Fraction] = defaultdict(Fraction)
        """(stage, answer) → votes in attempts that disagreed (`People`). Exact sums are the same in all of them."""
        self.sealed_at: dict[int, float] = {}
        self._reduced: dict[Actor, tuple[tuple[int, ...], int]] = {}
        """How far its reduce was seen to get, under the tables that it knew then: under new ones it begins anew."""
        self._reduced_at: dict[Actor, float] = {}
        """When it was last seen to get on."""
        self._reduce_moved_at: dict[int, float] = {}
        """By stage, when one of its roster last said that its reduce has got on."""
        self.services = Observed()
        self._before: dict[tuple[int, int], list[Actor]] = {}
        """(stage, microbatch) → whose it was before it was moved."""
        self._microbatches = len(tables[0].assignment)
        self._partner = partner
        self._fed: set[Microbatch] = set()
        self._begun: set[Actor] = set()
        """Who has said that the pass is open there: tokens are sent ahead of that."""
        self._done: dict[Actor, int] = {}
        self._forwarded: dict[Actor, int] = {}
        self._stage_of: dict[Actor, int] = {}
        self._shares: list[dict[Actor, tuple[Microbatch, ...]]] = []
        """By stage, of the table as it is now."""
        self._sets: dict[Actor, tuple[tuple[Microbatch, ...], int]] = {}
        """What is assigned to an actor, and the same as a bit set, since it was asked for."""
        self._busy: list[set[Actor]] = []
        """By stage, who has not accumulated all that is assigned to it."""
        self._near = [frozenset(self.concerned(stage)) for stage in range(len(tables))]
        for stage, table in enumerate(tables):
            self._shares.append({})
            self._busy.append(set())
            self._take(stage, table)

    def _take(self, stage: int, table: StageTable) -> None:
        """Take down who does what in a stage."""
        self._shares[stage] = table.shares()
        self._stage_of |= dict.fromkeys(table.roster, stage)
        self.served.update(table.roster)
        self._busy[stage] = {actor for actor in table.roster if self.unfinished(actor)}

    # ------------------------------------------------------------ who

    def listen(self, listeners: tuple[Listener, ...]) -> None:
        """These listen, and no others."""
        self.listeners = listeners
        self._listens = {each.actor: self._near[each.stage] for each in listeners}
        self._loads = {each.actor: each.stage for each in listeners if each.loads}

    def loads(self, actor: Actor) -> StageIndex | None:
        """The stage whose state a listener is to load; None: it is no listener, or holds its state."""
        return self._loads.get(actor)

    def enter(self, actor: Actor, now: float) -> None:
        """It listened, and comes into its stage's next table. It has had no time to do anything yet."""
        self._entered_at[actor] = self.progress_at[actor] = self.moved_at[actor] = now
        self.listen(tuple(each for each in self.listeners if each.actor != actor))

    def began_at(self, actor: Actor) -> float:
        """Since when it has a part in the pass."""
        return self._entered_at.get(actor, self.opened_at)

    def unbegun(self, actor: Actor) -> list[Microbatch]:
        """What is assigned to an actor that has not forwarded it, as far as is known."""
        forwarded = self._forwarded.get(actor, 0)
        return [m for m in self.unfinished(actor) if not forwarded >> m & 1]

    def stage_of(self, actor: Actor) -> int | None:
        return self._stage_of.get(actor)

    def assigned_to(self, actor: Actor) -> tuple[Microbatch, ...]:
        """In order. Nothing for who has no part in the pass."""
        stage = self._stage_of.get(actor)
        return () if stage is None else self._shares[stage][actor]

    def is_assigned(self, actor: Actor, stage: int, m: int) -> bool:
        """Return True if microbatch `m` is `actor`'s in `stage`. `m` may be any number that somebody sent."""
        return 0 <= m < self._microbatches and self.tables[stage].assignee(m) == actor

    def senders(self, actor: Actor, m: Microbatch) -> list[Actor]:
        """Who sends an actor what it computes its microbatch `m` from: for the backward, if it says that it is there.

        Else for either, since it may not have said so yet. Also who had that before in this pass, and may have sent it.
        """
        stage = self._stage_of[actor]
        forward, backward = range(max(0, stage - 1), stage), range(stage + 1, min(stage + 2, len(self.tables)))
        if self._forwarded.get(actor, 0) >> m & 1:
            forward = range(0)
        near = (*forward, *backward)
        before = [who for stage in near for who in self._before.get((stage, m), ())]
        return [*(self.tables[stage].assignee(m) for stage in near), *before]

    def attempt(self, stage: int) -> Attempt:
        """What a stage reduces under the tables as they are now."""
        return attempt_under(self.tables, self.pass_id, StageIndex(stage), self._partner(stage))

    def concerned(self, stage: int) -> list[int]:
        """Whom a table of `stage` concerns, and whose tables concern it: those near it, and who shares parameters."""
        return [s for s in range(len(self.tables)) if is_near(s, stage) or s == self._partner(stage)]

    def reduces_with(self, stage: int) -> list[int]:
        """The stage, and the one that shares parameters with it: a new table of either voids the reduces of both."""
        partner = self._partner(stage)
        return [stage] if partner is None else [stage, partner]

    def stages_near(self, actor: Actor) -> frozenset[int]:
        """Whose tables an actor is told: those that concern its stage, and the one it listens to."""
        stages = self._listens.get(actor, frozenset[int]())
        return stages if (own := self._stage_of.get(actor)) is None else stages | self._near[own]

    def told(self, stages: frozenset[int]) -> tuple[StageTable, ...]:
        """The tables as they are now, as those are told them whom these stages concern."""
        return tuple(table if s in stages else UNTOLD for s, table in enumerate(self.tables))

    @property
    def actors(self) -> list[Actor]:
        return [actor for table in self.tables for actor in table.roster]

    def done_of(self, actor: Actor) -> int:
        return self._done.get(actor, 0)

    def has_work(self, actor: Actor) -> bool:
        """Return True if any microbatch is its own."""
        return bool(self.assigned_to(actor))

    def unfinished(self, actor: Actor) -> list[Microbatch]:
        done = self.done_of(actor)
        return [m for m in self.assigned_to(actor) if not done >> m & 1]

    def lacks_result_of(self, actor: Actor) -> bool:
        """Return True if the last stage's result of a microbatch of its own has not come. In a forward-only pass."""
        return self.stage_of(actor) == len(self.tables) - 1 and any(
            m not in self.results for m in self.assigned_to(actor)
        )

    def progress_of(self, actor: Actor) -> tuple[int, int]:
        """Of what is assigned to it: how much it has accumulated, and forwarded, as it says."""
        mine, known = self.assigned_to(actor), self._sets.get(actor)
        if known is None or known[0] is not mine:
            known = self._sets[actor] = mine, sum(1 << m for m in mine)
        done = self.done_of(actor)
        return (done & known[1]).bit_count(), ((done | self._forwarded.get(actor, 0)) & known[1]).bit_count()

    def accumulated(self, stage: int) -> int:
        """Microbatches that the roster of a stage has accumulated, as it says."""
        return sum(self.progress_of(actor)[0] for actor in self.tables[stage].roster)

    # ------------------------------------------------------------ feeding

    def feed(self, actor: Actor, key: FrameKey) -> bool:
        """Take down what an actor is fed. False if it may not have it: it is no microbatch of its own in stage 0."""
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
        """True if what `actor` needs for the forward or the backward of its microbatch `m` is there to be had."""
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
        """Since when it was seen, at all the times when this was asked, to have something to do and do nothing.

        And since when all that it has left to do has been there, in a pass that it knows: then it does not wait for a
        slot, which what is not there yet would hold.
        """
        stage = self.stage_of(actor)
        there = [] if stage is None else [self._is_at_hand(stage, m, actor) for m in self.unfinished(actor)]
        return self._awaited.seen(actor, any(there), bool(there) and all(there) and actor in self._begun, now)

    def has_queued(self, actor: Actor) -> bool:
        """Return True if it says that it has something that it could be computing."""
        return actor in self._queued

    def in_hand_s(self, actor: Actor, now: float) -> float:
        """For how long an actor that has work at hand has finished nothing, a forward or all; 0 for who has none.

        While a deep pipeline fills, its first stages do nothing but forwards.
        """
        if not self.has_queued(actor):
            return 0.0
        return now - max(self.progress_at.get(actor, self.judged_from), self.moved_at.get(actor, self.judged_from))

    def excuse(self, seconds: float, now: float) -> None:
        """Time that counts against nobody."""
        self._awaited.excuse(seconds, now)
        self.judged_from = min(now, self.judged_from + seconds)
        self.moved_at = excused(self.moved_at, seconds, now)
        self.progress_at = excused(self.progress_at, seconds, now)
        self.sealed_at = excused(self.sealed_at, seconds, now)
        self._reduced_at = excused(self._reduced_at, seconds, now)
        self._reduce_moved_at = excused(self._reduce_moved_at, seconds, now)

    def is_back(self, actor: Actor, now: float) -> None:
        """It could not be heard for a while: what it has done is yet to be told."""
        self.progress_at[actor] = self.moved_at[actor] = now
        self._awaited.moved(actor)

    def amend(self, stage: int, table: StageTable) -> list[Microbatch]:
        """Take the new table; what was prepared or released under the old one is void. Returns moved microbatches."""
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
        """Since when all that the stage's reduce is made of is accumulated. None: it is not."""
        stages = self.reduces_with(stage)
        return max(self.sealed_at[s] for s in stages) if all(s in self.sealed_at for s in stages) else None

    def reduce_still_since(self, stage: int) -> float | None:
        """Since when its reduce, of which all is accumulated, has not been heard to get on. None: not all is."""
        since = self.sealed_since(stage)
        return None if since is None else max(since, self._reduce_moved_at.get(stage, since))

    def reduces_since(self, actor: Actor) -> float | None:
        """Since when the reduce of an actor's stage has not been heard to get on there. None: it has not begun."""
        stage = self.stage_of(actor)
        since = None if stage is None else self.sealed_since(stage)
        return None if since is None else max(since, self._reduced_at.get(actor, since))

    # ------------------------------------------------------------ deciding

    def prepare(self, actor: Actor, stage: int, prepared: Prepared) -> bool:
        """A member of the stage's roster is prepared under its table. False when it has said so before."""
        before = self.prepared[stage].get(actor)
        if before == prepared:
            return False
        if before is not None:
            self._answers[stage] -= Counter((before.answer,))
        self.prepared[stage][actor] = prepared
        self._answers[stage][prepared.answer] += 1
        return True

    def outcome(self, stage: int, without: frozenset[Actor]) -> StageOutcome | None:
        """What the stage prepared, if all its roster (but `without`) did, and says the same of it."""
        table = self.tables[stage]
        members = [actor for actor in table.roster if actor not in without]
        prepared = [self.prepared[stage].get(actor) for actor in members]
        there = [p for p in prepared if p is not None]
        if not members or len(there) < len(members) or len({p.answer for p in there}) != 1:
            return None
        return StageOutcome(table.number, there[0].digest, table.contributions())

    def decide(self, tokens: int, clip_norm: float, update: Update, without: frozenset[Actor]) -> Decision | None:
        """The decision, when every stage has an outcome. Scale 0 (SKIP) if a gradient is not finite."""
        if any(len(self.prepared[s]) + len(without) < len(table.roster) for s, table in enumerate(self.tables)):
            return None  # this is asked with each that is prepared
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
        """By stage, replicas that computed with unlike states. Once there is a decision."""
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
        """Stages that computed with a state that is not finite. Once there is a decision, and no drift."""
        return [stage for stage in self.prepared if self._one(stage, without).spoilt]

    def unusable(self, without: frozenset[Actor]) -> list[int]:
        """Stages that computed with a state from which nothing finite follows. As `spoilt`."""
        return [stage for stage in self.prepared if self._one(stage, without).unusable]

    def not_finite(self, without: frozenset[Actor]) -> list[int]:
        """Stages whose sums are not finite. As `spoilt`."""
        return [stage for stage in self.prepared if not self._one(stage, without).finite]

    def answers(self, without: frozenset[Actor]) -> Answers:
        """What every stage's gradient came to. Once there is a decision."""
        chosen = [self._one(stage, without) for stage in range(len(self.tables))]
        return tuple(
            Answer(p.digest, p.squared_norm if p.finite else math.inf, p.outline, self._adds_up(stage, p))
            for stage, p in enumerate(chosen)
        )

    def own_sums(self, without: frozenset[Actor]) -> list[tuple[OwnSums, ...]]:
        """By stage, what its peers say that they have added to what no other stage holds. Once there is a decision."""
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
        """Return True if the sketches of what peers contributed come to that of the stage's sum. Unknown: they do."""
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
                return True  # who was lost when all others were prepared has contributed too
            told = [sketch.read(said.sketch, which) for said in those if said is not None]
            if any(each is None for each in told):
                return False
            sums.append(sketch.added(each for each in told if each is not None))
        return sketch.seal_of(sums) == chosen.seal

    def mixed_copies(self, without: frozenset[Actor]) -> int | None:
        """A boundary whose two sides used different copies of a frame. Call it once there is a decision."""
        return mismatch([self._one(stage, without).receipt for stage in range(len(self.tables))])

    def _key_frames(self, chosen: list[Prepared]) -> tuple[int, ...]:
        receipts = [prepared.receipt for prepared in chosen[1:]]
        everything = (1 << self._microbatches) - 1
        return tuple(receipt.fresh & everything for receipt in receipts if receipt is not None)

    def _one(self, stage: int, without: frozenset[Actor]) -> Prepared:
        return next(p for actor, p in self.prepared[stage].items() if actor not in without)

    def disagreeing(self) -> int | None:
        """A stage whose whole roster is prepared, and does not agree about what came out.

        Else the last, if all are prepared and it would apply other sums than the first to what both hold.
        """
        everybody = True
        for stage, table in enumerate(self.tables):
            if len(self.prepared[stage]) < len(table.roster):
                everybody = False
            elif len(self._answers[stage]) > 1:
                return stage
        return len(self.tables) - 1 if everybody and self._copies_differ(frozenset()) else None

    def _copies_differ(self, without: frozenset[Actor]) -> bool:
        """Return True if stages that share parameters have prepared unequal sums of them."""
        stages = [stage for stage in range(len(self.tables)) if self._partner(stage) is not None]
        return len({self._one(stage, without).shared for stage in stages}) > 1
