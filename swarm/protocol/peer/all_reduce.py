"""One attempt of a stage to add up its gradients: reduce-scatter and all-gather of exact sums within the roster.

For each bucket, one member of the roster computes the sum (`bucket_owners`). This member is the bucket's reducer. It
sends one encoded result to all members, so every member holds the same bytes. The attempt is named by pass, stage and
table number. A new table voids the attempt and its sums.

Parts can outlive the attempt. A part names the microbatches that it contains, and a member always sums the same
microbatches to the same bytes. So when a new table only moves microbatches among other members, the parts that were
already sent stay valid: the sender does not send them again (`go_on`), and the reducer keeps them.

Two stages that share parameters add up the shared buckets together, within the union of their rosters: one reducer
sends the same bytes to both stages. Such an attempt is named by both table numbers, so a new table of either stage
voids it. A key in a message names the attempt from the receiver's point of view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from swarm.events import FrameRefused
from swarm.protocol.answers import Answers
from swarm.protocol.bucket_owners import owners
from swarm.protocol.ids import Actor, Attempt, Key, PartKey, StageIndex, SumKey
from swarm.protocol.lineage import total
from swarm.protocol.messages import MAX_AWAITED, Payload, Prepared, Receipt, ReducedPart, ReducePart, StageTable, Want
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.indirect_siblings import IndirectSiblings
from swarm.protocol.peer.io import Assemble, Assembled, BucketSummed, EncodePart, PartEncoded, StoreSum, SumBucket
from swarm.protocol.residuals import Carry
from swarm.protocol.timeouts import Observed, part_deadline


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """The division of a stage's gradient into buckets."""

    count: int
    first_round: int = 0
    """Number of buckets that are reduced before the others can be computed. 0: all can be computed at once."""
    shared: int = 0
    """Number of buckets, from the first, that another stage shares."""


class AllReduce:
    """The reduction of one stage. It starts when this peer is sealed under `table`, and sets `prepared` when all
    buckets are here.

    * `accumulated`: bit set of the microbatches that are in the accumulator, whatever the table says.
    * `receipt`: the receipt of those microbatches.
    * `carry`: the residuals that enter this reduction, in a run that averages compressed gradients.
    * `pauses`: the longest pauses of earlier reductions, to which that of this one is added.
    * `indirect`: the siblings whose parts and sums came only through another actor.
    * `wanted_around`: for each sibling that wants its parts and sums through another actor too, this actor. The caller
      keeps it up to date.
    * `partner`: the stage that shares the first `shared` buckets, and its table.
    """

    def __init__(
        self,
        *,
        me: Actor,
        attempt: Attempt,
        table: StageTable,
        partner: tuple[StageIndex, StageTable] | None,
        accumulated: int,
        receipt: Receipt | None,
        microbatches: int,
        buckets: BucketCounts,
        carry: Carry | None,
        budget_s: float,
        pauses: Observed,
        indirect: IndirectSiblings,
        wanted_around: Mapping[Actor, Actor],
        out: Outbox,
        now: float,
    ) -> None:
        self.attempt = attempt
        self.prepared: Prepared | None = None
        self._began = attempt.number
        """The oldest table number under which the parts sent in this attempt may have been made."""
        self._table = table
        self._me = me
        self._roster = table.roster
        self._partner = None if partner is None else partner[0]
        theirs = () if partner is None else partner[1].roster
        self._both = self._roster + theirs
        """The rosters of this stage and its partner; that of the lower stage comes first."""
        if partner is not None and partner[0] < attempt.stage:
            self._both = theirs + self._roster
        self._sets = _sets_of(table) | ({} if partner is None else _sets_of(partner[1]))
        """The microbatches that each contributor's part must contain."""
        self._claimed: set[Actor] = set()
        """Contributors whose parts claimed other microbatches."""
        self._everything = (1 << microbatches) - 1
        self._mine = accumulated
        self._receipt = receipt
        self._totals: dict[int, Receipt | None] = {}
        """For each bucket that is summed here or received as a sum, the receipt of the whole stage."""
        self._owners = [table.roster[i] for i in owners(table.lines, len(table.roster), buckets.count)]
        self._buckets = buckets.count
        self._shared = buckets.shared
        self._carry = carry
        self._warm = bool(table.carried) and min(table.carried) >= 0
        self._open = range(buckets.first_round or buckets.count)
        """The buckets that can be computed now."""
        self._budget_s = budget_s
        self._pauses = pauses
        self._heard_at = now
        """The time of the last arrival, or of the beginning."""
        self._longest_pause = 0.0
        self._indirect = indirect
        self._wanted_around = wanted_around
        self._asked_around = False
        """True if this peer has asked another actor, after a pause, to forward a request for what is missing."""
        self._out = out
        self._answers = Answers()
        self._encoded: dict[int, Payload] = {}
        self._parts: dict[int, dict[Actor, ReducePart]] = {b: {} for b in range(buckets.count) if self._owner(b) == me}
        self._summing: set[int] = set()
        self._sums: dict[int, Payload] = {}
        self._stored: set[int] = set()
        self._asked_at = now
        self._attempts = 0
        """Number of times that this peer has asked for what is missing since the last arrival."""
        self._arrived = 0
        """Number of parts and sums received, without the parts that a new table made void."""
        self._begin()

    def _begin(self) -> None:
        """Compute the buckets that are open now."""
        for b in self._open:
            if self._owner(b) != self._me:
                self._out.add(EncodePart(self.attempt, b, self._carry is not None, self._warm))
            else:
                self._sum_if_complete(b)

    def goes_on(self, table: StageTable, accumulated: int) -> bool:
        """Return True if this attempt can continue under a new table. It cannot once this peer has summed or stored a
        bucket.

        It cannot either if only the number of the table is new, because then the whole reduction must be repeated.
        """
        before = self._table
        same = (table.roster, table.lines) == (before.roster, before.lines) and accumulated == self._mine
        return same and table.assignment != before.assignment and not (self._summing or self._stored)

    def go_on(self, attempt: Attempt, table: StageTable, now: float) -> None:
        """Continue under a new table. Drop the parts whose microbatches it changes; their senders will send new
        ones.
        """
        self.attempt, self._table = attempt, table
        self._sets |= _sets_of(table)
        for held in self._parts.values():
            for actor in [actor for actor, part in held.items() if not self._is_assigned(part)]:
                del held[actor]
                self._arrived -= 1
        self._asked_at, self._attempts = now, 0

    @property
    def parts(self) -> list[ReducePart]:
        """The parts received that are not summed yet."""
        return [part for held in self._parts.values() for part in held.values()]

    def is_mine(self, attempt: Attempt) -> bool:
        """Return True if a part that this peer made for `attempt` belongs to this attempt."""
        return replace(attempt, number=self.attempt.number) == self.attempt and attempt.number >= self._began

    def _owner(self, bucket: int) -> Actor:
        return self._both[bucket % len(self._both)] if bucket < self._shared else self._owners[bucket]

    def _members(self, bucket: int) -> tuple[Actor, ...]:
        """The actors that contribute to a bucket and receive its sum."""
        return self._both if bucket < self._shared else self._roster

    def _named_for(self, actor: Actor) -> Attempt:
        """The name of the attempt from the point of view of `actor`."""
        if self._partner is not None and actor not in self._roster:
            return self.attempt.of_partner(self._partner)
        return self.attempt

    # ------------------------------------------------------------ reduce-scatter

    def on_part_encoded(self, done: PartEncoded) -> None:
        self._encoded[done.bucket] = done.payload
        owner = self._owner(done.bucket)
        self._send(owner, self._part(done.bucket, owner))

    def _send(self, to: Actor, message: ReducePart | ReducedPart) -> None:
        """Send directly. If `to` has asked for it through another actor, send it through that actor too."""
        self._out.send(to, message)
        if (via := self._wanted_around.get(to)) is not None and to not in self._out.routes:
            self._out.send(to, message, via)

    def _part(self, bucket: int, to: Actor) -> ReducePart:
        key = PartKey(self._named_for(to), bucket, self._me)
        return ReducePart(key, self._mine, self._encoded[bucket], self._receipt)

    def on_part(self, part: ReducePart, now: float, via: Actor | None = None) -> None:
        bucket, contributor = part.key.bucket, part.key.contributor
        held = self._parts.get(bucket)
        if held is None or contributor not in self._members(bucket) or contributor == self._me:
            return
        if not self._is_assigned(part):
            self._refuse(part)
            return
        is_new = contributor not in held and bucket not in self._summing
        self._note_way(contributor, part.key, via, is_new=is_new)
        if not is_new:
            return
        held[contributor] = part
        self._note_arrival(now)
        self._sum_if_complete(bucket)

    def _note_way(self, sender: Actor, key: PartKey | SumKey, via: Actor | None, *, is_new: bool) -> None:
        """Note whether a part or a sum came directly or through `via`. `is_new`: True if it is the first copy."""
        if via is None:
            self._indirect.came_directly(sender, key)
            return
        asked = self._asked_around or sender in self._indirect
        if is_new and asked and self._indirect.came_around(sender, key, via):
            self._out.tell_route(sender, via, "answers only through a sibling")

    def _note_arrival(self, now: float) -> None:
        self._arrived += 1
        self._attempts = 0
        self._longest_pause = max(self._longest_pause, now - self._heard_at)
        self._heard_at = now

    def _is_assigned(self, part: ReducePart) -> bool:
        return part.microbatches == self._sets[part.key.contributor]

    def _refuse(self, part: ReducePart) -> None:
        """This peer goes on waiting for the right part, and so names the contributor, and nobody else, as awaited."""
        contributor = part.key.contributor
        if part.key.attempt == self.attempt and contributor not in self._claimed:
            self._claimed.add(contributor)
            why = f"its part of {self.attempt} claims microbatches that are not assigned to it"
            self._out.emit(FrameRefused(str(contributor), why, 1))

    def _sum_if_complete(self, bucket: int) -> None:
        held, members = self._parts[bucket], self._members(bucket)
        if len(held) < len(members) - 1 or bucket in self._summing or bucket not in self._open:
            return
        sets = {self._me: self._mine, **{actor: part.microbatches for actor, part in held.items()}}
        partners = tuple(actor for actor in members if actor not in self._roster)
        if not all(self._complete([sets[a] for a in roster]) for roster in (self._roster, partners) if roster):
            senders = ", ".join(str(actor) for actor in held)
            self._out.emit(FrameRefused(senders, f"sets of {self.attempt} are not disjoint and complete", 1))
            self._arrived -= len(held)
            held.clear()
            return
        self._summing.add(bucket)
        if bucket >= self._shared:
            self._totals[bucket] = total((self._receipt, *(part.receipt for part in held.values())))
        self._out.add(
            SumBucket(
                self.attempt,
                bucket,
                parts=tuple(held[actor].payload for actor in members if actor in held),
                place=members.index(self._me),
                carried=self._carry is not None,
                warm=self._warm,
            )
        )

    def _complete(self, sets: Sequence[int]) -> bool:
        """Return True if these sets of microbatches are disjoint and together contain every microbatch of the pass."""
        union = 0
        for bits in sets:
            union |= bits
        return union == self._everything and sum(bits.bit_count() for bits in sets) == union.bit_count()

    # ------------------------------------------------------------ all-gather

    def on_bucket_summed(self, done: BucketSummed) -> None:
        self._sums[done.bucket] = done.payload
        self._parts[done.bucket].clear()
        for actor in self._members(done.bucket):
            if actor != self._me:
                self._send(actor, self._reduced(done.bucket, actor))
        self._store(done.bucket, done.payload)

    def on_sum(self, sender: Actor, part: ReducedPart, now: float, via: Actor | None = None) -> None:
        bucket = part.key.bucket
        if bucket not in self._open or sender != self._owner(bucket):
            return
        is_new = bucket not in self._stored
        self._note_way(sender, part.key, via, is_new=is_new)
        if not is_new:
            return
        self._totals[bucket] = part.receipt
        self._note_arrival(now)
        self._store(bucket, part.payload)

    def _reduced(self, bucket: int, to: Actor) -> ReducedPart:
        return ReducedPart(SumKey(self._named_for(to), bucket), self._sums[bucket], self._totals.get(bucket))

    def _store(self, bucket: int, payload: Payload) -> None:
        self._stored.add(bucket)
        self._out.add(StoreSum(self.attempt, bucket, payload))
        if len(self._stored) == self._buckets:
            self._out.add(Assemble(self.attempt))
        elif self._stored.issuperset(self._open):
            self._open = range(self._open.stop, self._buckets)
            self._begin()

    def on_assembled(self, done: Assembled) -> Prepared:
        if not self._asked_around:  # the pause before an answer by a detour is not how long parts take
            self._pauses.add(self._longest_pause)
        found = (done.digest, done.squared_norm, done.loss_sum, done.finite)
        receipt = self._totals.get(self._shared)  # the first bucket that this stage does not share
        state = (done.state, done.spoilt, done.unusable)
        sketches = (done.sketch, done.seal, done.outline)
        self.prepared = Prepared(self.attempt, *found, receipt, done.shared, *state, *sketches)
        return self.prepared

    @property
    def progress(self) -> int:
        """Number of parts and sums made here or received. It has an upper bound, and stops growing when the reduction
        stalls.
        """
        return len(self._encoded) + len(self._sums) + self._arrived

    # ------------------------------------------------------------ recovery

    def on_want(self, sender: Actor, key: PartKey | SumKey, via: Actor | None) -> None:
        if isinstance(key, PartKey):
            mine = replace(key, contributor=self._me)
            is_here = key.bucket in self._encoded and sender == self._owner(key.bucket)
            if is_here and self._answers.allow(sender, mine):
                self._out.send(sender, self._part(key.bucket, sender), via)
        elif key.bucket in self._sums and sender in self._members(key.bucket) and self._answers.allow(sender, key):
            self._out.send(sender, self._reduced(key.bucket, sender), via)

    def ask_again(self, via_of: Mapping[Actor, Actor] | None = None) -> None:
        """WANT what is missing; from the actors in `via_of`, also through another actor."""
        for actor, want in self._wants():
            self._out.send(actor, want)
            if via_of and actor in via_of:
                self._asked_around = True
                self._out.send(actor, want, via_of[actor])

    def ask_around(self, via_of: Mapping[Actor, Actor]) -> None:
        """WANT what the actors in `via_of` will have, through another actor only. They send it directly unasked."""
        for actor, want in self._wants() if via_of else ():
            if actor in via_of:
                self._out.send(actor, want, via_of[actor])

    def _wants(self) -> list[tuple[Actor, Want]]:
        """For each actor that has, or will have, something that is missing here: a message that asks for it."""
        wanted: dict[Actor, list[Key]] = {}
        for bucket, actor in self._parts_lacking():
            wanted.setdefault(actor, []).append(PartKey(self._named_for(actor), bucket, actor))
        for bucket, owner in self._sums_lacking():
            wanted.setdefault(owner, []).append(SumKey(self._named_for(owner), bucket))
        return [(actor, Want(tuple(keys))) for actor, keys in wanted.items()]

    def _parts_lacking(self) -> Iterator[tuple[int, Actor]]:
        """Each missing part: its bucket and its contributor."""
        for bucket, held in self._parts.items():
            if bucket in self._open and bucket not in self._summing:
                for actor in self._members(bucket):
                    if actor != self._me and actor not in held:
                        yield bucket, actor

    def _sums_lacking(self) -> Iterator[tuple[int, Actor]]:
        """Each missing sum: its bucket and the actor that sums it."""
        for bucket in self._open:
            owner = self._owner(bucket)
            if bucket not in self._stored and owner != self._me:
                yield bucket, owner

    @property
    def awaited(self) -> tuple[Actor, ...]:
        """The actors for which this peer waits, as in Status. A reducer whose sum is missing may itself wait for a
        part.

        While this peer's own computation is missing, it names itself, because all others wait for it.
        """
        if self._computing:
            return (self._me,)
        for lacking in (self._parts_lacking(), self._sums_lacking()):
            named: dict[Actor, None] = {}
            for _, actor in lacking:
                named[actor] = None
                if len(named) == MAX_AWAITED:
                    break
            if named:
                return tuple(named)
        return ()

    @property
    def _computing(self) -> bool:
        """True if the compute thread has unfinished orders of this attempt."""
        parts = any(self._owner(b) != self._me and b not in self._encoded for b in self._open)
        assembled = len(self._stored) < self._buckets or self.prepared is not None
        return parts or not self._summing <= self._sums.keys() or not assembled

    @property
    def siblings(self) -> tuple[Actor, ...]:
        """The other actors in this reduction."""
        members = self._both if self._shared else self._roster
        return tuple(actor for actor in members if actor != self._me)

    def overdue(self, now: float) -> int:
        """How often this peer has asked for missing parts or sums since the last arrival, including this time. 0 if
        nothing is overdue.

        Nothing is overdue while parts or sums keep arriving. On a slow link, a reduction takes longer than any
        deadline, and a part that is requested while it is in transit is sent twice.
        """
        if len(self._stored) == self._buckets or now < self.next_deadline_at():
            return 0
        self._asked_at = now
        self._attempts += 1
        return self._attempts

    def next_deadline_at(self) -> float:
        return max(self._asked_at, self._heard_at) + part_deadline(self._pauses, self._budget_s, self._attempts)

    def next_deadline(self) -> float | None:
        return None if len(self._stored) == self._buckets else self.next_deadline_at()


def _sets_of(table: StageTable) -> dict[Actor, int]:
    return {actor: table.set_of(actor) for actor in table.roster}
