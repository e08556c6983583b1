"""The simulator's teeth: protocols that are broken on purpose, each in one rule, each of which it must catch.

`with mutant.planted(): run_seed(…)`. Every mutant undoes one strict rule of docs/protocol.md; what the rule is for is
said next to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swarm.protocol import mending as mending_module
from swarm.protocol import peer as peer_module
from swarm.protocol import rebalancing as rebalancing_module
from swarm.protocol import retained as retained_module
from swarm.protocol.actions import Apply, Feed, PartEncoded, RestoreSums, SumBucket
from swarm.protocol.allegiance import Allegiance
from swarm.protocol.catching_up import CatchingUp
from swarm.protocol.consensus import Consensus
from swarm.protocol.coordinator import CoordinatorCore
from swarm.protocol.coordinator import Phase as CoordinatorPhase
from swarm.protocol.crossings import Crossings
from swarm.protocol.departures import Departures
from swarm.protocol.group import GroupMember
from swarm.protocol.ids import BaseKey, Direction, End, FrameKey, StageIndex, StepNumber
from swarm.protocol.ledger import Ledger
from swarm.protocol.mending import Mending
from swarm.protocol.messages import ArchivedEntry, Canvass, Done, Frame, StageOutcome, Status
from swarm.protocol.open_pass import Decided, OpenPass
from swarm.protocol.peer import PeerCore
from swarm.protocol.placement import Placement
from swarm.protocol.planner import Lineup, Move, Stay
from swarm.protocol.rebalancing import Rebalancing
from swarm.protocol.reduction import Reduction
from swarm.protocol.residuals import Rosters
from swarm.protocol.retained import Retained
from swarm.protocol.stint import Stint
from swarm.protocol.walk import Phase as WorkPhase
from swarm.protocol.walk import Walk, Work
from swarm.protocol.wiring import amend
from swarm.simulation.loans import Loans
from swarm.simulation.member_disk import MemberDisk
from swarm.simulation.sim_coordinator import SimCoordinator
from swarm.simulation.sim_peer import SimPeer
from swarm.simulation.toy_model import LADDERS, tokens_payload

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    rule: str
    """The rule it breaks."""
    patches: Callable[[], list[Patch]]
    scenario: str = "mixed"
    """In which seeds it is looked for."""
    first: int = 0
    """The first of them. What takes several faults in a row shows in one seed of a thousand."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this is open, the cores of this process are broken."""
        before = []
        for owner, name, value in self.patches():
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


def _without_self_fence() -> Patch:
    """A peer that goes on although accumulated work was taken from it."""
    take = Walk._take_assignment

    def taken(self: Walk, table: Any, now: float) -> None:
        before = dict(self.work)
        take(self, table, now)
        if self.me in table.roster and self.fenced:
            self.fenced = False
            for m in sorted(table.assigned_to(self.me)):
                self.work.setdefault(m, before.get(m) or Work(moved=True, ask=True))
            self.pull(now)

    return Walk, "_take_assignment", taken


def _no_fencing() -> list[Patch]:
    def move_only(table: Any, out: Any, moved: Any, weights: Any, leaving: Any = ()) -> Any:
        return amend(table, (), moved, weights, leaving)

    return [(mending_module, "amend", move_only), _without_self_fence()]


def _replay_without_dedup() -> list[Patch]:
    on_frame = Walk.on_frame

    def again(self: Walk, sender: Any, frame: Any, now: float) -> None:
        work = self.work.get(frame.key.microbatch)
        if work is not None and self._last and frame.key.direction is Direction.FORWARD and not self.fenced:
            work.phase = min(work.phase, WorkPhase.WANTED)
        on_frame(self, sender, frame, now)

    return [(Walk, "on_frame", again)]


def _decide_without_all_stages() -> list[Patch]:
    def outcome(self: Ledger, stage: int, without: Any) -> StageOutcome | None:
        prepared = next(iter(self.prepared[stage].values()), None)
        if prepared is None and not any(self.prepared.values()):
            return None
        return StageOutcome(self.tables[stage].number, prepared.digest if prepared else "")

    def one(self: Ledger, stage: int, without: Any) -> Any:
        everything = [p for held in self.prepared.values() for p in held.values()]
        return next(iter(self.prepared[stage].values()), everything[0])

    return [(Ledger, "outcome", outcome), (Ledger, "_one", one)]


def _late_amendment() -> list[Patch]:
    wait = Walk.amend

    def accept(self: Walk, stage: int, table: Any, now: float) -> None:
        if table.number < self.tables[stage].number:
            self.tables[stage] = dataclasses.replace(self.tables[stage], number=table.number - 1)
        wait(self, stage, table, now)

    return [(Walk, "amend", accept), _without_self_fence()]


def _late_open() -> list[Patch]:
    on_open = PeerCore._on_open

    def accept(self: PeerCore, message: Any, now: float) -> None:
        if self.stint is not None and message.pass_id < self.stint.pass_id:
            self.holding.term = message.pass_id.term
            self._leave_pass()
        on_open(self, message, now)

    return [(PeerCore, "_on_open", accept)]


def _cursor_shifted() -> list[Patch]:
    """A coordinator that counts the batches it has fed, and is one off after a restart."""

    def feed(self: SimCoordinator, action: Feed) -> None:
        key, kind = action.key, action.key.pass_id.index
        step = key.pass_id.step + (1 if self.record.term > 1 and kind == 0 else 0)
        self.world.network.send(self, action.to, Frame(key, tokens_payload(kind, step, key.microbatch)))

    return [(SimCoordinator, "_feed_tokens", feed)]


def _attempt_without_id() -> list[Patch]:
    """A share that was encoded before an amendment is sent again after it: nothing tells the two apart."""
    start, reduced = Stint.reduce_if_sealed, Stint.on_reduced

    def reuse(self: Stint, now: float) -> None:
        before = self.reduction
        start(self, now)
        if self.reduction is None or self.reduction is before:
            return
        for bucket, payload in self.__dict__.setdefault("shares", {}).items():
            self.reduction.on_part_encoded(PartEncoded(self.reduction.attempt, bucket, payload))

    def remember(self: Stint, event: Any) -> None:
        if isinstance(event, PartEncoded):
            shares = self.__dict__.setdefault("shares", {})
            event = dataclasses.replace(event, payload=shares.setdefault(event.bucket, event.payload))
        reduced(self, event)

    return [(Stint, "reduce_if_sealed", reuse), (Stint, "on_reduced", remember)]


def _release_without_hand_shake() -> list[Patch]:
    tick = Mending.tick

    def move_at_once(self: Mending, aborts: int, strikes: Any, now: float) -> Any:
        found = tick(self, aborts, strikes, now)
        ledger = self._ledger
        if found is None and ledger.releasing:
            actor, microbatches = next(iter(ledger.releasing.items()))
            stage = ledger.stage_of(actor)
            if stage is not None and len(ledger.tables[stage].roster) > 1:
                self._publish(stage, amend(ledger.tables[stage], [], microbatches, ledger.weights), "released")
        return found

    return [(Mending, "tick", move_at_once), _without_self_fence()]


def _poll_after_crash() -> list[Patch]:
    init, on_status = CoordinatorCore.__init__, CoordinatorCore._on_status

    def start(self: CoordinatorCore, actor: Any, settings: Any, term: int, decision: Any, *more: Any) -> None:
        init(self, actor, settings, term, decision, *more)
        self.polling = decision is not None  # type: ignore[attr-defined]
        if decision is not None:
            self.history.rolled_back(decision.step)

    def poll(self: CoordinatorCore, member: Any, status: Status, now: float) -> None:
        polling = self.polling and self.open_pass is None  # type: ignore[attr-defined]
        if polling and (status.version or 0) > self.history.version:
            self.history.version = status.version or 0
        on_status(self, member, status, now)

    return [(CoordinatorCore, "__init__", start), (CoordinatorCore, "_on_status", poll)]


def _sets_unchecked() -> list[Patch]:
    def sum_what_is_here(self: Reduction, bucket: int) -> None:
        if bucket not in self._summing and (self._parts[bucket] or len(self._roster) == 1):
            self._summing.add(bucket)
            self._out.add(SumBucket(self.attempt, bucket, tuple(p.payload for p in self._parts[bucket].values())))

    return [(Reduction, "_sum_if_complete", sum_what_is_here)]


def _done_is_completeness() -> list[Patch]:
    init, on_message, take = CoordinatorCore.__init__, CoordinatorCore._on_message, Walk._take_assignment
    done: set[tuple[Any, int]] = set()

    def start(self: CoordinatorCore, *arguments: Any) -> None:
        done.clear()
        init(self, *arguments)

    def listen(self: CoordinatorCore, sender: Any, message: Any, now: float) -> None:
        if isinstance(message, Done):
            done.add((message.pass_id, message.microbatch))
        on_message(self, sender, message, now)

    def taken(self: Walk, table: Any, now: float) -> None:
        take(self, table, now)
        for m, work in self.work.items():
            if work.moved and work.phase < WorkPhase.INPUT and (self.pass_id, m) in done:
                work.phase = WorkPhase.FINISHED
                self.done |= 1 << m  # and says so: the reducer would notice a part that lacks it

    return [
        (CoordinatorCore, "__init__", start),
        (CoordinatorCore, "_on_message", listen),
        (Walk, "_take_assignment", taken),
    ]


def _told_before_durable() -> list[Patch]:
    settle = CoordinatorCore._settle

    def tell(self: CoordinatorCore, now: float) -> None:
        settle(self, now)
        outcome = self.open_pass.outcome if self.open_pass is not None else None
        if self.phase is CoordinatorPhase.DECIDING and isinstance(outcome, Decided):
            self._on_record_written(outcome.decision, now)

    return [(CoordinatorCore, "_settle", tell)]


def _no_retention() -> list[Patch]:
    keep = Retained.keep

    def forget(self: Retained, key: FrameKey, kept: Any) -> None:
        keep(self, key, kept)
        del self._frames[key]

    return [(Retained, "keep", forget)]


def _base_unchecked() -> list[Patch]:
    """The change is sent to whoever wants the frame, and added to whatever is there."""

    def same_for_all(key: FrameKey, kept: Any, base: int) -> Frame:
        return Frame(key, kept.payload, kept.lineage)

    def whatever_is_there(self: SimPeer, key: Any) -> int:
        return self._bases.get(key, 0)

    return [
        (retained_module, "_frame", same_for_all),
        (Crossings, "accepts", lambda self, m, lineage: True),
        (Crossings, "_key", lambda self, m, end: BaseKey(self._visit or StepNumber(0), m, end)),
        (SimPeer, "_base", whatever_is_there),
    ]


def _copies_mixed() -> list[Patch]:
    return [(Ledger, "mixed_copies", lambda self, without: None)]


def _own_copy_kept() -> list[Patch]:
    """A sender keeps what it has sent, though the next stage used what another peer had sent before."""
    accumulated = Crossings.accumulated

    def keep(self: Crossings, m: Any, received: int) -> Any:
        told = accumulated(self, m, received)
        if self._sent.get(m):
            self._left[End.SENT, m] = self._sent[m]
        return told

    return [(Crossings, "accumulated", keep)]


def _partner_unchecked() -> list[Patch]:
    """A part of what is shared is taken whatever table the other stage had then, and no set is looked at."""
    on_part = Stint.on_part

    def renamed(self: Stint, part: Any) -> None:
        known = self._attempt
        if part.key.contributor not in self.walk.table.roster and part.key.attempt.number == known.number:
            part = dataclasses.replace(part, key=dataclasses.replace(part.key, attempt=known))
        on_part(self, part)

    return [(Stint, "on_part", renamed), (Reduction, "_complete", lambda self, sets: True)]


def _other_stage_left_out() -> list[Patch]:
    return [(Reduction, "_members", lambda self, bucket: self._roster)]


def _residuals_ungranted() -> list[Patch]:
    """A peer uses what it holds, whatever the table says."""

    def whatever_is_held(me: Any, table: Any, pass_id: Any, held: Any) -> Any:
        return held if held is not None and held.step + 1 == pass_id.step else None

    return [(peer_module, "carry_of", whatever_is_held)]


def _residuals_settled_early() -> list[Patch]:
    """What an attempt lost counts in the next attempt, though the first is void."""
    compressed = SimPeer._compressed

    def settle(self: SimPeer, action: Any, value: int, *, of_sum: bool) -> int:
        crossed = compressed(self, action, value, of_sum=of_sum)
        if self.world.settings.averages_compressed:
            self._residuals[of_sum, action.bucket] = self._pending[of_sum, action.bucket]
        return crossed

    return [(SimPeer, "_compressed", settle)]


def _residuals_of_another_term() -> list[Patch]:
    """The coordinator builds on the last step though a peer may have been told of another one since."""

    def of(self: Rosters, pass_id: Any, stage: int) -> Any:
        return self._places[stage] if self._decision is not None else {}

    return [(Rosters, "_of", of)]


def _choice_unrecorded() -> list[Patch]:
    decide = Ledger.decide

    def as_at_the_start(self: Ledger, *arguments: Any) -> Any:
        decision = decide(self, *arguments)
        start = (LADDERS.start,) * len(self.codecs)
        return None if decision is None else dataclasses.replace(decision, codecs=start)

    return [(Ledger, "decide", as_at_the_start)]


def _chosen_while_open() -> list[Patch]:
    tell = Mending.tell

    def with_the_newest(self: Mending, actor: Any, now: float) -> None:
        ledger = self._ledger
        rungs = LADDERS.forward
        if ledger.codecs and any(ledger.done_of(a) for a in ledger.actors):
            hardest = dataclasses.replace(ledger.codecs[0], forward=rungs[-1].codec)
            ledger.codecs = (hardest, *ledger.codecs[1:])
        tell(self, actor, now)

    return [(Mending, "tell", with_the_newest)]


def _rounds_at_once() -> list[Patch]:
    """The second round is computed before the first is summed."""
    begin = Reduction._begin

    def all_open(self: Reduction) -> None:
        self._open = range(self._buckets)
        begin(self)

    return [(Reduction, "_begin", all_open)]


def _two_votes() -> list[Patch]:
    return [(Consensus, "_may_vote_for", lambda self, sender: True)]


def _one_disk_is_enough() -> list[Patch]:
    def commit(self: Consensus) -> None:
        self._advance(self._durable)

    return [(Consensus, "_commit", commit)]


def _shorter_log_wins() -> list[Patch]:
    judge = Consensus._on_canvass

    def long_enough(self: Consensus, sender: Any, canvass: Canvass, now: float) -> None:
        judge(self, sender, dataclasses.replace(canvass, last_index=1 << 40, last_ballot=1 << 40), now)

    return [(Consensus, "_on_canvass", long_enough)]


def _vote_forgotten() -> list[Patch]:
    stored = MemberDisk.stored
    return [(MemberDisk, "stored", lambda self: dataclasses.replace(stored(self), vote=""))]


def _older_leader_obeyed() -> list[Patch]:
    def whoever(self: Allegiance, sender: Any, message: Any) -> bool:
        if sender in self.group:
            self.leader = sender
        return sender in self.group

    return [(Allegiance, "obeys", whoever), *_late_open()]


def _own_copy_is_enough() -> list[Patch]:
    """The leader takes a checkpoint for complete when it alone holds it."""
    archive = GroupMember._archive

    def alone(self: GroupMember, now: float) -> None:
        if self.core is not None and self._pending is not None:
            done, self._pending = self._pending, None
            ballot = self.record.ballot
            self.record.propose(ArchivedEntry(ballot, done.version, done.term, done.digests))
        archive(self, now)

    return [(GroupMember, "_archive", alone)]


def _let_go_at_once() -> list[Patch]:
    """Who is leaving is dismissed whatever it has accumulated."""
    return [(OpenPass, "includes", lambda self, *actors: False)]


def _last_copy_let_go() -> list[Patch]:
    """Who is leaving is dismissed when its part in the pass is over, whoever holds its stage then."""
    return [(Departures, "_free", lambda self, member, open_pass: "its part is over")]


def _taken_from_a_leaver() -> list[Patch]:
    """What who is leaving has not reported is given to others before it answers."""
    drain = Mending.drain

    def move_at_once(self: Mending, now: float) -> Any:
        found, ledger = drain(self, now), self._ledger
        for actor, microbatches in list(ledger.releasing.items()):
            stage = ledger.stage_of(actor)
            if found is None and stage is not None and actor in self._members.leaving():
                self._publish(stage, amend(ledger.tables[stage], [], microbatches, ledger.weights), "it is leaving")
        return found

    return [(Mending, "drain", move_at_once), _without_self_fence()]


def _sums_unchecked() -> list[Patch]:
    """Whatever sums come are applied."""

    def apply(self: CatchingUp, event: Any) -> Apply | None:
        if event.attempt != self._restoring:
            return None
        self._restoring = None
        return Apply(self._steps[event.attempt.pass_id.step].decision, event.attempt)

    return [(CatchingUp, "restored", apply)]


def _step_left_out() -> list[Patch]:
    """The newest sums that are here are applied."""
    advance = CatchingUp.advance

    def newest(self: CatchingUp) -> RestoreSums | None:
        order = advance(self)
        later = [step for step, each in self._steps.items() if each.fetched]
        if order is None or max(later) == order.attempt.pass_id.step:
            return order
        self._holding.version = max(later)
        self._restoring = self._attempt(self._steps[max(later)].decision)
        return RestoreSums(self._restoring)

    return [(CatchingUp, "advance", newest)]


def _in_the_roster_too_early() -> list[Patch]:
    """Who listens is in the next roster, and begins with what it holds."""
    begin = PeerCore._begin_if_ready

    def at_once(self: PeerCore, now: float) -> None:
        opening, holding = self._opening, self.holding
        if opening is not None and holding.loading is None and holding.version is not None:
            holding.version = opening.pass_id.version
        begin(self, now)

    return [
        (Placement, "_enters", lambda self, member: self._listens(member) and member.version is not None),
        (PeerCore, "_begin_if_ready", at_once),
    ]


def _copied_too_late() -> list[Patch]:
    """A donor copies its state when somebody comes for it, whatever it has applied since."""
    pull = Loans._pull

    def live(self: Loans, job: Any) -> None:
        for donor in self._shuffled(job[1].order.donors):
            donor.loans.copies = dict.fromkeys(donor.loans.copies, donor.state)
        pull(self, job)

    return [(Loans, "_pull", live)]


def _last_replica_moved() -> list[Patch]:
    """The stage with the fewest peers has the least to do, so it seems, and gives one away."""

    def vacate(lineup: Lineup, download_s: float, horizon_s: float) -> Move | Stay:
        source = min(range(len(lineup.crews)), key=lambda s: len(lineup.crews[s]))
        stage = max(range(len(lineup.crews)), key=lambda s: len(lineup.crews[s]))
        movable = [worker for worker in lineup.crews[source] if worker.movable]
        if source == stage or not movable:
            return Stay("nobody can")
        return Move(movable[0].actor, StageIndex(source), StageIndex(stage), 1.0, 0.0, "a broken plan")

    return [(rebalancing_module, "plan_move", vacate)]


def _moves_at_once() -> list[Patch]:
    consider = Rebalancing.consider

    def again(self: Rebalancing, now: float) -> Any:
        self._due = self._due or any(m.move_number and not m.has_worked for m in self._members)
        return consider(self, now)

    return [(Rebalancing, "consider", again), (Rebalancing, "longest_way_s", property(lambda self: -1.0))]


def _moved_before_drained() -> list[Patch]:
    """The next view is made while the pass is open."""
    deadlines = CoordinatorCore._deadlines

    def move_now(self: CoordinatorCore, now: float) -> None:
        deadlines(self, now)
        if self.phase is CoordinatorPhase.OPEN:
            self._placement.rebalancing._due = True
            self._placement.rebalancing.consider(now)

    return [(CoordinatorCore, "_deadlines", move_now)]


def _results_told_once() -> list[Patch]:
    return [(Walk, "tell_results_again", lambda self: None)]


MUTANTS = (
    Mutant("no fencing", "an excluded incarnation leaves the roster: what it accumulated is void", _no_fencing),
    Mutant("replay without dedup", "a frame of a finished microbatch is ignored", _replay_without_dedup),
    Mutant("decide without all stages", "every stage's whole roster is prepared", _decide_without_all_stages),
    Mutant("late amendment accepted", "tables are numbered, a lower number changes nothing", _late_amendment, "storm"),
    Mutant("late open accepted", "an older pass or term changes nothing", _late_open, "storm"),
    Mutant("cursor shifted on resume", "the data are a function of the step number", _cursor_shifted),
    Mutant("reduce attempt without id", "an attempt is named by pass, stage and table", _attempt_without_id),
    Mutant("release without hand-shake", "only what is tombstoned moves", _release_without_hand_shake),
    Mutant("poll after crash", "the record, not the peers, says what is decided", _poll_after_crash),
    Mutant("set digests unchecked", "a reducer checks that sets are disjoint and complete", _sets_unchecked),
    Mutant("done taken for completeness", "DONE drives the window and nothing else", _done_is_completeness),
    Mutant("told before durable", "the record, not a message, is the commit point", _told_before_durable),
    Mutant("no retention", "every frame is kept until its step is decided", _no_retention),
    Mutant(
        "base unchecked", "a change is used with the base it was made from, or not at all", _base_unchecked, "delta"
    ),
    Mutant("copies mixed", "the stages of a step have computed with the same copies", _copies_mixed, "delta", 1000),
    Mutant("own copy kept", "a sender builds on what its receiver has used", _own_copy_kept, "delta"),
    Mutant("partner's table unchecked", "stages reduce what they share under both tables", _partner_unchecked, "tied"),
    Mutant("other stage left out", "what is shared is summed over both rosters", _other_stage_left_out, "tied"),
    Mutant("rounds at once", "the second round of a reduce builds on the first", _rounds_at_once, "averaging"),
    Mutant("residuals ungranted", "only those residuals count that the table names", _residuals_ungranted, "averaging"),
    Mutant("residuals settled early", "residuals of an attempt are pending", _residuals_settled_early, "averaging"),
    Mutant("residuals of another term", "residuals end with their term", _residuals_of_another_term, "averaging"),
    Mutant("sums unchecked", "who catches up applies what was decided", _sums_unchecked, "joining"),
    Mutant("step left out", "who catches up applies every step, in order", _step_left_out, "joining"),
    Mutant("in the roster too early", "who begins a pass holds its version", _in_the_roster_too_early, "joining"),
    Mutant("copied too late", "a copy is of the version that was asked for", _copied_too_late, "joining"),
    Mutant("results told once", "whatever is waited for is told again", _results_told_once, "joining", 390),
    Mutant("choice unrecorded", "a decision says what its step crossed with", _choice_unrecorded, "auto"),
    Mutant("let go at once", "who is leaving stays until its part in the step is decided", _let_go_at_once, "leave"),
    Mutant("last copy let go", "who holds a stage alone hands it on before it goes", _last_copy_let_go, "leave"),
    Mutant(
        "taken from a leaver",
        "only what is tombstoned moves, also when its owner leaves",
        _taken_from_a_leaver,
        "leave",
    ),
    Mutant("last replica moved", "a stage gives nobody away that it cannot do without", _last_replica_moved, "moves"),
    Mutant("moves at once", "the next peer moves when the one before has arrived", _moves_at_once, "moves"),
    Mutant("moved before drained", "a peer leaves its stage between passes", _moved_before_drained, "moves"),
    Mutant("chosen while open", "codecs are chosen between steps, for all of a pass", _chosen_while_open, "auto"),
    Mutant("two votes", "a coordinator votes once in a ballot", _two_votes, "election"),
    Mutant("one disk is enough", "a decision stands when a majority has it on disk", _one_disk_is_enough, "group"),
    Mutant("shorter log wins", "who lacks what a voter has is not voted for", _shorter_log_wins, "group"),
    Mutant("vote forgotten", "a vote outlives a restart", _vote_forgotten, "election"),
    Mutant("older leader obeyed", "what comes under an older term is void", _older_leader_obeyed, "group"),
    Mutant("own copy is enough", "a checkpoint is complete when a majority holds it", _own_copy_is_enough, "group"),
)
