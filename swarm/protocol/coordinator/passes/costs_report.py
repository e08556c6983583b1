"""Reports the costs of faults, of training steps and of evaluations."""

from __future__ import annotations

from swarm.events import FaultCosted
from swarm.protocol.coordinator.passes.fault_costs import FaultCosts
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassKind
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class CostsReport:
    """Passes every fact on to the `FaultCosts` of its kind of pass. Samples have none."""

    def __init__(self, settings: Settings, out: Outbox) -> None:
        self._out = out
        self._steps = FaultCosts(settings)
        self._of = {
            PassKind.TRAIN: self._steps,
            PassKind.EVALUATE: FaultCosts(settings, lambda: self._steps.usual_s),
        }

    def opened(self, kind: PassKind, now: float) -> None:
        if kind in self._of:
            self._of[kind].opened(now)

    def lost(self, actor: Actor, reason: str, now: float) -> None:
        """An actor that held a stage is gone while no pass was open."""
        self._steps.lost(actor, reason, now)

    def aborted(self, pass_state: PassState, reason: str) -> None:
        """A pass failed, and its work is lost."""
        if pass_state.kind in self._of:
            self._of[pass_state.kind].aborted(pass_state, reason)

    def given_up(self, pass_state: PassState, now: float) -> None:
        """An aborted forward-only pass is not tried again."""
        if pass_state.kind is PassKind.EVALUATE:
            self._tell(self._of[pass_state.kind].given_up(pass_state, now))

    def audited(self, pass_state: PassState) -> None:
        """Other peers repeat the step, so that the results can be compared."""
        self._steps.audited(pass_state)

    def expelled(self, actor: Actor, reason: str) -> None:
        self._steps.expelled(actor, reason)

    def rolled_back(self, steps: int, reason: str) -> None:
        """`steps` decided steps are done again. The evaluation will be repeated after other steps."""
        self._steps.rolled_back(steps, reason)
        self._steps.take_over(self._of[PassKind.EVALUATE])

    def decided(self, pass_state: PassState, without: frozenset[Actor], now: float) -> None:
        """A step is decided, or an evaluation is complete."""
        self._tell(self._of[pass_state.kind].decided(pass_state, without, now))

    def _tell(self, costed: FaultCosted | None) -> None:
        if costed is not None:
            self._out.emit(costed)
