"""A peer's part in one pass: it computes its microbatches and takes part in the reduction, up to a prepared gradient.

The object exists from the beginning of the pass at this peer to the beginning of the next one. Every change of the
assignment in this peer's stage voids the reduction attempt made under the old table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarm.events import PeerFenced, ReduceCancelled, ReduceStarted, StagePrepared
from swarm.protocol.ids import Actor, Attempt, FrameKey, PartKey, PassKind, StageIndex, SumKey
from swarm.protocol.lineage import Crossings
from swarm.protocol.messages import (
    Failed,
    Frame,
    Open,
    Prepared,
    ReducedPart,
    ReducePart,
    StageTable,
    WithPayload,
    attempt_under,
)
from swarm.protocol.peer.all_reduce import AllReduce, BucketCounts
from swarm.protocol.peer.early_messages import LIMIT_BYTES, EarlyMessages
from swarm.protocol.peer.io import (
    Assembled,
    BackwardDone,
    Begin,
    BucketSummed,
    CancelReduce,
    ComputeFailed,
    ForwardDone,
    PartEncoded,
    ResultDone,
    WeightsDone,
)
from swarm.protocol.peer.microbatches import Microbatches
from swarm.protocol.peer.pass_context import PassContext
from swarm.protocol.residuals import Carry

MAX_UNDELIVERED = 256
"""Number of frames and parts that are kept for one actor while no route to it is known."""


class PassRun:
    """One peer's part in one pass. `prepared` is set when the summed gradient of this stage is ready to be applied. It
    is None again when its attempt becomes void.
    """

    def __init__(
        self,
        context: PassContext,
        stage: StageIndex,
        buckets: BucketCounts,
        opening: Open,
        carry: Carry | None,
        crossings: Crossings,
        unreachable: Iterable[Actor],
        now: float,
    ) -> None:
        self.pass_id = opening.pass_id
        self.prepared: Prepared | None = None
        self.reduction: AllReduce | None = None
        self._me = context.me
        self._coordinator = context.coordinator
        self._settings = context.settings
        self._buckets = buckets
        self._carry = carry
        self._fence_said = False
        """True if an event has reported that this peer is fenced. A peer can be fenced for several reasons; only the
        first is reported.
        """
        self._out = out = context.out
        self._pauses = context.pauses
        self._indirect = context.indirect
        self._wanted_around: dict[Actor, Actor] = {}
        """For each sibling that has asked through another actor for parts or sums: this actor."""
        self._early = EarlyMessages()
        self._arrived: set[tuple[Actor, PartKey | SumKey]] = set()
        """The parts and sums that have arrived, with their senders (`expects`)."""
        self._undelivered: dict[Actor, list[WithPayload]] = {}
        """For each unreachable actor, the messages that wait for a route to it."""
        context.slots.new_pass(stage)
        out.add(Begin(opening.pass_id, opening.kind, opening.codecs, opening.nonfinite))
        out.routes.clear()
        self.microbatches = Microbatches(context, stage, opening, crossings, now)
        self.go_around(tuple(unreachable), now)

    def leave(self) -> None:
        """Leave the pass, which is over for this peer."""
        self._cancel_reduction("the pass is over")

    def serves(self, actor: Actor) -> bool:
        """Return True if the actor has a part in this pass."""
        return self.microbatches.serves(actor)

    @property
    def reduced(self) -> int:
        """Number of parts and sums of the current attempt that this peer has made or received."""
        return self.reduction.progress if self.reduction is not None else 0

    @property
    def awaited(self) -> tuple[Actor, ...]:
        """The actors whose parts or sums of the current attempt are missing."""
        return self.reduction.awaited if self.reduction is not None else ()

    # ------------------------------------------------------------ told by the coordinator

    def amend(self, tables: Iterable[tuple[int, StageTable]], reason: str, now: float) -> None:
        """Process the tables of some stages, which may be new. A new attempt number voids the current attempt."""
        before = self._attempt
        for stage, table in tables:
            self.microbatches.amend(stage, table, now)
        if self._attempt == before:
            return
        microbatches, reduction = self.microbatches, self.reduction
        sealed = self._parts_outlive_tables and microbatches.sealed and not microbatches.fenced
        if reduction is not None and sealed and reduction.goes_on(microbatches.table, microbatches.done):
            self._out.emit(ReduceStarted(str(self._attempt), sorted(microbatches.work)))
            reduction.go_on(self._attempt, microbatches.table, now)
        else:
            for part in reduction.parts if reduction is not None else ():
                self._keep_early(part)
            self._cancel_reduction(reason)
            self.prepared = None
        self._early.drop(lambda part: isinstance(part, ReducePart) and not self._is_of_use(part))
        if microbatches.fenced:
            self.fence(reason)
        self._take_early_parts(now)
        self.reduce_if_sealed(now)

    def fence(self, reason: str) -> None:
        """Stop the work of this pass: keep the parameters, drop the accumulator, but still answer requests for
        frames.
        """
        self.microbatches.fenced = True
        self._cancel_reduction(reason)
        self.prepared = None
        if self._fence_said:
            return
        self._fence_said = True
        done = [m for m in range(self._settings.microbatches) if self.microbatches.done >> m & 1]
        self._out.emit(PeerFenced(str(self._me), self.microbatches.stage, str(self.pass_id), done, [], reason))

    # ------------------------------------------------------------ computed here

    def on_computed(
        self, event: ForwardDone | BackwardDone | WeightsDone | ResultDone | ComputeFailed, now: float
    ) -> None:
        match event:
            case ForwardDone():
                self.microbatches.on_forward_done(event, now)
            case BackwardDone():
                self.microbatches.on_backward_done(event, now)
                self.reduce_if_sealed(now)
            case WeightsDone():
                self.microbatches.on_weights_done(event, now)
                self.reduce_if_sealed(now)
            case ResultDone():
                self.microbatches.on_result_done(event, now)
            case ComputeFailed(pass_id, microbatch, reason, nonfinite):
                self._out.send(self._coordinator, Failed(pass_id, microbatch, reason, nonfinite))
                self.fence(reason)

    def on_reduced(self, event: PartEncoded | BucketSummed | Assembled) -> None:
        if self.reduction is None:
            return
        match event:
            case PartEncoded(attempt=attempt):
                if self.reduction.is_mine(attempt):
                    self.reduction.on_part_encoded(event)
            case _ if event.attempt != self.reduction.attempt:
                pass
            case BucketSummed():
                self.reduction.on_bucket_summed(event)
            case Assembled():
                self.prepared = self.reduction.on_assembled(event)
                self._out.emit(StagePrepared(str(event.attempt), event.digest))
                self._out.send(self._coordinator, self.prepared)

    # ------------------------------------------------------------ reducing

    def reduce_if_sealed(self, now: float) -> None:
        """Begin the reduction once the accumulator contains exactly the assigned microbatches."""
        microbatches = self.microbatches
        if microbatches.kind is not PassKind.TRAIN or self.reduction is not None or not microbatches.sealed:
            return
        attempt, partner = self._attempt, self._settings.partner(microbatches.stage)
        self._out.emit(ReduceStarted(str(attempt), sorted(microbatches.work)))
        self.reduction = AllReduce(
            me=self._me,
            attempt=attempt,
            table=microbatches.table,
            partner=None if partner is None else (partner, microbatches.tables[partner]),
            accumulated=microbatches.done,
            receipt=microbatches.crossings.receipt,
            microbatches=self._settings.microbatches,
            buckets=self._buckets,
            carry=self._carry,
            budget_s=self._settings.step_budget_s,
            pauses=self._pauses,
            indirect=self._indirect,
            wanted_around=self._wanted_around,
            out=self._out,
            now=now,
        )
        self.reduction.ask_around(self._ways_around(self.reduction, 0))
        self._take_early_parts(now)

    def _ways_around(self, reduction: AllReduce, attempts: int) -> dict[Actor, Actor]:
        """For each sibling that this peer asks through another actor, this actor. `attempts`: how often this peer has
        asked since the last arrival.

        From the second request on, these are all siblings. Before, they are those that are indirect.
        """
        found, detours = {}, self.microbatches.detours
        for actor in reduction.siblings:
            if actor in self._indirect or attempts > 1:
                tries = attempts if actor in self._indirect else attempts - 2
                if (via := self._indirect.way(actor, detours.ways(actor), tries)) is not None:
                    found[actor] = via
        return found

    def _take_early_parts(self, now: float) -> None:
        if self.reduction is None:
            return
        for _, part in self._early.take():
            if isinstance(part, ReducePart):
                self.on_part(part, now)
        if self._early.dropped:  # the other end of the pipeline may have finished long before and sent many parts
            self._arrived = {each for each in self._arrived if each[0] not in self._early.dropped}
            self._early.dropped.clear()
            self.reduction.ask_again()

    def _keep_early(self, part: ReducePart) -> None:
        """Keep a part for a later attempt. All contributors have equal shares of the buffer, because each of them sends
        parts of about the same size to this peer.
        """
        tables, partner = self.microbatches.tables, self._settings.partner(self.microbatches.stage)
        contributors = {*self.microbatches.table.roster, *(() if partner is None else tables[partner].roster)}
        self._early.keep(part.key.contributor, part, LIMIT_BYTES // max(1, len(contributors - {self._me})))

    def missed(self, senders: Iterable[Actor]) -> None:
        """Messages of these senders were dropped before this pass began. Missing parts are asked for when the reduction
        begins.
        """
        self._early.dropped.update(sender for sender in senders if self._reduces_here(sender))

    @property
    def _attempt(self) -> Attempt:
        """The attempt under the tables known to this peer."""
        microbatches = self.microbatches
        return attempt_under(
            microbatches.tables, microbatches.pass_id, microbatches.stage, self._settings.partner(microbatches.stage)
        )

    def _reduces_here(self, actor: Actor) -> bool:
        """Return True if the actor belongs to this stage, or to the stage that shares parameters with it."""
        partner = self._settings.partner(self.microbatches.stage)
        return actor in self.microbatches.table.roster or (
            partner is not None and actor in self.microbatches.tables[partner].roster
        )

    def _is_of_use(self, part: ReducePart) -> bool:
        """Return True if a part is valid for this peer's attempt, or for an attempt under tables that have not arrived
        yet.

        A part made under an older table is valid if its contributor has the same microbatches in the current table.
        """
        known, attempt = self._attempt, part.key.attempt
        if attempt.stage != known.stage or attempt.partner < known.partner:
            return False
        if attempt.number >= known.number:
            return True
        return self._parts_outlive_tables and part.microbatches == self.microbatches.table.set_of(part.key.contributor)

    @property
    def _parts_outlive_tables(self) -> bool:
        """True if a part stays valid under a new table that does not change its contributor's microbatches.

        This is not so for parts with residuals, which are valid for one attempt only, and in a stage that shares
        parameters.
        """
        return not self._settings.averages_compressed and self._settings.partner(self.microbatches.stage) is None

    def _cancel_reduction(self, reason: str) -> None:
        if self.reduction is not None:
            if self.reduction.prepared is None:
                self._out.emit(ReduceCancelled(str(self.reduction.attempt), reason))
            self._out.add(CancelReduce(self.reduction.attempt))
            self.reduction = None

    # ------------------------------------------------------------ from other peers

    def on_want(self, sender: Actor, key: FrameKey | PartKey | SumKey, via: Actor | None, base: int = 0) -> bool:
        """Answer a want. Return True if it is for a frame that this peer has yet to compute."""
        if isinstance(key, FrameKey):
            return self.microbatches.on_want(sender, key, via, base)
        if key.attempt.pass_id == self.pass_id and via is not None and self._reduces_here(sender):
            self._wanted_around[sender] = via
        if self.reduction is not None and key.attempt == self.reduction.attempt:
            self.reduction.on_want(sender, key, via)
        return False

    def expects(self, sender: Actor, message: WithPayload) -> bool:
        """Return True if data may be of use here. Call it once for everything that arrives: a repetition is of no use.

        The number of such data is limited by the tables of the pass, whatever a peer sends.
        """
        if isinstance(message, Frame):
            return self.microbatches.expects(sender, message.key)
        key, known = message.key, self._attempt
        attempt, arrived = key.attempt, (sender, key)
        near = attempt.pass_id == known.pass_id and attempt.stage == known.stage
        near = near and 0 <= attempt.number <= known.number + 1 and -1 <= attempt.partner <= known.partner + 1
        if not near or not 0 <= key.bucket < self._buckets.count or not self._reduces_here(sender):
            return False
        if arrived in self._arrived:
            return False
        self._arrived.add(arrived)
        return True

    def on_part(self, part: ReducePart, now: float, via: Actor | None = None) -> None:
        if not self._is_of_use(part) or not self._reduces_here(part.key.contributor):
            return
        known = self._attempt
        if self.reduction is not None and (part.key.attempt.number < known.number or part.key.attempt == known):
            self.reduction.on_part(part, now, via)
        else:
            self._keep_early(part)

    def on_sum(self, sender: Actor, part: ReducedPart, now: float, via: Actor | None) -> None:
        if self.reduction is not None and part.key.attempt == self.reduction.attempt:
            self.reduction.on_sum(sender, part, now, via)

    # ------------------------------------------------------------ links and time

    def undelivered(self, other: Actor, messages: Iterable[WithPayload]) -> None:
        """Keep messages that could not be sent until a detour is known. If they are not sent, `other` asks for them
        after a deadline.
        """
        waiting = self._undelivered.setdefault(other, [])
        waiting += [message for message in messages if self._counts(message)]
        del waiting[MAX_UNDELIVERED:]  # `other` asks for the rest
        if other in self._out.routes:
            self.deliver(other)

    def deliver(self, other: Actor) -> None:
        """A route to `other` exists, direct or by a detour: send the messages kept for it."""
        for message in self._undelivered.pop(other, ()):
            if self._counts(message) and self.serves(other):
                self._out.send(other, message)

    def _counts(self, message: WithPayload) -> bool:
        if isinstance(message, Frame):
            return message.key.pass_id == self.pass_id
        if self.reduction is None:
            return False
        attempt = message.key.attempt
        mine = isinstance(message, ReducePart) and self.reduction.is_mine(attempt)
        return mine or attempt == self.reduction.attempt

    def reconnected(self, other: Actor, now: float) -> None:
        """A connection is restored. Ask again for what may have been lost in transit."""
        self.microbatches.detours.unreachable.discard(other)
        if not self.microbatches.fenced:
            self.microbatches.wants.ask_again(now, of=other)
        if self.reduction is not None and other in self.reduction.siblings:
            self.reduction.ask_again()

    def go_around(self, others: Collection[Actor], now: float) -> None:
        """The connections to `others` were not restored in time: find other actors that forward messages to them. If
        one of them is dead, a new table follows.
        """
        self.microbatches.detours.unreachable.update(others)
        routes = self._out.routes
        stranded = [to for to, via in routes.items() if via in others and to not in others]
        for other in (*others, *stranded):
            if other == self._coordinator or not self.serves(other):
                continue
            via = self.microbatches.detours.via(other)
            if via is None:
                continue
            routes[other] = via
            self.microbatches.detours.report(other, via, "connection lost")
            self.deliver(other)
            self.microbatches.wants.ask_again(now, of=other)
            if self.reduction is not None and other in self.reduction.siblings:
                self.reduction.ask_again()

    def tick(self, now: float) -> None:
        """Ask again for overdue frames, parts and sums."""
        self.microbatches.tick(now)
        if self.reduction is not None and (attempts := self.reduction.overdue(now)):
            self.reduction.ask_again(self._ways_around(self.reduction, attempts))

    def deadlines(self) -> list[float]:
        due = [
            self.microbatches.next_deadline(),
            self.reduction.next_deadline() if self.reduction is not None else None,
        ]
        return [at for at in due if at is not None]
