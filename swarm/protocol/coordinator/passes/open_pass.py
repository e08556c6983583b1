"""The coordinator's side of one open pass: it informs the participants, feeds the tokens, and collects the results.

A training pass ends with a decision, a forward-only pass with a result; either may be aborted. `repair` reacts to peers
that die, stall or disagree.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from swarm.events import PassOpened, PeerDelays, StepDecided, StepMeasured
from swarm.protocol.coordinator.io import Feed
from swarm.protocol.coordinator.membership.accusations import Failure
from swarm.protocol.coordinator.membership.doubts import Doubted, is_confirmed, what_is_spoilt
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.drift import Drift
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.promotion import Promotion
from swarm.protocol.coordinator.passes.repair import GiveUp, Repair, Suspect, TooLong
from swarm.protocol.coordinator.passes.stragglers import Stalled
from swarm.protocol.coordinator.passes.tables_report import TablesReport
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassKind, StageIndex
from swarm.protocol.messages import (
    Decision,
    Failed,
    Listener,
    Prepared,
    Released,
    Result,
    Status,
    Want,
)
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings
from swarm.protocol.slots import unasked


@dataclass(frozen=True, slots=True)
class Decided:
    """Every stage is prepared: write the decision to the record."""

    decision: Decision
    without: frozenset[Actor]
    """Actors that died when all others were prepared."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A forward-only pass has all its results."""

    loss_sum: float
    token: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A forward-only pass has taken too long. It is dropped, because it must not delay training."""

    reason: str
    who: tuple[Actor, ...]
    """Actors that had work in the pass and did not finish any of it."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """Replicas computed the step with different states. The step is done again without some of them."""

    drifts: tuple[Drift, ...]


@dataclass(frozen=True, slots=True)
class Spoilt:
    """Parameters or moments of several stages are not finite, whichever peers compute: the run has diverged."""

    what: str


Outcome = Decided | Completed | GiveUp | Drifted | Dropped | Spoilt | Doubted
PassMessage = Want | Prepared | Result | Released | Failed


class OpenPass:
    """One open pass. After `outcome` is set, it accepts and sends nothing more and does not change."""

    def __init__(
        self,
        pass_state: PassState,
        members: Members,
        settings: Settings,
        failure_history: FailureHistory,
        tables_told: TablesReport,
        out: Outbox,
        now: float,
        *,
        told: bool = True,
    ) -> None:
        """`told`: True if the event log reports the opening. Of the passes of a sample, only the first is reported."""
        self.pass_state = pass_state
        self.outcome: Outcome | None = None
        self._members = members
        self._settings = settings
        self._failure_history = failure_history
        self._out = out
        self._without: dict[Actor, tuple[StageIndex, float]] = {}
        """The actors that left the pass before it was decided: their stages, and the seconds that others need to do
        their work again.
        """
        self._lost: set[Actor] = set()
        """Those of them that are gone."""
        self._removed: set[Actor] = set()
        """Those of them that were removed because they did not do their part."""
        self.promotion = Promotion(pass_state, members, settings, out)
        self._repair = Repair(pass_state, members, settings, out, self.promotion, tables_told)
        for stage in range(len(pass_state.tables)):
            tables_told.tell(pass_state, stage, f"{pass_state.kind.value} {pass_state.pass_id} opens")
        if told:
            replicas = [len(table.roster) for table in pass_state.tables]
            microbatches = len(pass_state.tables[0].assignment)
            out.emit(PassOpened(str(pass_state.pass_id), pass_state.kind.value, replicas, microbatches))
        for actor in (*pass_state.actors, *(listener.actor for listener in pass_state.listeners)):
            self._repair.tell(actor, now)
        for actor in pass_state.tables[0].roster:
            for m in unasked(pass_state.tables[0], actor):
                self._feed(actor, FrameKey(pass_state.pass_id, StageIndex(0), Direction.FORWARD, m))

    # ------------------------------------------------------------ entry

    def hear(self, sender: Actor, message: PassMessage, now: float) -> None:
        if self.outcome is not None or self.pass_state.stage_of(sender) is None:
            return  # an actor without a part in the pass is ignored
        match message:
            case Want():
                self._on_want(sender, message)
            case Prepared():
                self._on_prepared(sender, message, now)
            case _ if message.pass_id != self.pass_state.pass_id:
                pass
            case Result():
                self._on_result(sender, message, now)
            case Released(_, number, microbatches):
                self._repair.released(sender, number, microbatches, now)
            case Failed():
                self._on_failed(sender, message, now)

    def on_status(self, status: Status, now: float) -> None:
        """Process an actor's newest status: its work in this pass, and whether it still takes part."""
        if self.outcome is not None or self.pass_state.stage_of(status.actor) is None:
            return
        if status.pass_id != self.pass_state.pass_id:
            return
        took_s, member = self.pass_state.on_status(status, now), self._members.get(status.actor)
        if member is not None and took_s is not None and self.pass_state.kind is PassKind.TRAIN:
            member.finishing.add(took_s)
        if status.fenced:
            self._on_failed(status.actor, Failed(status.pass_id, None, "it fenced itself"), now)
        elif status.prepared is not None:
            self._on_prepared(status.actor, status.prepared, now)

    def includes(self, *actors: Actor) -> bool:
        """Return True if all these actors have work in this pass."""
        return all(self.pass_state.stage_of(actor) is not None for actor in actors)

    def listen(self, listeners: tuple[Listener, ...], now: float) -> None:
        """The listeners have changed. Inform the new ones, and the peers that must keep sums for them."""
        before = {(each.actor, each.stage) for each in self.pass_state.listeners}
        self.pass_state.listen(listeners)
        new = [each for each in listeners if (each.actor, each.stage) not in before]
        donors = [actor for stage in {each.stage for each in new} for actor in self.pass_state.tables[stage].roster]
        for actor in (*donors, *(each.actor for each in new)):
            self._repair.tell(actor, now)

    @property
    def closed(self) -> list[int]:
        """Stages whose sums may already be in transit. A new listener could miss them."""
        pass_state = self.pass_state
        if pass_state.kind is not PassKind.TRAIN:
            return []
        return [stage for stage in range(len(pass_state.tables)) if pass_state.sealed_since(stage) is not None]

    def lost(self, actor: Actor, reason: str, now: float) -> None:
        """An actor is gone. This is no fault, but if it held up the pass before, that counts as for any other actor.
        Otherwise it could do so in every step, and fall silent each time before its deadline. The time that others need
        to do its work again counts too.
        """
        if self.outcome is None and self.pass_state.stage_of(actor) is not None:
            self._lost.add(actor)
            self._repair.holdups.lost(actor)
            self.exclude(actor, reason, now)

    def exclude(self, actor: Actor, reason: str, now: float) -> None:
        """If all other actors are prepared, decide without `actor`. Otherwise fence it, so that its microbatches are
        done again.
        """
        if self.outcome is not None or (stage := self.pass_state.stage_of(actor)) is None:
            return
        again_s = self._repair.holdups.again_s(actor, stage, now)
        self._without[actor] = StageIndex(stage), 0.0
        if self.pass_state.kind is PassKind.TRAIN:
            self._decide_if_prepared(frozenset((actor,)))
        if self.outcome is None:
            self._without[actor] = StageIndex(stage), again_s
            self.outcome = self._repair.fence(actor, reason)

    @property
    def waits(self) -> str:
        """The paused members that the pass waits for, as of the last heartbeat, as text. Empty: none."""
        return self._repair.waits

    def tick(self, failure_detector: FailureDetector, now: float) -> None:
        """Call it once a heartbeat."""
        if self.outcome is None:
            for actor in failure_detector.back:
                self.pass_state.is_back(actor, now)
            found = self._repair.tick(self._failure_history, failure_detector.waited_for, now)
            if isinstance(found, Stalled):
                self._on_kept_waiting(found, now)
            else:
                self._resolve(found, now)
        self.drain(now)

    def drain(self, now: float) -> None:
        """Reassign the unstarted microbatches of members that are leaving or paused."""
        if self.outcome is None:
            self._resolve(self._repair.drain(now), now)

    # ------------------------------------------------------------ feeding

    def _on_want(self, sender: Actor, want: Want) -> None:
        for key in want.keys:
            if isinstance(key, FrameKey) and key.pass_id == self.pass_state.pass_id:
                self._feed(sender, key)

    def _feed(self, actor: Actor, key: FrameKey) -> None:
        if self.pass_state.feed(actor, key):
            self._out.add(Feed(actor, key, self.pass_state.kind))

    # ------------------------------------------------------------ ending

    def _on_result(self, sender: Actor, result: Result, now: float) -> None:
        pass_state, results = self.pass_state, self.pass_state.results
        if pass_state.kind is PassKind.TRAIN or not pass_state.is_assigned(
            sender, len(pass_state.tables) - 1, result.microbatch
        ):
            return
        if not math.isfinite(result.loss_sum):
            self._refuse(sender, f"it reports the loss {result.loss_sum} for microbatch {result.microbatch}", now)
            return
        if pass_state.kind is PassKind.GENERATE and not 0 <= result.token < self._settings.vocabulary:
            outside = f"outside the vocabulary of {self._settings.vocabulary} tokens"
            self._refuse(sender, f"it reports token {result.token}, {outside}", now)
            return
        results.setdefault(result.microbatch, result)
        if len(results) < len(pass_state.tables[0].assignment):
            return
        loss_sum = 0.0
        for m in sorted(results):  # in order: the same sum whichever peers computed it
            loss_sum += results[m].loss_sum
        self.outcome = Completed(loss_sum, results[Microbatch(0)].token)

    def _refuse(self, sender: Actor, reason: str, now: float) -> None:
        """The result is invalid. Exclude its sender; a sibling may compute a valid result."""
        self._failure_history.idled(sender.peer)
        self.exclude(sender, reason, now)

    def _on_prepared(self, sender: Actor, prepared: Prepared, now: float) -> None:
        pass_state, attempt = self.pass_state, prepared.attempt
        if pass_state.kind is not PassKind.TRAIN or attempt.pass_id != pass_state.pass_id:
            return
        if not 0 <= attempt.stage < len(pass_state.tables):
            return
        if attempt != pass_state.attempt(attempt.stage) or pass_state.stage_of(sender) != attempt.stage:
            return
        if prepared.squared_norm < 0.0:
            return  # no gradient has a negative norm: the sender does not count as prepared
        if not pass_state.preparation.prepare(sender, attempt.stage, prepared):
            return  # a repetition: every status contains the Prepared again
        if (member := self._members.get(sender)) is not None:
            since = pass_state.sealed_since(attempt.stage)
            member.reducing.add(0.0 if since is None else now - since)
        self._decide_if_prepared(frozenset())
        if self.outcome is None and (stage := pass_state.preparation.disagreeing()) is not None:
            self._resolve(self._repair.digests_differ(stage, self._failure_history.probation.strikes), now)

    def _decide_if_prepared(self, without: frozenset[Actor]) -> None:
        """Decide if every stage is prepared. `without`: actors that died after all others were prepared."""
        preparation, targets = self.pass_state.preparation, self._settings.targets_per_step
        update = self._settings.update(self.pass_state.pass_id.step, self.pass_state.rate)
        decision = preparation.decide(targets, self._settings.optimizer.clip_norm, update, without)
        if decision is None:
            return
        if drifts := preparation.drifts(without, self._members):
            self.outcome = Drifted(drifts)
            return
        if (boundary := preparation.mixed_copies(without)) is not None:
            self.outcome = GiveUp(f"the stages beside boundary {boundary} computed with different copies of a frame")
            return
        rosters = [[a for a in table.roster if a not in without] for table in self.pass_state.tables]
        stages = preparation.spoilt(without)
        doubts = self._failure_history.doubts
        for stage in {*stages, *preparation.not_finite(without)}:
            doubts.say(stage, rosters[stage])
        if stages and self._failure_history.nonfinite:
            what = what_is_spoilt(stages, self.pass_state.pass_id.version)
            who = tuple(actor for stage in stages for actor in doubts.who_said(stage))
            if is_confirmed(stages, (actor.peer for actor in who), len(rosters), self._members.people):
                self.outcome = Spoilt(what)
            else:
                self.outcome = Doubted(stages[0], who, f"no other stage confirms that {what}")
            return
        audited = self._settings.audit_every > 0  # an audit finds the cause more precisely
        if decision.skip and not audited and self._failure_history.leaves_half_out(rosters, decision.step):
            self._failure_history.not_finite()
            self.outcome = GiveUp("a gradient is not finite: run again without half of the replicas")
            return
        if (decision.skip or stages) and self._failure_history.nonfinite == 0:
            self._failure_history.not_finite()
            self.outcome = GiveUp(
                f"{'parameters are' if stages else 'a gradient is'} not finite: run again with other replicas"
            )
            return
        self.outcome = Decided(decision, without)

    def _on_failed(self, sender: Actor, failed: Failed, now: float) -> None:
        """A peer reports a failure. Exclude it, so that a sibling takes over.

        Only the sender reports the failure, so it accuses itself and the senders of its input.
        """
        if self.pass_state.kind is not PassKind.TRAIN:
            if failed.microbatch is not None:
                self._failure_history.idled(sender.peer)
            self.exclude(sender, f"it failed: {failed.reason}", now)
            return
        accusations = self._failure_history.accusations
        failure = self._failure(sender, failed)
        accusations.note(failure)
        m, again = failure.microbatch, self._failure_history.turns > 0
        if failure.nonfinite and m is not None and self._irreplaceable(accusations.common(failure.stage, m)):
            self._not_finite(failure)
            return
        self._exclude_failed(sender, f"it failed: {failed.reason}", now)
        if failure.nonfinite and again and isinstance(self.outcome, GiveUp):
            if self._irreplaceable(accusations.common_to_nonfinite):
                self._not_finite(failure)
            return
        for actor in self._neighbours(sender, failure):
            if self.outcome is None and self._is_suspect(actor, sender):
                self.exclude(actor, f"{accusations.against(actor.peer)} peers failed on its frames in this step", now)

    def _failure(self, sender: Actor, failed: Failed) -> Failure:
        """The failure that the message reports. A sender may only report failures of its own microbatches."""
        stage = self.pass_state.stage_of(sender)
        assert stage is not None
        m = failed.microbatch
        if m is None or not self.pass_state.is_assigned(sender, stage, m):
            return Failure(stage, None, sender.peer, frozenset(), failed.reason)
        there = self.pass_state.senders(sender, m)
        senders = frozenset(actor.peer for actor in there) - {sender.peer}
        near = frozenset(at for actor in there if (at := self.pass_state.stage_of(actor)) is not None)
        nonfinite = failed.nonfinite and self._failure_history.nonfinite == 0
        return Failure(stage, m, sender.peer, senders, failed.reason, nonfinite, near)

    def _not_finite(self, failure: Failure) -> None:
        """The step is not finite because of this failure: no other peer is left to compute or send the microbatch."""
        self._failure_history.not_finite()
        what = f"microbatch {failure.microbatch} of step {self.pass_state.pass_id.step}"
        self.outcome = GiveUp(f"{what} is not finite: run again, and skip the step if this repeats. {failure.reason}")

    def _irreplaceable(self, peers: frozenset[str]) -> bool:
        """Return True if none of these actors can be replaced by a sibling."""
        version = self.pass_state.pass_id.version
        for stage in range(len(self.pass_state.tables)):
            holders = {
                m.actor.peer for m in self._members.of_stage(stage) if m.lost_at is None and m.version == version
            }
            if len(holders) > 1 and not peers.isdisjoint(holders):
                return False
        return True

    def _neighbours(self, actor: Actor, failure: Failure) -> list[Actor]:
        """The actors of the pass that the failure accuses, apart from the one that failed."""
        return [a for a in self.pass_state.actors if a != actor and a.peer in failure.senders]

    def _is_suspect(self, actor: Actor, victim: Actor) -> bool:
        """Return True if more peers failed on this actor's frames than on those of a sibling that could take its place.

        At least two peers must have failed on them. One is enough if this actor was at fault more often lately than the
        peer that failed.
        """
        stage, against = self.pass_state.stage_of(actor), self._failure_history.accusations.against
        strikes = self._failure_history.probation.strikes
        if stage is None or (against(actor.peer) < 2 and strikes(actor.peer) <= strikes(victim.peer)):
            return False
        return any(against(other.peer) < against(actor.peer) for other in self.pass_state.tables[stage].roster)

    def _exclude_failed(self, actor: Actor, reason: str, now: float) -> None:
        """Continue the step without the actor. If the step must be repeated for this reason, it is delayed or done by
        other peers.
        """
        self.exclude(actor, reason, now)
        if isinstance(self.outcome, GiveUp) and self.pass_state.kind is PassKind.TRAIN:
            self._failure_history.attempt_failed(self.outcome.reason, now)

    def _resolve(self, found: Suspect | GiveUp | TooLong | None, now: float) -> None:
        """Act on a finding of `repair` that `repair` cannot handle itself."""
        match found:
            case Suspect(actor, reason, at_fault, accused):
                if at_fault:
                    self._strike(actor)
                    self._removed.add(actor)
                for other in accused:  # any of them may be at fault: they must not come back together
                    self._strike(other, 2)
                self.exclude(actor, reason, now)
            case TooLong(reason, who):
                for actor in who:
                    self._strike(actor)
                self.outcome = Dropped(reason, who)
            case GiveUp():
                self.outcome = found

    def _on_kept_waiting(self, stalled: Stalled, now: float) -> None:
        """An actor has not received what others report to have computed. One of these, or the actor, is at fault.

        The sender leaves the pass if other peers lack its frames too, or if the actor has no siblings. Otherwise the
        actor leaves it. The guilty one gets a strike when the step is decided.
        """
        actor, pass_state, accusations = stalled.actor, self.pass_state, self._failure_history.accusations
        if pass_state.kind is not PassKind.TRAIN:
            self._on_kept_waiting_in_evaluation(stalled, now)
            return
        stage = pass_state.stage_of(actor)
        assert stage is not None
        senders = frozenset(each.peer for each in stalled.senders)
        near = frozenset(at for each in stalled.senders if (at := pass_state.stage_of(each)) is not None)
        accusations.note(Failure(stage, stalled.lacks, actor.peer, senders, stalled.reason, near=near))
        guilty = [each for each in stalled.senders if self._is_suspect(each, actor)]
        if not guilty and pass_state.is_alone(actor):
            guilty = [max(stalled.senders, key=lambda each: accusations.against(each.peer))]
        self._exclude_one_side(stalled, guilty, now)

    def _on_kept_waiting_in_evaluation(self, stalled: Stalled, now: float) -> None:
        """The actor and the senders are left out of the next evaluation. The actor soon takes part again, but a guilty
        sender is named again and again.
        """
        history = self._failure_history
        strikes = history.idle_strikes(stalled.actor.peer)
        guilty = [each for each in stalled.senders if history.idle_strikes(each.peer) > strikes]
        for each in (stalled.actor, *stalled.senders):
            history.idled(each.peer)
        self._exclude_one_side(stalled, [each for each in guilty if not self.pass_state.is_alone(each)], now)

    def _exclude_one_side(self, stalled: Stalled, guilty: Collection[Actor], now: float) -> None:
        """Go on without the `guilty` senders; if there are none, without the actor that waits for them."""
        for each in guilty:
            self.pass_state.wait_anew_for(each, now)
            self.exclude(
                each, f"{stalled.actor} and perhaps others have not received its frames: {stalled.reason}", now
            )
        if not guilty:
            self.exclude(stalled.actor, stalled.reason, now)

    def _strike(self, actor: Actor, strikes: int = 1) -> None:
        if self.pass_state.kind is PassKind.TRAIN:
            self._failure_history.probation.strike(actor.peer, self.pass_state.pass_id, strikes)
        else:
            self._failure_history.idled(actor.peer)

    # ------------------------------------------------------------ afterwards

    def held_up(self, now: float, guilty: Collection[str] = ()) -> None:
        """The step is complete. Peers that cost the run more time than their work saves go on probation.

        `guilty`: the ids of the peers that have caused failures of the step.
        """
        pass_state, delays = self.pass_state, self._failure_history.delays
        step_s, holdups, settings = now - pass_state.opened_at, self._repair.holdups, self._settings
        limit = delays.limit(step_s, holdups.lost_s, settings.heartbeat_s, settings.step_budget_s)
        removed = self._removed.union(actor for actor in self._without if actor.peer in guilty)
        left = {a: of for a, of in self._without.items() if pass_state.stage_of(a) is None}
        accounts = [(a, s, 0.0, holdups.saved_s(a, s)) for s, t in enumerate(pass_state.tables) for a in t.roster]
        accounts += [(a, s, again_s, 0.0) for a, (s, again_s) in left.items() if a in self._lost | removed]
        for actor, stage, again_s, saved_s in accounts:
            held_s, alone = holdups.seconds.get(actor, 0.0) + again_s, pass_state.is_alone(actor)
            charged = delays.decided(
                actor.peer,
                pass_state.pass_id,
                held_s,
                saved_s,
                step_s,
                limit,
                alone=alone,
                removed=actor in removed,
            )
            if charged is not None:
                why = held_s, saved_s, charged.strikes, alone, charged.steps
                self._out.emit(PeerDelays(str(actor), stage, str(pass_state.pass_id), *why))
        delays.passed(step_s, frozenset(actor.peer for actor, *_ in accounts))

    def report(self, decided: Decided, now: float) -> None:
        """The decision is on disk. Emit events about it and about the speed of the step."""
        pass_state, decision = self.pass_state, decided.decision
        self._out.emit(
            StepDecided(
                term=decision.term,
                step=decision.step,
                scale=decision.scale,
                loss=decision.loss_sum / decision.tokens,
                gradient_norm=decision.gradient_norm,
                tokens=decision.tokens,
                outcomes=[f"{o.number}:{o.digest}" for o in decision.outcomes],
                without=sorted(str(actor) for actor in decided.without),
                key_frames=[f"{bits:x}" for bits in decision.key_frames],
                rate=decision.rate,
                assignments=[list(table.assignment) for table in pass_state.tables],
            )
        )
        seconds = max(now - pass_state.opened_at, 1e-9)
        busy = 0.0
        for actor in pass_state.actors:
            busy += len(pass_state.assigned_to(actor)) * (self._members.seconds_per_microbatch(actor) or 0.0)
        self._out.emit(
            StepMeasured(
                step=decision.step,
                seconds=seconds,
                tokens_per_second=self._settings.tokens_per_step / seconds,
                efficiency=min(1.0, busy / (seconds * max(1, len(pass_state.actors)))),
                replicas=[len(table.roster) for table in pass_state.tables],
            )
        )
