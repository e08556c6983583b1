"""The coordinator's side of one open pass: tells who takes part, feeds it, hears what comes of it, and how it ends.

A training pass ends with a decision, a forward-only pass with a result, and either may be given up. What is done when
somebody in it dies, dawdles or disagrees is in `mending`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.events import PassOpened, StepDecided, StepMeasured
from swarm.protocol.actions import Feed
from swarm.protocol.drift import Drift
from swarm.protocol.entering import Entering
from swarm.protocol.experience import Experience
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassKind, StageIndex
from swarm.protocol.ledger import Ledger
from swarm.protocol.members import Members
from swarm.protocol.mending import GiveUp, Mending, Suspect
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
from swarm.protocol.silence import Silence
from swarm.protocol.slots import unasked
from swarm.protocol.tables_told import TablesTold


@dataclass(frozen=True, slots=True)
class Decided:
    """Every stage is prepared: write the decision down."""

    decision: Decision
    without: frozenset[Actor]
    """Who died when all others were prepared."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A forward-only pass has all its results."""

    loss_sum: float
    token: int


@dataclass(frozen=True, slots=True)
class Unworkable:
    """A step has failed on two peers, or again and again: it would on others too, and another time."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drifted:
    """Replicas computed the step with unlike states: it is done again, without some of them."""

    drifts: tuple[Drift, ...]


@dataclass(frozen=True, slots=True)
class Spoilt:
    """Parameters or moments are not finite, whoever computes with them: no step can be learned from them."""

    what: str


Outcome = Decided | Completed | GiveUp | Drifted | Spoilt | Unworkable
PassMessage = Want | Prepared | Result | Released | Failed


class OpenPass:
    """Once `outcome` is set, nothing more is heard, said or changed."""

    def __init__(
        self,
        ledger: Ledger,
        members: Members,
        settings: Settings,
        experience: Experience,
        tables_told: TablesTold,
        out: Outbox,
        now: float,
        *,
        told: bool = True,
    ) -> None:
        """`told`: the log tells that it opens; of a sample's passes only the first is."""
        self.ledger = ledger
        self.outcome: Outcome | None = None
        self._members = members
        self._settings = settings
        self._experience = experience
        self._out = out
        self.entering = Entering(ledger, members, settings, out)
        self._mending = Mending(ledger, members, settings, out, self.entering, tables_told)
        for stage in range(len(ledger.tables)):
            tables_told.tell(ledger, stage, f"{ledger.kind.value} {ledger.pass_id} opens")
        if told:
            replicas = [len(table.roster) for table in ledger.tables]
            microbatches = len(ledger.tables[0].assignment)
            out.emit(PassOpened(str(ledger.pass_id), ledger.kind.value, replicas, microbatches))
        for actor in (*ledger.actors, *(listener.actor for listener in ledger.listeners)):
            self._mending.tell(actor, now)
        for actor in ledger.tables[0].roster:
            for m in unasked(ledger.tables[0], actor):
                self._feed(actor, FrameKey(ledger.pass_id, StageIndex(0), Direction.FORWARD, m))

    # ------------------------------------------------------------ entry

    def hear(self, sender: Actor, message: PassMessage, now: float) -> None:
        if self.outcome is not None or self.ledger.stage_of(sender) is None:
            return  # who has no part in the pass has nothing to say of it
        match message:
            case Want():
                self._on_want(sender, message)
            case Prepared():
                self._on_prepared(sender, message)
            case _ if message.pass_id != self.ledger.pass_id:
                pass
            case Result():
                self._on_result(sender, message)
            case Released(_, number, microbatches):
                self._mending.released(sender, number, microbatches, now)
            case Failed():
                self._on_failed(sender, message, now)

    def on_status(self, status: Status, now: float) -> None:
        """The newest status of an actor: what it did in this pass, and whether it is still in it."""
        if self.outcome is not None or self.ledger.stage_of(status.actor) is None:
            return
        if status.pass_id != self.ledger.pass_id:
            return
        self.ledger.on_status(status, now)
        if status.fenced:
            self._exclude_failed(status.actor, "it fenced itself", now)
        elif status.prepared is not None:
            self._on_prepared(status.actor, status.prepared)

    def includes(self, *actors: Actor) -> bool:
        """Whether all of them have a part in this pass."""
        return all(self.ledger.stage_of(actor) is not None for actor in actors)

    def listen(self, listeners: tuple[Listener, ...], now: float) -> None:
        """Who listens has changed: tell those who come to it, and those who are to keep something for them."""
        before = {(each.actor, each.stage) for each in self.ledger.listeners}
        self.ledger.listen(listeners)
        new = [each for each in listeners if (each.actor, each.stage) not in before]
        donors = [actor for stage in {each.stage for each in new} for actor in self.ledger.tables[stage].roster]
        for actor in (*donors, *(each.actor for each in new)):
            self._mending.tell(actor, now)

    @property
    def closed(self) -> list[int]:
        """Stages whose sums may be on their way already: nobody new can count on having them."""
        ledger = self.ledger
        if ledger.kind is not PassKind.TRAIN:
            return []
        return [stage for stage in range(len(ledger.tables)) if ledger.sealed_since(stage) is not None]

    def exclude(self, actor: Actor, reason: str) -> None:
        """Decide without an actor if all others are prepared; else fence it and have its microbatches done again."""
        if self.outcome is not None or self.ledger.stage_of(actor) is None:
            return
        if self.ledger.kind is PassKind.TRAIN:
            self._decide_if_prepared(frozenset((actor,)))
        if self.outcome is None:
            self.outcome = self._mending.fence(actor, reason)

    def tick(self, silence: Silence, now: float) -> None:
        """Once a heartbeat."""
        if self.outcome is None:
            for actor in silence.back:
                self.ledger.is_back(actor, now)
            aborts, strikes = self._experience.aborts, self._experience.probation.strikes
            self._resolve(self._mending.tick(aborts, strikes, silence.waited_for, now))
        self.drain(now)

    def drain(self, now: float) -> None:
        """Take from members that are leaving what they have not begun."""
        if self.outcome is None:
            self._resolve(self._mending.drain(now))

    # ------------------------------------------------------------ feeding

    def _on_want(self, sender: Actor, want: Want) -> None:
        for key in want.keys:
            if isinstance(key, FrameKey) and key.pass_id == self.ledger.pass_id:
                self._feed(sender, key)

    def _feed(self, actor: Actor, key: FrameKey) -> None:
        if self.ledger.feed(actor, key):
            self._out.add(Feed(actor, key, self.ledger.kind))

    # ------------------------------------------------------------ ending

    def _on_result(self, sender: Actor, result: Result) -> None:
        ledger, results = self.ledger, self.ledger.results
        if ledger.kind is PassKind.TRAIN or not ledger.is_assigned(sender, len(ledger.tables) - 1, result.microbatch):
            return
        if not math.isfinite(result.loss_sum):
            self.outcome = GiveUp(f"{sender} finds the loss {result.loss_sum} for microbatch {result.microbatch}")
            return
        if ledger.kind is PassKind.GENERATE and not 0 <= result.token < self._settings.vocabulary:
            self.outcome = GiveUp(f"{sender} finds the token {result.token} of {self._settings.vocabulary}")
            return
        results.setdefault(result.microbatch, result)
        if len(results) < len(ledger.tables[0].assignment):
            return
        loss_sum = 0.0
        for m in sorted(results):  # in order: the same sum whoever computed it
            loss_sum += results[m].loss_sum
        self.outcome = Completed(loss_sum, results[Microbatch(0)].token)

    def _on_prepared(self, sender: Actor, prepared: Prepared) -> None:
        ledger, attempt = self.ledger, prepared.attempt
        if ledger.kind is not PassKind.TRAIN or attempt.pass_id != ledger.pass_id:
            return
        if not 0 <= attempt.stage < len(ledger.tables):
            return
        if attempt != ledger.attempt(attempt.stage) or ledger.stage_of(sender) != attempt.stage:
            return
        if prepared.squared_norm < 0.0:
            return  # no gradient has such a norm: the sender counts as not prepared
        if not ledger.prepare(sender, attempt.stage, prepared):
            return  # as every status says again
        self._decide_if_prepared(frozenset())
        if self.outcome is None and (stage := ledger.disagreeing()) is not None:
            self._resolve(self._mending.digests_differ(stage))

    def _decide_if_prepared(self, without: frozenset[Actor]) -> None:
        """Decide when every stage is prepared. Without: actors that died when all others were."""
        targets, update = (
            self._settings.targets_per_step,
            self._settings.update(self.ledger.pass_id.step, self.ledger.rate),
        )
        decision = self.ledger.decide(targets, self._settings.optimizer.clip_norm, update, without)
        if decision is None:
            return
        if drifts := self.ledger.drifts(without, self._members.standing):
            self.outcome = Drifted(drifts)
            return
        if (boundary := self.ledger.mixed_copies(without)) is not None:
            self.outcome = GiveUp(f"the stages beside boundary {boundary} computed with different copies of a frame")
            return
        stages = self.ledger.spoilt(without)
        if stages and self._experience.nonfinite:
            names = ", ".join(map(str, stages))
            step = self.ledger.pass_id.step - 1
            self.outcome = Spoilt(f"parameters or moments of stage {names} are not finite after step {step}")
            return
        if (decision.skip or stages) and self._experience.nonfinite == 0:
            self._experience.not_finite()
            self.outcome = GiveUp(
                f"{'parameters are' if stages else 'a gradient is'} not finite: run again with other replicas"
            )
            return
        self.outcome = Decided(decision, without)

    def _on_failed(self, sender: Actor, failed: Failed, now: float) -> None:
        """A sibling takes over. If there is none, or it has failed on the same microbatch, the pass cannot go on."""
        m, reason = failed.microbatch, failed.reason
        twice = m is not None and self._failed_before(sender, m)
        what = f"microbatch {m} of step {self.ledger.pass_id.step}"
        if failed.nonfinite and self._experience.nonfinite == 0 and self.ledger.kind is PassKind.TRAIN:
            if not twice:
                self.exclude(sender, f"it failed: {reason}")
            if twice or isinstance(self.outcome, GiveUp):
                self._experience.not_finite()
                self.outcome = GiveUp(f"{what} is not finite: run again to be skipped if that is so. {reason}")
        elif not twice:
            if m is not None:
                self._experience.probation.strike(sender.peer, self.ledger.pass_id)
            self._exclude_failed(sender, f"it failed: {reason}", now)
        elif self.ledger.kind is PassKind.TRAIN:
            self.outcome = Unworkable(f"{what} has failed on two peers: {reason}")
        else:
            self.outcome = GiveUp(f"microbatch {m} has failed on two peers: {reason}")

    def _exclude_failed(self, actor: Actor, reason: str, now: float) -> None:
        """Go on without it. A step that must be run again for that reason is so a few times, later and later."""
        self.exclude(actor, reason)
        if not isinstance(self.outcome, GiveUp) or self.ledger.kind is not PassKind.TRAIN:
            return
        why = self.outcome.reason
        if not self._experience.attempt_failed(now, self._settings.heartbeat_s):
            times, step = self._experience.failed_attempts, self.ledger.pass_id.step
            self.outcome = Unworkable(f"step {step} was tried {times} times and failed each time: {why}")

    def _failed_before(self, sender: Actor, m: Microbatch) -> bool:
        """Whether `m`, the sender's own, has failed on another peer of its stage too."""
        stage = self.ledger.stage_of(sender)
        if stage is None or not self.ledger.is_assigned(sender, stage, m):
            return False
        return self._experience.failed(self.ledger.pass_id, stage, m, sender)

    def _resolve(self, found: Suspect | GiveUp | None) -> None:
        """Act on what mending cannot do alone."""
        match found:
            case Suspect(actor, reason, at_fault, accused):
                probation, pass_id = self._experience.probation, self.ledger.pass_id
                if at_fault:
                    probation.strike(actor.peer, pass_id)
                for other in accused:  # nobody knows which of them it is: they are not to come back together
                    probation.strike(other.peer, pass_id, 2)
                self.exclude(actor, reason)
            case GiveUp():
                self.outcome = found

    # ------------------------------------------------------------ afterwards

    def report(self, decided: Decided, now: float) -> None:
        """The decision is on disk: say what was decided, and how fast."""
        ledger, decision = self.ledger, decided.decision
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
                assignments=[list(table.assignment) for table in ledger.tables],
            )
        )
        seconds = max(now - ledger.opened_at, 1e-9)
        busy = 0.0
        for actor in ledger.actors:
            busy += len(ledger.assigned_to(actor)) * (self._members.seconds_per_microbatch(actor) or 0.0)
        self._out.emit(
            StepMeasured(
                step=decision.step,
                seconds=seconds,
                tokens_per_second=self._settings.tokens_per_step / seconds,
                efficiency=min(1.0, busy / (seconds * max(1, len(ledger.actors)))),
                replicas=[len(table.roster) for table in ledger.tables],
            )
        )
