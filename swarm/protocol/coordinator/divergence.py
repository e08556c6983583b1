"""A run that has diverged: what its parameters give is no number any more, so that every later step is for nothing.

One skipped step is an accident: that step changes nothing, and training goes on. Several in a row are none, nor are
parameters or moments that are not finite. Then the history goes back to the newest checkpoint that has proved its
worth: with a lower learning rate where the manifest says so, and so many times; else it stops there and says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import RunDiverged
from swarm.protocol.controls import GO_BACK, Retreat
from swarm.protocol.coordinator.commands import Commands
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

BY = "coordinator"
"""Whose command it is."""
DIVERGED = "the run has diverged"
"""So begins the reason for all that is done about it."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """The history is to go on from `version`."""

    version: int
    reason: str
    halt: str = ""
    """Why all are sent home when that is done; empty: the run goes on."""


class Divergence:
    """Of one coordinator's life. `look` between passes, when no command is being written."""

    def __init__(self, settings: Settings, history: History, members: Members, commands: Commands, out: Outbox) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._commands = commands
        self._out = out
        self._spoilt = ""
        """What is not finite, at the present version."""

    def spoilt(self, what: str) -> None:
        """Parameters or moments of the present version are not finite, as all say who hold them."""
        self._spoilt = what

    def rolled_back(self) -> None:
        self._spoilt = ""

    def look(self) -> GoBack | None:
        """What is to be done now. None: nothing, or a command is being written first."""
        history, retreat = self._history, self._history.controls.retreat
        if retreat is not None and retreat.term >= history.rolled_back_in and retreat.version <= history.version:
            what = f"the learning rate is {retreat.rate:g} times the schedule from here on"
            return GoBack(retreat.version, f"{DIVERGED}; {what}")
        reason = self._reason()
        if not reason:
            return None
        version, controls = history.last_sound, history.controls
        section = self._settings.divergence
        if section.action == "go_back" and controls.retreats < section.times:
            rate = controls.rate * section.rate
            self._out.emit(RunDiverged(history.version - 1, reason, version, rate))
            self._commands.order(GO_BACK, Retreat(version, history.term, rate).value, BY, reason)
            return None
        self._out.emit(RunDiverged(history.version - 1, reason, version, None))
        tried = f", {controls.retreats} times with a lower learning rate" if controls.retreats else ""
        what = f"version {version}" if version else "version 0, from which it began"
        slower = f"swarm-peer control rate {controls.rate * section.rate:g}"
        halt = (
            f"{DIVERGED}{tried}: {reason}. Nothing more is trained. The last good checkpoint is {what}, and "
            f"`swarm-peer coordinate` goes on from there: have it train more slowly first, with `{slower}`"
        )
        return GoBack(version, f"{DIVERGED}: {reason}", halt)

    def _reason(self) -> str:
        """Why it counts as diverged. Empty: it does not."""
        history, skipped = self._history, self._history.soundness.skipped
        if self._spoilt:
            return self._spoilt
        for stage in range(self._settings.stages):
            held = [m for m in self._members.of_stage(stage) if m.lost_at is None and m.version == history.version]
            if held and all(m.status is not None and m.status.spoilt for m in held):
                return f"parameters or moments of stage {stage} are not finite after step {history.version - 1}"
        if skipped < self._settings.divergence.skips:
            return ""
        steps = "a step was" if skipped == 1 else f"{skipped} steps in a row were"
        return f"{steps} skipped up to step {history.version - 1}, since gradients were not finite"
