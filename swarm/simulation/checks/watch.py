"""Checks every invariant of the protocol at each event that could break it.

Parameters change only in `Apply` and `LoadState`, decisions only in `WriteRecord`, tables only in `Open` and `Amend`.
So a check at each of these is as good as a check after every event.

The invariants: exactly once, atomic, replicas agree, same answer, progress, no zombies, bounded loss, one record,
orderly leave, commands, honest stay, audits, contract. docs/protocol.md describes most of them. The others are:

* `commands`: each of the organiser's commands is recorded once, and later openings and decisions obey it.
* `orderly leave`: in a run without other disturbances, a peer that is asked to leave costs no work and no state.
* `honest stay`: audits expel only peers that lie.
* `audits`: audits are as frequent as promised (`audited_steps.py`, which also says when a lie may be decided).
* `contract`: a core gives only orders that a driver can carry out (no backward without a forward, no apply without a
  buffer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.events import ControlGiven, PeerFenced, PeerMoved, RolledBack, StepAudited, StepDecided
from swarm.protocol.controls import Controls, check
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.divergence import DIVERGED
from swarm.protocol.coordinator.io import WriteTerm
from swarm.protocol.ids import Actor, PassId, PassKind
from swarm.protocol.io import Stop
from swarm.protocol.messages import (
    UNTOLD,
    Amend,
    CodecPair,
    Command,
    Decision,
    Dismiss,
    Halt,
    Message,
    Open,
)
from swarm.protocol.peer.io import Begin
from swarm.protocol.soundness import Soundness
from swarm.simulation.checks.audited_steps import AuditedSteps
from swarm.simulation.checks.begun_passes import BegunPasses
from swarm.simulation.checks.expected_run import ExpectedRun
from swarm.simulation.checks.flipped_sums import FlippedSums
from swarm.simulation.checks.nonfinite import Nonfinite
from swarm.simulation.checks.one_record import OneRecord
from swarm.simulation.checks.orderly_leave import OrderlyLeave
from swarm.simulation.checks.recorded_contributions import RecordedContributions
from swarm.simulation.checks.sent_tables import SentTables
from swarm.simulation.checks.watched import PeerView, WorldView
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.toy_model import (
    Ideal,
    bucket_share,
    digest_of,
    explain_sum,
    loss_of,
    shared_buckets,
    token_of,
    tokens_payload,
)

GOODBYE = "goodbye"
"""The reason with which a process is asked to leave before the end of the run."""


class Watch:
    """What the actors of one world have done so far, and the checks against it. Other files here contain the separate
    checks.
    """

    def __init__(self, world: WorldView) -> None:
        self._world = world
        self.controls = Controls()
        """The effect of the recorded commands."""
        self.misjudged: set[PassId] = set()
        """Forward-only passes in which a peer gave a false result."""
        self._requests: set[str] = set()
        self._rate_of: dict[PassId, float] = {}
        """The commanded rate when each pass opened."""
        self._codecs_of: dict[PassId, tuple[CodecPair, ...]] = {}
        self.passes = BegunPasses()
        self.tables = SentTables()
        self.audits = AuditedSteps(world, self.tables)
        self.flips = FlippedSums(self.tables, self.is_expelled)
        self.leaving = OrderlyLeave(world)
        self.group = OneRecord(world, self)
        self.nonfinite = Nonfinite(world.diverging, lambda: self.controls.rate)
        self._expected = ExpectedRun(world, lambda: self.steps)
        self._contributions = RecordedContributions()
        self.decisions: dict[int, Decision] = {}
        """The valid decisions, by step. A rollback voids those after its version."""
        self._ever_decided: set[Decision] = set()
        self.archived = 0
        self.stored: set[int] = set()
        """Checkpoints that the coordinator knows to be in its archive."""
        self._soundness = Soundness()
        self._goes_back = ""
        """The coordinator's most recently reported reason for a rollback."""
        self.rollbacks = 0
        self.caught_up = 0
        """Number of steps that were applied from fetched sums."""
        self.moves = 0
        """Number of peers that were told to move to another stage."""
        self.diverged = False
        """True if the run has ended as diverged, so that not all steps are decided."""

    @property
    def ideal(self) -> Ideal:
        return self._expected.ideal

    @property
    def steps(self) -> int:
        """Number of steps after which the run should end, according to the commands so far."""
        return self.controls.end(self._world.settings)

    def commanded(self, command: Command) -> None:
        """`command` is durable. Check that it may take effect, and apply it."""
        if command.number != self.controls.count + 1:
            raise Violation("commands", f"command {command.number} follows command {self.controls.count}")
        if command.request in self._requests:
            raise Violation("commands", f"{command.request} is recorded twice")
        self._requests.add(command.request)
        check(command)
        self.controls = self.controls.after(command)
        if command.name in ("steps", "stop_after"):
            if self.steps < len(self.decisions):
                raise Violation("commands", f"the run should end after {self.steps} of {len(self.decisions)} steps")
            self._expected.compute_again()

    def is_expelled(self, actor: Actor) -> bool:
        return any(command.value == actor.peer for command in self.controls.expelled)

    # ------------------------------------------------------------ peers

    def began(self, peer: PeerView, begin: Begin) -> None:
        """`peer` begins a pass."""
        if begin.codecs != self._codecs_of.get(begin.pass_id):
            raise Violation(
                "same answer", f"{peer.label} begins {begin.pass_id} with {begin.codecs}, but others use other codecs"
            )
        self.passes.began(peer, begin)

    def reduced(self, stage: int, digest: str, sums: tuple[int, ...]) -> None:
        """A peer of `stage` holds these reduced buckets."""
        self._expected.reduced(stage, digest, sums)

    def applied(self, peer: PeerView, decision: Decision, sums: dict[int, int]) -> None:
        """`peer` has just applied `decision` with the reduced buckets `sums`."""
        assert peer.stage is not None
        step, stage = decision.step, peer.stage
        if decision not in self._ever_decided:
            raise Violation(
                "atomic", f"{peer.label} applies step {step} (term {decision.term}), which was never decided"
            )
        if peer.version != step + 1:
            raise Violation("atomic", f"{peer.label} applies step {step} at version {peer.version}")
        ideal, states = self._expected.of(decision)
        for bucket, expected in enumerate(ideal.sums[stage]):
            if sums[bucket] != expected:
                share = bucket_share(1, bucket)
                settings = self._world.settings
                times = 2 if bucket < shared_buckets(settings, stage) else 1
                detail = explain_sum(sums[bucket] // share, settings.microbatches, times)
                raise Violation("exactly once", f"{peer.label} applies step {step} with bucket {bucket}: {detail}")
        self._holds(peer, states)

    def holds(self, peer: PeerView) -> None:
        """`peer` has a state. It must be equal to the ideal state of its version."""
        assert peer.version is not None
        self._holds(peer, self.ideal.states[peer.version])

    def _holds(self, peer: PeerView, states: tuple[int, ...]) -> None:
        assert peer.stage is not None
        if peer.state != states[peer.stage] and not peer.deceived:
            raise Violation("replicas agree", f"{peer.label} holds a wrong state of version {peer.version}")

    # ------------------------------------------------------------ coordinator

    def coordinator_stops(self, stop: Stop) -> None:
        """The coordinator ends the run. The only valid reason is that the run is complete."""
        if stop.reason.startswith(GOODBYE):
            return  # it was asked to leave, and will return
        if stop.failed:
            self.gives_up("the coordinator", stop.reason)
        elif len(self.decisions) != self.steps:
            raise Violation("progress", f"the coordinator stops after {len(self.decisions)} steps: {stop.reason}")

    def gives_up(self, who: str, reason: str) -> None:
        """A process ends as failed. The only valid reason is that the run has diverged."""
        if not (reason.startswith(DIVERGED) and self._may_end_diverged()):
            raise Violation("progress", f"{who} gives up after {len(self.decisions)} steps: {reason}")
        self.diverged = True

    def _may_end_diverged(self) -> bool:
        """True if the run diverges, may not go back again, and the remaining decisions lead to a finite checkpoint."""
        section, retreats = self._world.settings.divergence, self.controls.retreats
        tried = section.action == "stop" or retreats == section.times
        return self._world.diverging is not None and tried and not self.nonfinite.is_unusable(len(self.decisions))

    def writes(self, decision: Decision) -> None:
        """The coordinator is about to make `decision` durable."""
        step, pass_id = decision.step, PassId(decision.term, decision.step)
        if step in self.decisions:
            raise Violation("atomic", f"step {step} is decided again without a rollback (term {decision.term})")
        if step > 0 and step - 1 not in self.decisions:
            raise Violation("atomic", f"step {step} is decided before step {step - 1}")
        if step >= self.steps:
            raise Violation("commands", f"step {step} is decided, although the run ends after {self.steps}")
        if decision.rate != (opened := self._rate_of.get(pass_id)):
            raise Violation("commands", f"step {step} is decided with rate {decision.rate}, but opened with {opened}")
        boundaries = self._world.settings.stages - 1 if self._world.visits is not None else 0
        if len(decision.key_frames) != boundaries:
            raise Violation(
                "same answer", f"step {step} is decided with key frames of {len(decision.key_frames)} boundaries"
            )
        if decision.codecs != self._codecs_of.get(pass_id):
            raise Violation(
                "same answer", f"step {step} is decided with {decision.codecs}, but its frames used other codecs"
            )
        if self._world.settings.averages_compressed:
            stages = range(len(decision.outcomes))
            self._contributions.check(decision, [self.tables.newest[pass_id, stage] for stage in stages])
        self.audits.writes(decision)
        self._expected.writes(decision)
        digests, right = tuple(outcome.digest for outcome in decision.outcomes), self.ideal.steps[step].digests
        if digests != right and (self.audits.allows(decision) or self.flips.excuse(decision, right)):
            self._expected.takes(decision)
        ideal = self.ideal.steps[step]
        for stage, outcome in enumerate(decision.outcomes):
            if outcome.digest != ideal.digests[stage]:
                raise Violation("exactly once", f"step {step} is decided with wrong bytes of stage {stage}")
        if len(decision.outcomes) != len(ideal.digests):
            raise Violation("atomic", f"step {step} is decided with {len(decision.outcomes)} stages")
        if decision.skip and step not in self.nonfinite.reproduced:
            raise Violation("same answer", f"step {step} is skipped, but its gradient is finite when computed again")
        if not decision.skip and decision.scale != ideal.scale:
            raise Violation("same answer", f"step {step} has scale {decision.scale!r}, ideal {ideal.scale!r}")
        if decision.loss_sum != ideal.loss_sum or decision.tokens != self._world.settings.tokens_per_step:
            raise Violation("same answer", f"step {step} has loss sum {decision.loss_sum!r}, ideal {ideal.loss_sum!r}")

    def decided(self, decision: Decision) -> None:
        """`decision` is durable."""
        self.leaving.decided(decision)
        self.audits.decided(decision)
        self.decisions[decision.step] = decision
        self._ever_decided.add(decision)
        if self._soundness.skipped >= self._world.settings.divergence.skips:
            raise Violation("progress", f"step {decision.step} follows {self._soundness.skipped} skipped steps")
        self._soundness = self._soundness.after(decision)
        self._expected.decided(decision)

    def coordinator_sends(self, sender: Actor, to: Actor, message: Message) -> None:
        """A coordinator sends `message` to a peer or to another coordinator."""
        self.group.speaks(sender, message)
        if isinstance(message, Dismiss):
            self.leaving.dismisses(to, len(self.decisions), self.archived)
        elif isinstance(message, Open):
            pass_id = message.pass_id
            replaced = self.group.is_replaced(pass_id.term)  # it does not know this yet
            if message.kind is PassKind.TRAIN and pass_id.step in self.decisions and not replaced:
                raise Violation("atomic", f"step {pass_id.step} is opened again after its decision")
            if pass_id not in self._rate_of:
                self._rate_of[pass_id] = self.controls.rate
                if not replaced:
                    self._obeys(message)
            for stage, table in enumerate(message.tables):
                if table != UNTOLD:
                    self.tables.sends(pass_id, stage, table)
            self._opens(message)
        elif isinstance(message, Amend):
            self.tables.sends(message.pass_id, message.stage, message.table)
        elif isinstance(message, Halt) and message.expelled and to.peer not in self.controls.banned:
            raise Violation("commands", f"{to} is told that it is expelled, but this is not in the record")

    def _obeys(self, message: Open) -> None:
        """Check that the commands allow the pass that opens."""
        pass_id = message.pass_id
        if self.controls.paused is not None:
            raise Violation("commands", f"{pass_id} opens while the run is paused")
        if message.kind is PassKind.TRAIN and pass_id.step >= self.steps:
            raise Violation("commands", f"{pass_id} opens, although the run ends after {self.steps} steps")
        void = [a for table in message.tables for a in table.roster if self.is_expelled(a)]
        if void:
            raise Violation("commands", f"{void[0]} is expelled, but has a part in {pass_id}")

    def _opens(self, message: Open) -> None:
        """Check that all openings of a pass, to any actor, name the same codecs."""
        if len(message.codecs) != (self._world.settings.stages - 1 if self._world.choosing else 0):
            raise Violation("same answer", f"{message.pass_id} opens with codecs of {len(message.codecs)} boundaries")
        if self._codecs_of.setdefault(message.pass_id, message.codecs) != message.codecs:
            raise Violation("same answer", f"{message.pass_id} opens with two different choices of codecs")

    def emitted(self, event: Any) -> None:
        """The coordinator writes an event to its log."""
        if isinstance(event, RolledBack):
            self._goes_back = event.reason
        if isinstance(event, StepAudited):
            self.audits.audited(event.step)
        if isinstance(event, ControlGiven) and event.number > self.controls.count:
            raise Violation("commands", f"command {event.number} is in force, but not in the record")
        if isinstance(event, StepDecided):
            self._contributions.died(event.step, event.without)
        if isinstance(event, PeerFenced):
            self.tables.fences(event.pass_id, event.actor)

    def moves_peer(self, event: PeerMoved, core: CoordinatorCore) -> None:
        """A peer is told to move. This may happen only between passes, to one peer at a time, and never to a peer that
        its stage needs.
        """
        self.moves += 1
        # The open pass may just have opened.
        served = core.open_pass.pass_state.actors if core.open_pass is not None else []
        if any(str(actor) == event.actor for actor in served):
            raise Violation("no zombies", f"{event.actor} should move, but has a part in the open pass")
        version, decision = core.history.version, core.history.decision
        crew = [m for m in core.members.of_stage(event.source) if str(m.actor) != event.actor and m.lost_at is None]
        everybody = [m for m in core.members if m.lost_at is None]
        mine = next(m for m in everybody if str(m.actor) == event.actor)
        can_be_made = version == 0 and not self._world.settings.imported  # from the seed, by any peer
        if not any(m.is_current(version, decision) for m in crew) and not can_be_made and self._held_last(event):
            raise Violation("bounded loss", f"{event.actor} leaves stage {event.source} with no copy of {version}")
        if not crew:
            raise Violation("progress", f"{event.actor} leaves stage {event.source} without a peer")
        if event.gain == 0.0:
            return  # recruited for a stage without a peer
        for member in everybody:
            under_way = member.move_number > 0 and not member.has_worked and not member.given_up
            if member is not mine and under_way and self._world.now - member.placed_at < 4.0:
                raise Violation("progress", f"{event.actor} should move while {member.actor} is moving")

    def _held_last(self, event: PeerMoved) -> bool:
        """Return True if the moving peer has the current version of the stage it leaves, or can apply the decision."""
        needed = len(self.decisions)
        return any(
            str(process.actor) == event.actor and process.version in (needed, needed - 1)
            for process in self._world.alive()
            if process is not self._world.coordinator
        )

    def closed(self, pass_id: PassId, kind: PassKind, loss_sum: float, token: int) -> None:
        """A forward-only pass is complete. Its result must follow from the version and the pass's codecs, unless a peer
        gave a false result: nobody computes an evaluation again.
        """
        if pass_id in self.misjudged:
            return
        count = self._world.settings.evaluate_microbatches if kind is PassKind.EVALUATE else 1
        inputs = [tokens_payload(pass_id.index, pass_id.step, m) for m in range(count)]
        chosen = self._codecs_of.get(pass_id, ())
        outputs = [self.ideal.output(pass_id.version, payload, chosen) for payload in inputs]
        if kind is PassKind.EVALUATE and loss_sum != sum(map(loss_of, outputs)):
            raise Violation("same answer", f"evaluation {pass_id} gives {loss_sum}, ideal {sum(map(loss_of, outputs))}")
        if kind is PassKind.GENERATE and token != token_of(outputs[0]):
            raise Violation("same answer", f"generation {pass_id} gives token {token}, ideal {token_of(outputs[0])}")

    def at_the_end(self, peers: Sequence[PeerView]) -> None:
        """The run is complete. Every decided step must be applied everywhere, and the result must be the ideal one."""
        steps = self.steps
        requested = min(self.controls.checkpoint, steps)  # a rollback and a command may have ended the run before it
        if self.archived < requested:
            raise Violation("commands", f"checkpoint {requested} was requested, but only {self.archived} is archived")
        for step in range(steps):
            if step not in self.decisions:
                raise Violation("progress", f"the run ended without a decision of step {step}")
        for stage in range(self._world.settings.stages):
            held = any(peer.stage == stage and peer.version == steps for peer in peers)
            ideal = self.ideal.states[steps][stage]
            archives = [archive.get((stage, steps)) for archive in self._world.archives]
            archived = 2 * archives.count(ideal) > len(archives)
            if not held and not archived:  # the last holder may have died in the meantime
                raise Violation("atomic", f"the run ended, but version {steps} of stage {stage} is lost")
        if self._world.network.weather is None:
            settled = self._world.now - self._world.settings.step_budget_s
            for peer in peers:
                late = max(peer.disturbed_at, peer.began_to_load_at) >= settled
                if peer.stage is not None and not late and peer.version != steps:
                    raise Violation(
                        "atomic", f"the run ended, but {peer.label}, which was not disturbed, lacks the last decision"
                    )

    def takes_term(self, before: int, write: WriteTerm) -> None:
        """The coordinator is about to make a term durable, perhaps with a rollback."""
        if write.term <= before:
            raise Violation("no zombies", f"term {write.term} is taken after term {before}")
        version = write.rollback_to
        if version is None:
            return
        if self._goes_back.startswith(DIVERGED):
            self._check_retreat(version)
            return
        if version < self.archived:
            raise Violation("bounded loss", f"rolls back to {version}, but checkpoint {self.archived} is complete")
        if version > self.archived:
            raise Violation("bounded loss", f"rolls back to {version}, newest complete checkpoint is {self.archived}")
        world = self._world
        settled = world.now - world.settings.recruit_after_s - world.settings.step_budget_s
        needed = len(self.decisions)
        for stage in range(world.settings.stages):
            if not any(
                process.stage == stage and process.disturbed_at < settled and process.can_hold(needed)
                for process in world.alive()
                if process.role != "coordinator"
            ):
                return
        raise Violation("bounded loss", f"rolls back to {version} though every stage has a healthy replica")

    def _check_retreat(self, version: int) -> None:
        """The run has diverged and goes back. The target must be the newest sound checkpoint, which must be in the
        archive.
        """
        if self._world.diverging is None:
            raise Violation("progress", f"goes back to {version}, although nothing has diverged: {self._goes_back}")
        stages = range(self._world.settings.stages)
        held = [archive for archive in self._world.archives if all((stage, version) in archive for stage in stages)]
        if version and 2 * len(held) <= len(self._world.archives):
            raise Violation("bounded loss", f"goes back to {version}, which is not in the archive any more")
        if version > self._soundness.proven:
            raise Violation(
                "bounded loss", f"goes back to {version}, but only versions up to {self._soundness.proven} are sound"
            )
        best = max((stored for stored in self.stored if stored <= self._soundness.proven), default=0)
        if version < best:
            raise Violation("bounded loss", f"goes back to {version}, though checkpoint {best} is sound")

    def rolled_back(self, version: int) -> None:
        """The rollback is durable. The decisions after its version become void."""
        self.rollbacks += 1
        self._soundness = self._soundness.rolled_back(version)
        self.stored = {stored for stored in self.stored if stored <= version}
        for step in [step for step in self.decisions if step >= version]:
            del self.decisions[step]
        self._expected.rolled_back(version)
        self.audits.rolled_back(version)


def reduced_digest(stage: int, sums: dict[int, int]) -> str:
    return digest_of(stage, tuple(sums[bucket] for bucket in sorted(sums)))
