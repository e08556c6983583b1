"""How a training pass ends once every stage is prepared: with a decision, or with a reason to do the step again."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.protocol.coordinator.membership.doubts import Doubted, is_confirmed, what_is_spoilt
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.outcome import Decided, Drifted, GiveUp, Outcome, Spoilt
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings


class Verdict:
    def __init__(
        self, pass_state: PassState, members: Members, settings: Settings, failure_history: FailureHistory
    ) -> None:
        self._pass_state = pass_state
        self._members = members
        self._settings = settings
        self._failure_history = failure_history

    def reach(self, without: frozenset[Actor]) -> Outcome | None:
        """The outcome; None if some stage is not prepared. `without`: actors that died after all others were prepared.

        Call it until there is an outcome: it notes results that are not finite in the failure history.
        """
        preparation, targets = self._pass_state.preparation, self._settings.targets_per_step
        update = self._settings.update(self._pass_state.pass_id.step, self._pass_state.rate)
        decision = preparation.decide(targets, self._settings.optimizer.clip_norm, update, without)
        if decision is None:
            return None
        if drifts := preparation.drifts(without, self._members):
            return Drifted(drifts)
        if (boundary := preparation.mixed_copies(without)) is not None:
            return GiveUp(f"the stages beside boundary {boundary} computed with different copies of a frame")
        failure_history = self._failure_history
        rosters = [[a for a in table.roster if a not in without] for table in self._pass_state.tables]
        stages = preparation.spoilt(without)
        for stage in {*stages, *preparation.not_finite(without)}:
            failure_history.doubts.say(stage, rosters[stage])
        if stages and failure_history.nonfinite:
            return self._spoilt(stages)
        audited = self._settings.audit_every > 0  # an audit finds the cause more precisely
        if decision.skip and not audited and failure_history.leaves_half_out(rosters, decision.step):
            failure_history.not_finite()
            return GiveUp("a gradient is not finite: run again without half of the replicas")
        if (decision.skip or stages) and failure_history.nonfinite == 0:
            failure_history.not_finite()
            what = "parameters are" if stages else "a gradient is"
            return GiveUp(f"{what} not finite: run again with other replicas")
        return Decided(decision, without)

    def _spoilt(self, stages: Sequence[int]) -> Spoilt | Doubted:
        """The stages report once more that their parameters or moments are not finite."""
        doubts, tables = self._failure_history.doubts, self._pass_state.tables
        what = what_is_spoilt(stages, self._pass_state.pass_id.version)
        who = tuple(actor for stage in stages for actor in doubts.who_said(stage))
        if is_confirmed(stages, (actor.peer for actor in who), len(tables), self._members.people):
            return Spoilt(what)
        return Doubted(stages[0], who, f"no other stage confirms that {what}")
