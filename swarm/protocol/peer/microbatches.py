"""A peer's microbatches in one pass, with the frames that it lacks and the frames that it keeps for other peers.

A frame is sent only if a peer wants it. A peer sends WANT for the inputs of its assigned microbatches in ascending
order, as many as it has slots for. The holder answers at once, or when it has computed the frame. An input whose holder
says that it has not computed it yet occupies no slot, so one idle holder cannot keep the frames of the others away.
WANT is also the only recovery: the peer sends it again when an amendment changes the holder of a frame, when a
connection is restored, and when a deadline passes. The smallest unfinished microbatch may always be wanted, so full
slots cannot block the pipeline. Gradients are sent without a WANT and always accepted. They are wanted only in
recovery.
"""

from __future__ import annotations

from swarm.events import FrameRefused, MicrobatchAccumulated, MicrobatchForwarded
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassKind, StageIndex
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import Frame, Open, Released, Result, StageTable
from swarm.protocol.peer.detours import Detours
from swarm.protocol.peer.frame_cache import FrameCache, Kept
from swarm.protocol.peer.frame_wants import FrameWants
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
from swarm.protocol.peer.microbatch_work import MicrobatchWork, WorkPhase
from swarm.protocol.peer.pass_context import PassContext
from swarm.protocol.slots import unasked

MOST_LATE = 3
"""For each slot, the number of microbatches that need none because their inputs are not computed yet. There may not be
more, because a faster neighbour would then send frames for which there is no room. A frame takes far less memory than a
graph.
"""
LOOKAHEAD = 2
"""Number of forwards in the compute queue at once. The others wait here, where they can still be released."""


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
        self.work: dict[Microbatch, MicrobatchWork] = {}
        self.detours = Detours(context, stage, opening.pass_id, self.tables, self.rosters)
        self.wants = FrameWants(context, stage, opening, self.tables, self.work, crossings, self.detours)
        self._is_paused = context.is_paused
        self._slots = context.slots
        self._out = context.out
        self._frame_cache = FrameCache(context.out)
        self._misplaced: set[tuple[Actor, FrameKey]] = set()
        """Frames that were refused, because their base is not the one that is here. Each is reported once."""
        self._results: list[Result] = []
        """The results reported so far, in a forward-only pass."""
        for m in sorted(self.tables[stage].assigned_to(me)):
            self.work[m] = MicrobatchWork()
        if self._first and not self.table.number:
            for m in unasked(self.table, me)[: self._slots.count]:
                self.work[m].phase = WorkPhase.WANTED
                self.wants.expect(self.wants.input_key(m), now)
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
        return not self.fenced and all(work.phase is WorkPhase.FINISHED for work in self.work.values())

    @property
    def queued(self) -> int:
        """Number of microbatches that this peer could compute now. During a pause, only those that it has begun."""
        at_hand = [WorkPhase.SUBMITTED, WorkPhase.BACKWARD, WorkPhase.WEIGHTS]
        if not self._is_paused():
            at_hand.append(WorkPhase.INPUT)
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
        busy = self._busy()
        wanted: list[FrameKey] = []
        unfinished_before = False
        for m in sorted(self.work):
            work = self.work[m]
            if work.phase is WorkPhase.NEEDED and (busy < self._slots.count or not unfinished_before or work.moved):
                busy += 1
                work.phase = WorkPhase.WANTED if work.input is None else WorkPhase.INPUT
                if work.input is None:
                    wanted.append(self.wants.input_key(m))
            unfinished_before = unfinished_before or work.phase < WorkPhase.FINISHED
        self.wants.want(wanted, now)
        self._submit()

    def _busy(self) -> int:
        """Number of microbatches that occupy a slot."""
        begun = sum(WorkPhase.NEEDED < work.phase < WorkPhase.FINISHED for work in self.work.values())
        return begun - min(MOST_LATE * self._slots.count, sum(work.late for work in self.work.values()))

    def on_pending(self, sender: Actor, keys: tuple[FrameKey, ...], now: float) -> None:
        """The holder of overdue frames answers that they are not computed yet."""
        if not self.fenced:
            self.wants.on_pending(sender, keys, now)
            self.pull(now)

    def tick(self, now: float) -> None:
        """Ask again for overdue frames."""
        if not self.fenced:
            self.wants.tick(now)

    def next_deadline(self) -> float | None:
        return None if self.fenced else self.wants.next_deadline()

    # ------------------------------------------------------------ frames and wants

    def expects(self, sender: Actor, key: FrameKey) -> bool:
        """Return True if this peer still needs a frame, and `sender` may send it."""
        work = self.work.get(key.microbatch)
        if work is None or self.fenced or key.pass_id != self.pass_id or not self.wants.may_come_from(sender, key):
            return False
        if key.direction is Direction.FORWARD:
            return key.boundary == self.stage and work.phase <= WorkPhase.WANTED
        needed = self.kind is PassKind.TRAIN and not self._last and work.gradient is None
        return needed and key.boundary == self.stage + 1 and work.phase < WorkPhase.BACKWARD

    def on_frame(self, sender: Actor, frame: Frame, now: float) -> None:
        key = frame.key
        work = self.work.get(key.microbatch)
        if work is None or self.fenced:
            return
        if key.direction is Direction.FORWARD and key.boundary == self.stage:
            if work.phase > WorkPhase.WANTED or not self.wants.may_come_from(sender, key):
                return
            if not self.crossings.accepts(key.microbatch, frame.lineage):
                if (sender, key) not in self._misplaced:
                    self._misplaced.add((sender, key))
                    self._out.emit(FrameRefused(str(sender), f"{key} is relative to another base", 1))
                return
            self.crossings.arrived(key.microbatch, frame.lineage)
            work.input = frame.payload
            if work.phase is WorkPhase.NEEDED:
                return  # tokens that were sent unasked wait here for a slot
            self.wants.arrived(key, sender, now)
            late, work.late = work.late, False
            work.phase = WorkPhase.NEEDED if late else WorkPhase.INPUT
            self.pull(now)
        elif key.direction is Direction.BACKWARD and key.boundary == self.stage + 1:
            if self.kind is not PassKind.TRAIN or work.gradient is not None or work.phase >= WorkPhase.BACKWARD:
                return
            if self._last or not self.wants.may_come_from(sender, key):
                return
            self.wants.arrived(key, sender, now)
            self.crossings.gradient_arrived(key.microbatch, frame.lineage)
            work.gradient = frame.payload
            self._backward_if_ready(key.microbatch, work)

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
        running = sum(work.phase is WorkPhase.SUBMITTED for work in self.work.values())
        for m in sorted(self.work):
            if running >= LOOKAHEAD:
                return
            work = self.work[m]
            if work.phase is WorkPhase.INPUT:
                work.phase = WorkPhase.SUBMITTED
                payload, work.input = work.input, None
                assert payload is not None
                decode, encode = self.crossings.decoded_with(m), self.crossings.encoded_with(m)
                self._out.add(Forward(self.pass_id, self.kind, m, payload, decode, encode))
                running += 1

    def _backward_if_ready(self, m: Microbatch, work: MicrobatchWork) -> None:
        if work.phase is WorkPhase.FORWARDED and work.gradient is not None and not self._is_paused():
            work.phase = WorkPhase.BACKWARD
            payload, work.gradient = work.gradient, None
            self._out.add(Backward(self.pass_id, m, payload))

    def on_want(self, sender: Actor, key: FrameKey, via: Actor | None, base: int = 0) -> bool:
        """Send a frame if it is here, or remember the request until the frame is computed.

        A repeated request does not change the route of the first one.

        Return True if this peer still has to compute the frame.
        """
        if not self._is_for(sender, key) or self._frame_cache.answer(sender, key, via, base):
            return False
        if not self._mine_to_answer(key):
            return False
        self._frame_cache.wanted(sender, key, via, base)
        work = self.work.get(key.microbatch)
        return not self.fenced and work is not None and work.phase is not WorkPhase.RELEASED

    def _is_for(self, actor: Actor, key: FrameKey) -> bool:
        """Return True if the actor is in the stage that computes with this frame."""
        stage = key.boundary - (key.direction is Direction.BACKWARD)
        return 0 <= stage < len(self.rosters) and actor in self.rosters[stage]

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
        if work is None or work.phase is not WorkPhase.SUBMITTED:
            return
        self._out.emit(MicrobatchForwarded(str(self.pass_id), done.microbatch))
        if self.kind is PassKind.TRAIN:
            if not done.kept:
                graphs = (WorkPhase.FORWARDED, WorkPhase.BACKWARD)
                self._slots.no_room(sum(each.phase in graphs for each in self.work.values()))
            self.forwarded |= 1 << done.microbatch
            work.phase = WorkPhase.FORWARDED
            self.wants.await_gradient(done.microbatch, now)
            self._backward_if_ready(done.microbatch, work)
        else:
            self._finish(done.microbatch, work)
        self._submit()
        self.pull(now)

    def on_result_done(self, done: ResultDone, now: float) -> None:
        work = self.work.get(done.microbatch)
        if work is None or work.phase is not WorkPhase.SUBMITTED:
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
        if work is None or work.phase not in (WorkPhase.BACKWARD, WorkPhase.SUBMITTED):
            return
        if done.weights_due:
            work.phase = WorkPhase.WEIGHTS
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
        if work is None or work.phase is not WorkPhase.WEIGHTS:
            return
        self._accumulate(done.microbatch, work)
        self.pull(now)

    def _accumulate(self, m: Microbatch, work: MicrobatchWork) -> None:
        self._finish(m, work)
        self._out.emit(MicrobatchAccumulated(str(self.pass_id), m))

    def _finish(self, m: Microbatch, work: MicrobatchWork) -> None:
        work.phase = WorkPhase.FINISHED
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
            changed = [self.wants.input_key(m) for m in self.work if before.assignee(m) != table.assignee(m)]
        elif stage == self.stage + 1:
            changed = [self.wants.gradient_key(m) for m in self.work if before.assignee(m) != table.assignee(m)]
            for key in changed:  # the new assignee does not send the gradient unasked
                self.work[key.microbatch].ask = True
        else:
            return
        lacking = set(self.wants.lacking())
        self.wants.want_again([key for key in changed if key in lacking], now)

    def _take_assignment(self, table: StageTable, now: float) -> None:
        self.fenced = self.fenced or self.me not in table.roster  # a peer that fenced itself may still be in the roster
        mine = table.assigned_to(self.me)
        for m in [m for m in self.work if m not in mine]:
            dropped = self.work.pop(m)
            if (
                dropped.phase in (WorkPhase.BACKWARD, WorkPhase.WEIGHTS, WorkPhase.FINISHED)
                and self.kind is PassKind.TRAIN
            ):
                self.fenced = True  # its gradient may be in the accumulator, so this peer's sums are void in this pass
            if dropped.phase not in (WorkPhase.NEEDED, WorkPhase.WANTED, WorkPhase.RELEASED):
                self._out.add(Discard(self.pass_id, m))
                self.crossings.forget(m)
        if self.fenced:
            return
        for m in sorted(mine):
            held = self.work.get(m)
            if held is None or held.phase is WorkPhase.RELEASED:
                # The stage before does not know that a microbatch was given up and assigned here again, so it does not
                # ask for the gradient.
                self.work[m] = MicrobatchWork(moved=held is None, ask=True)
                self.forwarded &= ~(1 << m)
        self.pull(now)
        self._submit()
        self.wants.want_gradients(now)

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
            if work.phase <= WorkPhase.INPUT or (
                not self._last and work.phase in (WorkPhase.SUBMITTED, WorkPhase.FORWARDED)
            ):
                if work.phase > WorkPhase.WANTED:
                    self._out.add(Discard(self.pass_id, m))
                    self.crossings.forget(m)
                self.work[m] = MicrobatchWork(phase=WorkPhase.RELEASED)
                self.wants.forget_gradient(m)  # ignore a gradient that arrives now, even if m stays here
            if self.work[m].phase is WorkPhase.RELEASED:
                given.append(m)
        self._out.send(self.coordinator, Released(self.pass_id, number, tuple(given)))
        self._submit()  # start the work that waited for the discarded microbatches
