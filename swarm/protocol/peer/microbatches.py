"""A peer's microbatches in one pass, with the frames that it lacks and the frames that it keeps for other peers.

A frame is sent only if a peer wants it. A peer sends WANT for the inputs of its assigned microbatches in ascending
order, as many as it has slots for. The holder answers at once, or when it has computed the frame. WANT is also the only
recovery: the peer sends it again when an amendment changes the holder of a frame, when a connection is restored, and
when a deadline passes. The smallest unfinished microbatch may always be wanted, so full slots cannot block the
pipeline. Gradients are sent without a WANT, are always accepted, and are wanted only in recovery.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from swarm.events import FrameRecovered, FrameRefused, MicrobatchAccumulated, MicrobatchForwarded
from swarm.protocol.ids import Actor, Direction, FrameKey, Key, Microbatch, PassKind, StageIndex
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import Frame, Open, Payload, Released, Result, StageTable, Unreachable, Want, is_near
from swarm.protocol.peer.frame_cache import FrameCache, Kept
from swarm.protocol.peer.in_flight import InFlight
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    Discard,
    Forward,
    ForwardDone,
    ResultDone,
    Weights,
    WeightsDone,
)
from swarm.protocol.peer.pass_context import PassContext
from swarm.protocol.slots import unasked

LOOKAHEAD = 2
"""Number of forwards in the compute queue at once. The others wait here, where they can still be released."""


class Phase(enum.IntEnum):
    NEEDED = 0
    WANTED = 1
    INPUT = 2
    SUBMITTED = 3
    FORWARDED = 4
    BACKWARD = 5
    WEIGHTS = 6
    """The gradient was sent to the stage before. The microbatch is finished when its weight gradients are
    accumulated.
    """
    FINISHED = 7
    RELEASED = 8


@dataclass(slots=True)
class Work:
    """One microbatch of this peer."""

    phase: Phase = Phase.NEEDED
    moved: bool = False
    """True if a new table gave it to this peer during the pass. The stage before may already have its gradient, so the
    gradient is sent only on a WANT.
    """
    ask: bool = False
    """True if this peer must ask for its gradient: no peer sends it unasked, since the microbatch moved here or in the
    next stage.
    """
    asked_again: bool = False
    input: Payload | None = field(default=None, repr=False)
    gradient: Payload | None = field(default=None, repr=False)


class Microbatches:
    """The microbatches of one open pass at one peer. `amend` replaces `tables[s]`; the tables of different stages may
    arrive in any order.
    """

    def __init__(
        self,
        context: PassContext,
        stage: StageIndex,
        opening: Open,
        crossings: Crossings,
        now: float,
    ) -> None:
        self.me = me = context.me
        self.coordinator = context.coordinator
        self.stage = stage
        self.pass_id = opening.pass_id
        self.kind = opening.kind
        self.tables = list(opening.tables)
        self.rosters = [frozenset(table.roster) for table in self.tables]
        """The rosters of the stages, according to the current tables."""
        self.numbers = tuple(table.number for table in self.tables)
        self.fenced = me not in self.rosters[stage]
        self.done = 0
        self.forwarded = 0
        """Bit m is set if this peer has forwarded microbatch m in training; in the last stage, if its weight gradients
        are still due.
        """
        self.crossings = crossings
        self.unreachable: set[Actor] = set()
        """Actors whose connection broke and was not restored in time. They are not asked to forward messages."""
        self.work: dict[Microbatch, Work] = {}
        self._is_up = context.is_up
        self._is_paused = context.is_paused
        self._slots = context.slots
        self._out = context.out
        self._asked = InFlight(context.waits, context.settings.step_budget_s)
        self._frame_cache = FrameCache(context.out)
        self._reported: set[Actor] = set()
        self._results: list[Result] = []
        """The results reported so far, in a forward-only pass."""
        for m in sorted(self.tables[stage].assigned_to(me)):
            self.work[m] = Work()
        if self._first and not self.table.number:
            for m in unasked(self.table, me)[: self._slots.count]:
                self.work[m].phase = Phase.WANTED
                self._asked.expect(self._input_key(m), now)
        self.pull(now)

    # ------------------------------------------------------------ queries

    @property
    def table(self) -> StageTable:
        return self.tables[self.stage]

    def serves(self, actor: Actor) -> bool:
        """Return True if the actor has a part in this pass."""
        return any(actor in roster for roster in self.rosters)

    @property
    def sealed(self) -> bool:
        """True if the accumulator contains exactly the microbatches assigned to this peer."""
        return not self.fenced and all(work.phase is Phase.FINISHED for work in self.work.values())

    @property
    def queued(self) -> int:
        """Number of microbatches that this peer could compute now. During a pause, only those that it has begun."""
        at_hand = [Phase.SUBMITTED, Phase.BACKWARD, Phase.WEIGHTS]
        if not self._is_paused():
            at_hand.append(Phase.INPUT)
        return sum(work.phase in at_hand for work in self.work.values())

    @property
    def _first(self) -> bool:
        return self.stage == 0

    @property
    def _last(self) -> bool:
        return self.stage == len(self.tables) - 1

    # ------------------------------------------------------------ pulling

    def pull(self, now: float) -> None:
        """WANT the inputs for which there is a slot, lowest microbatch first."""
        busy = sum(Phase.NEEDED < work.phase < Phase.FINISHED for work in self.work.values())
        wanted: dict[Actor, list[Key]] = {}
        unfinished_before = False
        for m in sorted(self.work):
            work = self.work[m]
            if work.phase is Phase.NEEDED and (busy < self._slots.count or not unfinished_before or work.moved):
                busy += 1
                work.phase = Phase.WANTED if work.input is None else Phase.INPUT
                if work.input is None:
                    key = self._input_key(m)
                    self._asked.note(key, now)
                    wanted.setdefault(self._holder(key), []).append(key)
            unfinished_before = unfinished_before or work.phase < Phase.FINISHED
        for holder, keys in wanted.items():
            self._out.send(holder, self._want(keys))
        self._submit()

    def _input_key(self, m: Microbatch) -> FrameKey:
        return FrameKey(self.pass_id, self.stage, Direction.FORWARD, m)

    def _gradient_key(self, m: Microbatch) -> FrameKey:
        return FrameKey(self.pass_id, self.stage + 1, Direction.BACKWARD, m)

    def _holder(self, key: FrameKey) -> Actor:
        """The actor that has, or will have, a frame that this peer wants."""
        if key.direction is Direction.BACKWARD:
            return self.tables[self.stage + 1].assignee(key.microbatch)
        return self.coordinator if self._first else self.tables[self.stage - 1].assignee(key.microbatch)

    def _lacking(self) -> list[FrameKey]:
        """All frames that this peer waits for."""
        keys = []
        for m, work in self.work.items():
            if work.phase is Phase.WANTED:
                keys.append(self._input_key(m))
            if work.phase <= Phase.FORWARDED and self._needs_gradient(work):
                keys.append(self._gradient_key(m))
        return keys

    def _needs_gradient(self, work: Work) -> bool:
        return (
            self.kind is PassKind.TRAIN
            and not self._last
            and work.gradient is None
            and (work.phase is Phase.FORWARDED or (work.ask and work.phase < Phase.FORWARDED))
        )

    def ask_again(self, now: float, *, of: Actor) -> None:
        """WANT every missing frame that `of` has, because the connection to `of` broke or was restored."""
        self._want_again([key for key in self._lacking() if self._holder(key) == of], now)

    def _want_again(self, keys: list[FrameKey], now: float, *, again: bool = False) -> None:
        wanted: dict[Actor, list[Key]] = {}
        for key in keys:
            self._asked.note(key, now)
            self.work[key.microbatch].asked_again = True
            wanted.setdefault(self._holder(key), []).append(key)
        for holder, grouped in wanted.items():
            self._out.send(holder, self._want(grouped, again=again))

    def tick(self, now: float) -> None:
        """Ask again for overdue frames; from the second time on, also through another actor."""
        if self.fenced:
            return
        direct: list[FrameKey] = []
        detours: dict[Actor, list[Key]] = {}
        lacking = self._lacking()
        due = self._asked.deadlines(lacking)
        for key in lacking:
            if key not in due:
                self._asked.note(key, now)
                continue
            if now < due[key]:
                continue
            self._asked.missed(key)
            direct.append(key)
            if self._asked.in_vain(key) > 1:
                detours.setdefault(self._holder(key), []).append(key)
        self._want_again(direct, now, again=True)
        for holder, keys in detours.items():
            via = self.detour(holder)
            if via is not None and holder != self.coordinator:
                self._out.send(holder, self._want(keys), via)

    def _want(self, keys: list[Key], *, again: bool = False) -> Want:
        return Want(tuple(keys), self.crossings.hints(keys), again)

    def next_deadline(self) -> float | None:
        if self.fenced:
            return None
        return min(self._asked.deadlines(self._lacking()).values(), default=None)

    def detour(self, other: Actor) -> Actor | None:
        """An actor that can forward messages to `other`: a sibling of either peer, or another peer that both know.

        Actors are preferred in this order. First, an actor that is connected to this peer. Second, the coordinator,
        which all peers can reach but whose bandwidth is limited. Last, an actor that this peer never tried to reach; if
        it came first, every peer would dial every newcomer behind a router.
        """
        there = next((stage for stage, roster in enumerate(self.rosters) if other in roster), None)
        if there is None:
            return None
        others = [actor for s, table in enumerate(self.tables) if is_near(s, there) for actor in table.roster]
        all_near = (*self.table.roster, *self.tables[there].roster, *others)
        left = [actor for actor in all_near if actor not in (self.me, other) and actor not in self.unreachable]
        connected = next((actor for actor in left if self._is_up(actor)), None)
        if connected is None and self.coordinator not in self.unreachable:
            return self.coordinator
        return connected or next(iter(left), None)

    def report_unreachable(self, other: Actor, via: Actor, reason: str) -> None:
        if other not in self._reported:
            self._reported.add(other)
            self._out.send(self.coordinator, Unreachable(self.pass_id, other))
            self._out.tell_route(other, via, reason)

    # ------------------------------------------------------------ frames and wants

    def on_frame(self, sender: Actor, frame: Frame, now: float) -> None:
        key = frame.key
        work = self.work.get(key.microbatch)
        if work is None or self.fenced:
            return
        if key.direction is Direction.FORWARD and key.boundary == self.stage:
            if work.phase > Phase.WANTED:
                return
            if not self.crossings.accepts(key.microbatch, frame.lineage):
                self._out.emit(FrameRefused(str(sender), f"{key} is relative to another base", 1))
                return
            self.crossings.arrived(key.microbatch, frame.lineage)
            work.input = frame.payload
            if work.phase is Phase.NEEDED:
                return  # tokens that were sent unasked wait here for a slot
            self._arrived(key, sender, now)
            work.phase = Phase.INPUT
            self._submit()
        elif key.direction is Direction.BACKWARD and key.boundary == self.stage + 1:
            if self.kind is not PassKind.TRAIN or work.gradient is not None or work.phase >= Phase.BACKWARD:
                return
            self._arrived(key, sender, now)
            self.crossings.gradient_arrived(key.microbatch, frame.lineage)
            work.gradient = frame.payload
            self._backward_if_ready(key.microbatch, work)

    def on_pending(self, sender: Actor, keys: tuple[FrameKey, ...], now: float) -> None:
        """The holder of overdue frames answers that they are not computed yet. So the link to the holder works."""
        lacking = set(self._lacking())
        for key in keys:
            if key in lacking and self._holder(key) == sender and self._asked.in_vain(key):
                self._asked.pending(key, now)
                self.work[key.microbatch].asked_again = False

    def overdue(self, other: Actor) -> bool:
        """Return True if `other` has left a repeated request without a direct answer."""
        return any(self._asked.in_vain(key) > 1 and self._holder(key) == other for key in self._lacking())

    def _arrived(self, key: FrameKey, sender: Actor, now: float) -> None:
        work = self.work[key.microbatch]
        self._asked.arrived(key, now)
        if work.moved or work.asked_again:
            work.asked_again = False
            self._out.emit(FrameRecovered(str(key), str(sender)))

    def resume(self) -> None:
        """A pause is over. Begin the work that arrived meanwhile."""
        if self.fenced:
            return
        for m in sorted(self.work):
            self._backward_if_ready(m, self.work[m])
        self._submit()

    def _submit(self) -> None:
        """Put the lowest microbatches with inputs into the compute queue, a few at a time."""
        if self._is_paused():
            return
        running = sum(work.phase is Phase.SUBMITTED for work in self.work.values())
        for m in sorted(self.work):
            if running >= LOOKAHEAD:
                return
            work = self.work[m]
            if work.phase is Phase.INPUT:
                work.phase = Phase.SUBMITTED
                payload, work.input = work.input, None
                assert payload is not None
                decode, encode = self.crossings.decoded_with(m), self.crossings.encoded_with(m)
                self._out.add(Forward(self.pass_id, self.kind, m, payload, decode, encode))
                running += 1

    def _backward_if_ready(self, m: Microbatch, work: Work) -> None:
        if work.phase is Phase.FORWARDED and work.gradient is not None and not self._is_paused():
            work.phase = Phase.BACKWARD
            payload, work.gradient = work.gradient, None
            self._out.add(Backward(self.pass_id, m, payload))

    def on_want(self, sender: Actor, key: FrameKey, via: Actor | None, base: int = 0) -> bool:
        """Send a frame if it is here, or remember the request until the frame is computed.

        A repeated request does not change the route of the first one.

        Return True if this peer still has to compute the frame.
        """
        if self._frame_cache.answer(sender, key, via, base) or not self._mine_to_answer(key):
            return False
        self._frame_cache.wanted(sender, key, via, base)
        work = self.work.get(key.microbatch)
        return not self.fenced and work is not None and work.phase is not Phase.RELEASED

    def _mine_to_answer(self, key: FrameKey) -> bool:
        forward = key.direction is Direction.FORWARD and key.boundary == self.stage + 1
        backward = key.direction is Direction.BACKWARD and key.boundary == self.stage
        return (forward or backward) and 0 <= key.microbatch < len(self.table.assignment)

    # ------------------------------------------------------------ computed

    def on_forward_done(self, done: ForwardDone, now: float) -> None:
        work = self.work.get(done.microbatch)
        lineage = self.crossings.forwarded(done.microbatch, done.received, done.sent)
        key = FrameKey(self.pass_id, self.stage + 1, Direction.FORWARD, done.microbatch)
        self._frame_cache.keep(key, Kept(done.payload, lineage, done.whole))
        if work is None or work.phase is not Phase.SUBMITTED:
            return
        self._out.emit(MicrobatchForwarded(str(self.pass_id), done.microbatch))
        if self.kind is PassKind.TRAIN:
            if not done.kept:
                self._slots.no_room(sum(each.phase in (Phase.FORWARDED, Phase.BACKWARD) for each in self.work.values()))
            self.forwarded |= 1 << done.microbatch
            work.phase = Phase.FORWARDED
            self._asked.note(self._gradient_key(done.microbatch), now)
            self._backward_if_ready(done.microbatch, work)
        else:
            self._finish(done.microbatch, work)
        self._submit()
        self.pull(now)

    def on_result_done(self, done: ResultDone, now: float) -> None:
        work = self.work.get(done.microbatch)
        if work is None or work.phase is not Phase.SUBMITTED:
            return
        self._results.append(Result(self.pass_id, done.microbatch, done.loss_sum, done.token))
        self._out.send(self.coordinator, self._results[-1])
        self._finish(done.microbatch, work)
        self._submit()
        self.pull(now)

    def tell_results_again(self) -> None:
        """Send the results again, because one may be lost. Otherwise the coordinator would wait until it aborts the
        pass.
        """
        for result in self._results:
            self._out.send(self.coordinator, result)

    def on_backward_done(self, done: BackwardDone, now: float) -> None:
        m = done.microbatch
        work = self.work.get(m)
        if work is None or work.phase not in (Phase.BACKWARD, Phase.SUBMITTED):
            return
        if done.weights_due:
            work.phase = Phase.WEIGHTS
            self.forwarded |= 1 << m  # in the last stage this is the first progress that the coordinator can see
        else:
            self._accumulate(m, work)
        lineage = self.crossings.accumulated(m, done.received)
        if not self._first:
            assert done.payload is not None
            key = FrameKey(self.pass_id, self.stage, Direction.BACKWARD, m)
            if not work.moved:  # a neighbour that lacks the gradient of a moved microbatch asks for it
                self._frame_cache.wanted(self.tables[self.stage - 1].assignee(m), key, None)
            self._frame_cache.keep(key, Kept(done.payload, lineage))
        if done.weights_due:
            self._out.add(Weights(self.pass_id, m))
        self._submit()
        self.pull(now)

    def on_weights_done(self, done: WeightsDone, now: float) -> None:
        work = self.work.get(done.microbatch)
        if work is None or work.phase is not Phase.WEIGHTS:
            return
        self._accumulate(done.microbatch, work)
        self.pull(now)

    def _accumulate(self, m: Microbatch, work: Work) -> None:
        self._finish(m, work)
        self._out.emit(MicrobatchAccumulated(str(self.pass_id), m))

    def _finish(self, m: Microbatch, work: Work) -> None:
        work.phase = Phase.FINISHED
        work.gradient = work.input = None
        self.done |= 1 << m

    # ------------------------------------------------------------ tables change

    def amend(self, stage: int, table: StageTable, now: float) -> None:
        """Process a newer table of any stage."""
        before = self.tables[stage]
        if table.number <= before.number:
            return
        self.tables[stage] = table
        self.rosters[stage] = frozenset(table.roster)
        self.numbers = tuple(table.number for table in self.tables)
        if stage == self.stage:
            self._take_assignment(table, now)
            return
        if stage == self.stage - 1:
            changed = [self._input_key(m) for m in self.work if before.assignee(m) != table.assignee(m)]
        elif stage == self.stage + 1:
            changed = [self._gradient_key(m) for m in self.work if before.assignee(m) != table.assignee(m)]
            for key in changed:  # the new assignee does not send the gradient unasked
                self.work[key.microbatch].ask = True
        else:
            return
        lacking = set(self._lacking())
        self._want_again([key for key in changed if key in lacking], now)

    def _take_assignment(self, table: StageTable, now: float) -> None:
        self.fenced = self.fenced or self.me not in table.roster  # a peer that fenced itself may still be in the roster
        mine = table.assigned_to(self.me)
        for m in [m for m in self.work if m not in mine]:
            dropped = self.work.pop(m)
            if dropped.phase in (Phase.BACKWARD, Phase.WEIGHTS, Phase.FINISHED) and self.kind is PassKind.TRAIN:
                self.fenced = True  # its gradient may be in the accumulator, so this peer's sums are void in this pass
            if dropped.phase not in (Phase.NEEDED, Phase.WANTED, Phase.RELEASED):
                self._out.add(Discard(self.pass_id, m))
                self.crossings.forget(m)
        if self.fenced:
            return
        for m in sorted(mine):
            held = self.work.get(m)
            if held is None or held.phase is Phase.RELEASED:
                # The stage before does not know that a microbatch was given up and assigned here again, so it does not
                # ask for the gradient.
                self.work[m] = Work(moved=held is None, ask=True)
                self.forwarded &= ~(1 << m)
        self.pull(now)
        self._submit()
        lacking = [self._gradient_key(m) for m in self.work if self._needs_gradient(self.work[m])]
        self._want_again([key for key in lacking if key not in self._asked], now)

    def release(self, number: int, microbatches: tuple[Microbatch, ...]) -> None:
        """Give up those of the microbatches that are not accumulated, and report which these are. A repeated request
        gets the same answer.
        """
        if self.fenced or number != self.table.number:
            return
        given = []
        for m in microbatches:
            work = self.work.get(m)
            if work is None:
                continue
            if work.phase <= Phase.INPUT or (not self._last and work.phase in (Phase.SUBMITTED, Phase.FORWARDED)):
                if work.phase > Phase.WANTED:
                    self._out.add(Discard(self.pass_id, m))
                    self.crossings.forget(m)
                self.work[m] = Work(phase=Phase.RELEASED)
                self._asked.forget(self._gradient_key(m))  # ignore a gradient that arrives now, even if m stays here
            if self.work[m].phase is Phase.RELEASED:
                given.append(m)
        self._out.send(self.coordinator, Released(self.pass_id, number, tuple(given)))
        self._submit()  # start the work that waited for the discarded microbatches
