"""What a decided step came to, for the event log: the decision, and how fast the step was."""

from __future__ import annotations

from swarm.events import StepDecided, StepMeasured
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.outcome import Decided
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class StepReport:
    def __init__(self, settings: Settings, members: Members, out: Outbox) -> None:
        self._settings = settings
        self._members = members
        self._out = out

    def tell(self, pass_state: PassState, decided: Decided, now: float) -> None:
        """The decision is on disk. Emit events about it and about the speed of the step."""
        decision = decided.decision
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
