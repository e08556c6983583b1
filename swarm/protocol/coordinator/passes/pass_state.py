"""The coordinator's record of one open pass: its tables, the tokens that were sent, and the answers of its peers.

The record is discarded when the pass ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction

from swarm.protocol.answers import Answers
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.idle_time import IdleTime, excused
from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.protocol.coordinator.passes.reduce_progress import ReduceProgress
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Microbatch,
    PassKind,
    StageIndex,
)
from swarm.protocol.messages import (
    UNTOLD,
    Listener,
    Open,
    Result,
    StageTable,
    Status,
    attempt_under,
    is_near,
)
from swarm.protocol.timeouts import Observed


class PassState:
    """The state of one pass. A new table replaces `tables[s]`. `preparation` says which stages are complete."""

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
        people: People | None = None,
    ) -> None:
        """`opening`: the Open of the pass, with the first tables of all stages and no listeners.

        `partner`: for a stage, the stage that holds some of the same parameters (`Settings.partner`). `people`: who the
        peers belong to; None: each peer is a person.
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
        self.preparation = Preparation(opening, tables, rate, partner, people or People())
        """The replicas that are prepared under the current tables."""
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
        self.reductions = ReduceProgress(self.reduces_with)
        self.services = Observed()
        self._before: dict[tuple[int, int], list[Actor]] = {}
        """(stage, microbatch) → its assignees before it was moved."""
        self._microbatches = len(tables[0].assignment)
        self._partner = partner
        self._fed: set[Microbatch] = set()
        self._answers = Answers()
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

    def took_s(self, actor: Actor, now: float) -> float:
        """The seconds from the time when the actor got work until it last made progress; until `now` if it has
        reported none.
        """
        return max(0.0, self.moved_at.get(actor, now) - self.began_at(actor))

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
        stage 0, or it had them too often.
        """
        if key.boundary or key.direction is not Direction.FORWARD or not self.is_assigned(actor, 0, key.microbatch):
            return False
        if not self._answers.allow(actor, key):
            return False
        self._fed.add(key.microbatch)
        return True

    # ------------------------------------------------------------ progress

    def on_status(self, status: Status, now: float) -> float | None:
        """Record a status. Return the seconds per microbatch that the actor has finished since its last report; None if
        it has finished none.
        """
        actor, took_s = status.actor, None
        if actor not in self._begun:
            self._begun.add(actor)
            self.progress_at.setdefault(actor, now)  # until now it was busy with the step before
        before = self._done.get(actor, 0)
        if status.done != before:
            gained = (status.done & ~before).bit_count()
            if actor in self.progress_at and gained:
                took_s = (now - self.progress_at[actor]) / gained
                self.services.add(took_s)
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
        self.reductions.on_status(status, self.stage_of(actor), now)
        for stage, busy in enumerate(self._busy):
            if not busy:
                self.reductions.seal(stage, now)
        return took_s

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
            return stage + 1 == len(self.tables)  # what is left to do there needs no further input
        if stage == 0:
            return m in self._fed and actor in self._begun
        return bool(self._forwarded.get(self.tables[stage - 1].assignee(m), 0) >> m & 1)

    def is_alone(self, actor: Actor) -> bool:
        """Return True if the actor has no siblings in the pass."""
        return (stage := self.stage_of(actor)) is not None and len(self.tables[stage].roster) == 1

    def has_begun(self, actor: Actor) -> bool:
        """Return True if the actor has reported that it has begun this pass."""
        return actor in self._begun

    def lacks(self, actor: Actor) -> tuple[Microbatch, tuple[Actor, ...]] | None:
        """A microbatch of which a peer that does nothing must lack an input, and the actors that report to have the
        inputs. None: there is no such microbatch.

        If all microbatches with an available input have such actors in common, only these are named.
        """
        stage = self.stage_of(actor)
        if stage is None:
            return None
        there = {m: self._have(stage, m, actor) for m in self.unfinished(actor) if self._is_at_hand(stage, m, actor)}
        named = [set(those) for those in there.values() if those]
        if not named:
            return None
        m = next(m for m, those in there.items() if those)
        common = set.intersection(*named)
        return m, tuple(a for a in there[m] if not common or a in common)

    def _have(self, stage: int, m: int, actor: Actor) -> tuple[Actor, ...]:
        """The actors that report to have the inputs of `actor`'s microbatch `m`."""
        found = []
        if stage and not self._forwarded.get(actor, 0) >> m & 1:
            before = self.tables[stage - 1].assignee(m)
            found += [before] if (self._forwarded.get(before, 0) | self.done_of(before)) >> m & 1 else []
        if stage + 1 < len(self.tables):
            after = self.tables[stage + 1].assignee(m)
            found += [after] if self.done_of(after) >> m & 1 else []
        return tuple(found)

    def awaited_since(self, actor: Actor, slots: int, now: float) -> tuple[float | None, float | None]:
        """Return two times. Each may be None.

        The first is the time since which the actor has had available work and made no progress, at every call of this
        method. Work is not available if `slots` microbatches or more wait for gradients that nobody has computed:
        perhaps the actor has no more slots. The second is the time since which all inputs of its remaining work have
        been available, once it knows the pass. Since then, the actor cannot be waiting for an unavailable input that
        occupies a slot.
        """
        stage = self.stage_of(actor)
        there = {} if stage is None else {m: self._is_at_hand(stage, m, actor) for m in self.unfinished(actor)}
        forwarded = self._forwarded.get(actor, 0)
        waiting = sum(forwarded >> m & 1 and not at_hand for m, at_hand in there.items())
        everything = bool(there) and all(there.values()) and actor in self._begun
        return self._awaited.seen(actor, any(there.values()) and waiting < slots, everything, now)

    def is_supplied(self, actor: Actor) -> bool:
        """Return True if the actor knows the pass, has work left, and needs nothing for it that its neighbours do not
        have.
        """
        stage, left = self.stage_of(actor), self.unfinished(actor)
        if stage is None or not left or actor not in self._begun:
            return False
        return all(self._is_at_hand(stage, m, actor) for m in left)

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
        self.reductions.excuse(seconds, now)

    def is_back(self, actor: Actor, now: float) -> None:
        """An actor is heard again. Restart its clocks, because it still has to report what it did meanwhile."""
        self.progress_at[actor] = self.moved_at[actor] = now
        self._awaited.moved(actor)

    def wait_anew_for(self, sender: Actor, now: float) -> None:
        """Other actors will do the work of a sender. Restart the clocks of all that may be waiting for its frames."""
        stage = self.stage_of(sender)
        assert stage is not None
        for near in (stage - 1, stage + 1):
            for actor in self.tables[near].roster if 0 <= near < len(self.tables) else ():
                self.is_back(actor, now)

    def amend(self, stage: int, table: StageTable) -> list[Microbatch]:
        """Replace the table. Void what was prepared or released under the old one. Return the microbatches that
        moved.
        """
        before = self.tables[stage]
        self.tables[stage] = table
        for actor in before.roster:
            del self._stage_of[actor]
        self._take(stage, table)
        self.preparation.void(self.reduces_with(stage))
        self.reductions.void(stage)
        for actor in before.roster:
            self.releasing.pop(actor, None)
            self.given.pop(actor, None)
            self.entrants.pop(actor, None)
        moved = [m for m in range(self._microbatches) if before.assignee(m) != table.assignee(m)]
        for m in moved:
            self._before.setdefault((stage, m), []).append(before.assignee(m))
        return [Microbatch(m) for m in moved]
