"""What the coordinator does at present, in words, as StateChanged reports it."""

from __future__ import annotations

from swarm.events import StateChanged
from swarm.protocol.coordinator.commands import signed
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.ids import PassKind
from swarm.protocol.outbox import Outbox


class AnnouncedState:
    """The state that was reported last."""

    def __init__(self, out: Outbox) -> None:
        self.told = ("", "")
        """The state and the reason for it; empty: none was reported yet."""
        self._out = out

    def tell(self, state: tuple[str, str]) -> None:
        """Report a state unless it was the last reported one."""
        if state != self.told:
            self.told = state
            self._out.emit(StateChanged(*state))


def in_pass(open_pass: OpenPass, history: History) -> tuple[str, str]:
    """The state while a pass is open, and the reason for it."""
    paused = history.controls.paused
    match open_pass.pass_state.kind:
        case PassKind.TRAIN if paused is not None:
            return "pausing", f"{signed('asked to', paused)}; the open step is finished first"
        case _ if open_pass.waits:
            return "waiting", open_pass.waits
        case PassKind.TRAIN:
            return "training", "every stage is held"
        case PassKind.EVALUATE:
            return "evaluating", f"version {history.version}"
        case PassKind.GENERATE:
            return "sampling", f"version {history.version}"
