"""The coordinator's side of one open pass: it informs the participants, feeds the tokens, and collects the results.

A training pass ends with a decision, a forward-only pass with a result; either may be aborted. `repair` reacts to peers
that die, stall or disagree.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from swarm.events import PassOpened, PeerDelays
from swarm.protocol.coordinator.io import Feed
from swarm.protocol.coordinator.membership.accusations import Failure
from swarm.protocol.coordinator.membership.failure_detector import FailureDetector
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.announcements import Announcements
from swarm.protocol.coordinator.passes.blame import Blame
from swarm.protocol.coordinator.passes.findings import Suspect, TooLong
from swarm.protocol.coordinator.passes.outcome import Completed, Dropped, GiveUp, Outcome
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.promotion import Promotion
from swarm.protocol.coordinator.passes.repair import Repair
from swarm.protocol.coordinator.passes.stragglers import Stalled
from swarm.protocol.coordinator.passes.tables_report import TablesReport
from swarm.protocol.coordinator.passes.verdict import Verdict
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassKind, StageIndex
from swarm.protocol.messages import (
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
        self._blame = Blame(pass_state, members, failure_history)
        self._verdict = Verdict(pass_state, members, settings, failure_history)
        self._announcements = Announcements(pass_state, members, settings, tables_told, out)
        self._repair = Repair(pass_state, members, settings, out, self.promotion, self._announcements)
        for stage in range(len(pass_state.tables)):
            tables_told.tell(pass_state, stage, f"{pass_state.kind.value} {pass_state.pass_id} opens")
        if told:
            replicas = [len(table.roster) for table in pass_state.tables]
            microbatches = len(pass_state.tables[0].assignment)
            out.emit(PassOpened(str(pass_state.pass_id), pass_state.kind.value, replicas, microbatches))
        for actor in (*pass_state.actors, *(listener.actor for listener in pass_state.listeners)):
            self._announcements.tell(actor, now)
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
            self._announcements.tell(actor, now)

    @property
    def closed(self) -> list[int]:
        """Stages whose sums may already be in transit. A new listener could miss them."""
        if self.pass_state.kind is not PassKind.TRAIN:
            return []
        reductions, stages = self.pass_state.reductions, range(len(self.pass_state.tables))
        return [stage for stage in stages if reductions.sealed_since(stage) is not None]

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
            self.outcome = self._verdict.reach(frozenset((actor,)))
        if self.outcome is None:
            self._without[actor] = StageIndex(stage), again_s
            self.outcome = self._repair.fence(actor, reason)

    @property
    def waits(self) -> str:
        """The paused members that the pass waits for, as of the last heartbeat, as text. Empty: none."""
        return self._repair.withheld_work.waits

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
            self._resolve(self._repair.withheld_work.drain(now), now)

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
            since = pass_state.reductions.sealed_since(attempt.stage)
            member.reducing.add(0.0 if since is None else now - since)
        self.outcome = self._verdict.reach(frozenset())
        if self.outcome is None and (stage := pass_state.preparation.disagreeing()) is not None:
            self._resolve(self._repair.digests_differ(stage, self._failure_history.probation.strikes), now)

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
        failure = self._blame.failure(sender, failed)
        accusations.note(failure)
        m, again = failure.microbatch, self._failure_history.turns > 0
        if failure.nonfinite and m is not None and self._blame.is_irreplaceable(accusations.common(failure.stage, m)):
            self._not_finite(failure)
            return
        self.exclude(sender, f"it failed: {failed.reason}", now)
        if isinstance(self.outcome, GiveUp):  # the step is delayed, or done by other peers
            self._failure_history.attempt_failed(self.outcome.reason, now)
            if failure.nonfinite and again and self._blame.is_irreplaceable(accusations.common_to_nonfinite):
                self._not_finite(failure)
            return
        for actor in self._blame.accused(sender, failure):
            if self.outcome is None and self._blame.is_suspect(actor, sender):
                self.exclude(actor, f"{accusations.against(actor.peer)} peers failed on its frames in this step", now)

    def _not_finite(self, failure: Failure) -> None:
        """The step is not finite because of this failure: no other peer is left to compute or send the microbatch."""
        self._failure_history.not_finite()
        what = f"microbatch {failure.microbatch} of step {self.pass_state.pass_id.step}"
        self.outcome = GiveUp(f"{what} is not finite: run again, and skip the step if this repeats. {failure.reason}")

    def _resolve(self, found: Suspect | GiveUp | TooLong | None, now: float) -> None:
        """Act on a finding of `repair` that `repair` cannot handle itself."""
        match found:
            case Suspect(actor, reason, at_fault, accused):
                if at_fault:
                    self._blame.strike(actor)
                    self._removed.add(actor)
                for other in accused:  # any of them may be at fault: they must not come back together
                    self._blame.strike(other, 2)
                self.exclude(actor, reason, now)
            case TooLong(reason, who):
                for actor in who:
                    self._blame.strike(actor)
                self.outcome = Dropped(reason, who)
            case GiveUp():
                self.outcome = found

    def _on_kept_waiting(self, stalled: Stalled, now: float) -> None:
        """An actor has not received what others report to have computed. Go on without the guilty senders; if there are
        none, without the actor that waits for them.
        """
        guilty = self._blame.guilty_senders(stalled)
        for each in guilty:
            self.pass_state.wait_anew_for(each, now)
            self.exclude(
                each, f"{stalled.actor} and perhaps others have not received its frames: {stalled.reason}", now
            )
        if not guilty:
            self.exclude(stalled.actor, stalled.reason, now)

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
        self._note_paces(now)
        delays.passed(step_s, frozenset(actor.peer for actor, *_ in accounts))

    def _note_paces(self, now: float) -> None:
        """Record how long each actor with work took for its microbatches."""
        for actor in self.pass_state.actors:
            member, count = self._members.get(actor), self.pass_state.progress_of(actor)[0]
            took_s = self.pass_state.took_s(actor, now)
            if member is not None and count and took_s:  # 0: its only report came with the opening, and shows nothing
                member.taking.add(took_s / count)
