"""Rules of a step: fencing, replay, what completes it, what is durable."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import Feed
from swarm.protocol.coordinator.pass_cycle import PassCycle
from swarm.protocol.coordinator.passes import repair as mending_module
from swarm.protocol.coordinator.passes.assignment import amend
from swarm.protocol.coordinator.passes.outcome import Decided
from swarm.protocol.coordinator.passes.preparation import Preparation
from swarm.protocol.coordinator.passes.repair import Repair
from swarm.protocol.coordinator.phase import Phase as CoordinatorPhase
from swarm.protocol.ids import Direction, FrameKey
from swarm.protocol.messages import Frame, StageOutcome, Status
from swarm.protocol.peer.all_reduce import AllReduce
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.frame_cache import FrameCache
from swarm.protocol.peer.io import PartEncoded, SumBucket
from swarm.protocol.peer.microbatch_work import MicrobatchWork, WorkPhase
from swarm.protocol.peer.microbatches import Microbatches
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.peer.step_cycle import StepCycle
from swarm.simulation.toy.sim_coordinator import SimCoordinator
from swarm.simulation.toy.toy_model import tokens_payload
from tests.mutants.mutant import Mutant, Patch


def without_self_fence() -> Patch:
    """A peer that goes on although accumulated work was taken from it."""
    take = Microbatches._take_assignment

    def taken(self: Microbatches, table: Any, now: float) -> None:
        before = dict(self.work)
        take(self, table, now)
        if self.me in table.roster and self.fenced:
            self.fenced = False
            for m in sorted(table.assigned_to(self.me)):
                self.work.setdefault(m, before.get(m) or MicrobatchWork(moved=True, ask=True))
            self.pull(now)

    return Microbatches, "_take_assignment", taken


def _no_fencing() -> list[Patch]:
    def move_only(table: Any, out: Any, moved: Any, weights: Any, spared: Any = ()) -> Any:
        return amend(table, (), moved, weights, spared)

    return [(mending_module, "amend", move_only), without_self_fence()]


def _works_while_paused() -> list[Patch]:
    def says_so_only(self: PeerCore, reason: str, now: float) -> None:
        self._status_reports.pauses(reason, now)

    return [(PeerCore, "_pause", says_so_only)]


def _replay_without_dedup() -> list[Patch]:
    on_frame = Microbatches.on_frame

    def again(self: Microbatches, sender: Any, frame: Any, now: float) -> None:
        work = self.work.get(frame.key.microbatch)
        if work is not None and self._last and frame.key.direction is Direction.FORWARD and not self.fenced:
            work.phase = min(work.phase, WorkPhase.WANTED)
        on_frame(self, sender, frame, now)

    return [(Microbatches, "on_frame", again)]


def _decide_without_all_stages() -> list[Patch]:
    def outcome(self: Preparation, stage: int, without: Any) -> StageOutcome | None:
        prepared = next(iter(self.reports[stage].values()), None)
        if prepared is None and not any(self.reports.values()):
            return None
        return StageOutcome(self._tables[stage].number, prepared.digest if prepared else "")

    def one(self: Preparation, stage: int, without: Any) -> Any:
        everything = [p for held in self.reports.values() for p in held.values()]
        return next(iter(self.reports[stage].values()), everything[0])

    return [(Preparation, "outcome", outcome), (Preparation, "_one", one)]


def _late_amendment() -> list[Patch]:
    wait = Microbatches.amend

    def accept(self: Microbatches, stage: int, table: Any, now: float) -> None:
        if table.number < self.tables[stage].number:
            self.tables[stage] = dataclasses.replace(self.tables[stage], number=table.number - 1)
        wait(self, stage, table, now)

    return [(Microbatches, "amend", accept), without_self_fence()]


def late_open() -> list[Patch]:
    opened = StepCycle.open

    def accept(self: StepCycle, message: Any, now: float) -> bool:
        if self.pass_run is not None and message.pass_id < self.pass_run.pass_id:
            self._held_stage.term = message.pass_id.term
            self.leave_pass()
        return opened(self, message, now)

    return [(StepCycle, "open", accept)]


def _cursor_shifted() -> list[Patch]:
    """A coordinator that counts the batches it has fed, and is one off after a restart."""

    def feed(self: SimCoordinator, action: Feed) -> None:
        key, kind = action.key, action.key.pass_id.index
        step = key.pass_id.step + (1 if self.record.term > 1 and kind == 0 else 0)
        self.world.network.send(self, action.to, Frame(key, tokens_payload(kind, step, key.microbatch)))

    return [(SimCoordinator, "_feed_tokens", feed)]


def _attempt_without_id() -> list[Patch]:
    """A share that was encoded before an amendment is sent again after it: nothing tells the two apart."""
    start, reduced = PassRun.reduce_if_sealed, PassRun.on_reduced

    def reuse(self: PassRun, now: float) -> None:
        before = self.reduction
        start(self, now)
        if self.reduction is None or self.reduction is before:
            return
        for bucket, payload in self.__dict__.setdefault("shares", {}).items():
            self.reduction.on_part_encoded(PartEncoded(self.reduction.attempt, bucket, payload))

    def remember(self: PassRun, event: Any) -> None:
        if isinstance(event, PartEncoded):
            shares = self.__dict__.setdefault("shares", {})
            event = dataclasses.replace(event, payload=shares.setdefault(event.bucket, event.payload))
        reduced(self, event)

    return [(PassRun, "reduce_if_sealed", reuse), (PassRun, "on_reduced", remember)]


def _release_without_hand_shake() -> list[Patch]:
    tick = Repair.tick

    def move_at_once(self: Repair, aborts: int, strikes: Any, now: float) -> Any:
        found = tick(self, aborts, strikes, now)
        pass_state = self._pass_state
        if found is None and pass_state.releasing:
            actor, microbatches = next(iter(pass_state.releasing.items()))
            stage = pass_state.stage_of(actor)
            if stage is not None and len(pass_state.tables[stage].roster) > 1:
                self._announcements.publish(
                    stage, amend(pass_state.tables[stage], [], microbatches, pass_state.weights), "released"
                )
        return found

    return [(Repair, "tick", move_at_once), without_self_fence()]


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
    def sum_what_is_here(self: AllReduce, bucket: int) -> None:
        if bucket not in self._summing and (self._parts[bucket] or len(self._roster) == 1):
            self._summing.add(bucket)
            self._out.add(SumBucket(self.attempt, bucket, tuple(p.payload for p in self._parts[bucket].values())))

    return [(AllReduce, "_sum_if_complete", sum_what_is_here)]


def _done_is_completeness() -> list[Patch]:
    init, on_message, take = CoordinatorCore.__init__, CoordinatorCore._on_message, Microbatches._take_assignment
    done: set[tuple[Any, int]] = set()

    def start(self: CoordinatorCore, *arguments: Any) -> None:
        done.clear()
        init(self, *arguments)

    def listen(self: CoordinatorCore, sender: Any, message: Any, now: float) -> None:
        if isinstance(message, Status) and message.stage == 0:
            done.update((message.pass_id, m) for m in range(message.done.bit_length()) if message.done >> m & 1)
        on_message(self, sender, message, now)

    def taken(self: Microbatches, table: Any, now: float) -> None:
        take(self, table, now)
        for m, work in self.work.items():
            if work.moved and work.phase < WorkPhase.INPUT and (self.pass_id, m) in done:
                work.phase = WorkPhase.FINISHED
                self.done |= 1 << m  # and says so: the reducer would notice a part that lacks it

    return [
        (CoordinatorCore, "__init__", start),
        (CoordinatorCore, "_on_message", listen),
        (Microbatches, "_take_assignment", taken),
    ]


def _told_before_durable() -> list[Patch]:
    settle = PassCycle.settle

    def tell(self: PassCycle, now: float) -> Any:
        expelled = settle(self, now)
        outcome = self.open_pass.outcome if self.open_pass is not None else None
        if self.phase is CoordinatorPhase.DECIDING and isinstance(outcome, Decided):
            self.record_written(outcome.decision, now)
        return expelled

    return [(PassCycle, "settle", tell)]


def _no_retention() -> list[Patch]:
    keep = FrameCache.keep

    def forget(self: FrameCache, key: FrameKey, kept: Any) -> None:
        keep(self, key, kept)
        del self._frames[key]

    return [(FrameCache, "keep", forget)]


def _counted_when_sent() -> list[Patch]:
    """A microbatch counts as soon as its gradient has left for the stage before."""
    went_back = Microbatches.on_backward_done

    def counted(self: Microbatches, done: Any, now: float) -> None:
        went_back(self, done, now)
        work = self.work.get(done.microbatch)
        if work is not None and work.phase is WorkPhase.WEIGHTS:
            self._accumulate(done.microbatch, work)

    return [(Microbatches, "on_backward_done", counted)]


STEPS = (
    Mutant("no fencing", "an excluded incarnation leaves the roster: what it accumulated is void", _no_fencing),
    Mutant("replay without dedup", "a frame of a finished microbatch is ignored", _replay_without_dedup),
    Mutant("decide without all stages", "every stage's whole roster is prepared", _decide_without_all_stages),
    Mutant("late amendment accepted", "tables are numbered, a lower number changes nothing", _late_amendment, "storm"),
    Mutant("late open accepted", "an older pass or term changes nothing", late_open, "storm", first=500),
    Mutant("cursor shifted on resume", "the data are a function of the step number", _cursor_shifted),
    Mutant("reduce attempt without id", "an attempt is named by pass, stage and table", _attempt_without_id),
    Mutant("release without hand-shake", "only what is tombstoned moves", _release_without_hand_shake, first=500),
    Mutant("poll after crash", "the record, not the peers, says what is decided", _poll_after_crash),
    Mutant("set digests unchecked", "a reducer checks that sets are disjoint and complete", _sets_unchecked),
    Mutant("done taken for completeness", "DONE drives the window and nothing else", _done_is_completeness),
    Mutant("counted when sent", "what counts is in the sums, weights' gradients and all", _counted_when_sent),
    Mutant("told before durable", "the record, not a message, is the commit point", _told_before_durable),
    Mutant("no retention", "every frame is kept until its step is decided", _no_retention),
    Mutant("works while paused", "a paused peer begins no microbatch", _works_while_paused, "pausing"),
)
