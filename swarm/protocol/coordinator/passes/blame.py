"""Who may be to blame for a failure in an open pass: the actor that reports it, or those that sent its input."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.accusations import Failure
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.stragglers import Stalled
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.messages import Failed


class Blame:
    def __init__(self, pass_state: PassState, members: Members, failure_history: FailureHistory) -> None:
        self._pass_state = pass_state
        self._members = members
        self._failure_history = failure_history

    def failure(self, sender: Actor, failed: Failed) -> Failure:
        """The failure that the message reports. A sender may only report failures of its own microbatches."""
        stage = self._pass_state.stage_of(sender)
        assert stage is not None
        m = failed.microbatch
        if m is None or not self._pass_state.is_assigned(sender, stage, m):
            return Failure(stage, None, sender.peer, frozenset(), failed.reason)
        there = self._pass_state.senders(sender, m)
        senders = frozenset(actor.peer for actor in there) - {sender.peer}
        near = frozenset(at for actor in there if (at := self._pass_state.stage_of(actor)) is not None)
        nonfinite = failed.nonfinite and self._failure_history.nonfinite == 0
        return Failure(stage, m, sender.peer, senders, failed.reason, nonfinite, near)

    def is_irreplaceable(self, peers: frozenset[str]) -> bool:
        """Return True if none of these actors can be replaced by a sibling."""
        version = self._pass_state.pass_id.version
        for stage in range(len(self._pass_state.tables)):
            holders = {
                m.actor.peer for m in self._members.of_stage(stage) if m.lost_at is None and m.version == version
            }
            if len(holders) > 1 and not peers.isdisjoint(holders):
                return False
        return True

    def accused(self, actor: Actor, failure: Failure) -> list[Actor]:
        """The actors of the pass that the failure accuses, apart from the one that failed."""
        return [a for a in self._pass_state.actors if a != actor and a.peer in failure.senders]

    def is_suspect(self, actor: Actor, victim: Actor) -> bool:
        """Return True if more peers failed on this actor's frames than on those of a sibling that could take its place.

        At least two peers must have failed on them. One is enough if this actor was at fault more often lately than the
        peer that failed.
        """
        stage, against = self._pass_state.stage_of(actor), self._failure_history.accusations.against
        strikes = self._failure_history.probation.strikes
        if stage is None or (against(actor.peer) < 2 and strikes(actor.peer) <= strikes(victim.peer)):
            return False
        return any(against(other.peer) < against(actor.peer) for other in self._pass_state.tables[stage].roster)

    def guilty_senders(self, stalled: Stalled) -> list[Actor]:
        """An actor has not received what others report to have computed. One of these, or the actor, is at fault.

        Return the senders that should leave the pass. Empty: the actor should.
        """
        in_training = self._pass_state.kind is PassKind.TRAIN
        return self._guilty_in_step(stalled) if in_training else self._guilty_in_evaluation(stalled)

    def _guilty_in_step(self, stalled: Stalled) -> list[Actor]:
        """A sender is guilty if other peers lack its frames too, or if the actor has no siblings. Who is to blame gets
        a strike when the step is decided.
        """
        actor, pass_state, accusations = stalled.actor, self._pass_state, self._failure_history.accusations
        stage = pass_state.stage_of(actor)
        assert stage is not None
        senders = frozenset(each.peer for each in stalled.senders)
        near = frozenset(at for each in stalled.senders if (at := pass_state.stage_of(each)) is not None)
        accusations.note(Failure(stage, stalled.lacks, actor.peer, senders, stalled.reason, near=near))
        guilty = [each for each in stalled.senders if self.is_suspect(each, actor)]
        if not guilty and pass_state.is_alone(actor):
            guilty = [max(stalled.senders, key=lambda each: accusations.against(each.peer))]
        return guilty

    def _guilty_in_evaluation(self, stalled: Stalled) -> list[Actor]:
        """The actor and the senders are left out of the next evaluation. The actor soon takes part again, but a guilty
        sender is named again and again.
        """
        history = self._failure_history
        strikes = history.idle_strikes(stalled.actor.peer)
        guilty = [each for each in stalled.senders if history.idle_strikes(each.peer) > strikes]
        for each in (stalled.actor, *stalled.senders):
            history.idled(each.peer)
        return [each for each in guilty if not self._pass_state.is_alone(each)]

    def strike(self, actor: Actor, strikes: int = 1) -> None:
        """The actor did not do its part. It goes on probation, or out of the next evaluations."""
        if self._pass_state.kind is PassKind.TRAIN:
            self._failure_history.probation.strike(actor.peer, self._pass_state.pass_id, strikes)
        else:
            self._failure_history.idled(actor.peer)
