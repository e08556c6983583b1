"""The checkpoints that a peer writes to its own disk: which versions, and when to order them again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarm.protocol.ids import StageIndex
from swarm.protocol.messages import Decision
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import CheckpointSaved, SaveCheckpoint, StateSpoilt
from swarm.protocol.peer.status_reports import Saved, StatusReports
from swarm.protocol.settings import Settings


@dataclass(frozen=True, slots=True)
class _Order:
    stage: StageIndex
    version: int
    number: int
    """The same in all orders of one state."""
    at: float
    """Seconds."""


class CheckpointSaves:
    """Call `save_if_due` when the held version may be one to save."""

    def __init__(self, settings: Settings, held_stage: HeldStage, status_reports: StatusReports, out: Outbox) -> None:
        self._settings = settings
        self._held_stage = held_stage
        self._status_reports = status_reports
        self._out = out
        self._saving: _Order | None = None
        """The last order."""
        self._states = 0
        """Number of states that were ordered to be saved."""
        self._to_save = -1
        """The newest version to save although the manifest's schedule does not contain it."""
        self._proven = 0
        """The newest version held here that is known to be sound (swarm/protocol/soundness.py)."""

    def ask_for(self, version: int) -> None:
        """The coordinator asks for a version that the manifest's schedule does not contain."""
        self._to_save = max(self._to_save, version)

    def applied(self, decision: Decision) -> None:
        """The step of `decision` is applied. If its gradient was finite, the version before it was sound."""
        if not decision.skip:
            self._proven = max(self._proven, decision.step)

    def takes_up(self, version: int) -> None:
        """Another state is loaded. Later versions of the state before it do not count any more."""
        self._proven = min(self._proven, version)
        if self._saving is not None and self._saving.version > version:
            self._saving = None
        if self._to_save > version:
            self._to_save = -1

    def saved(self, event: CheckpointSaved) -> None:
        """A checkpoint is on the disk. It counts unless another state has been ordered since."""
        order = self._saving
        if order is not None and order.number == event.number:
            self._status_reports.saved(Saved(order.stage, order.version, event.digest))

    def spoilt(self, event: StateSpoilt, now: float) -> None:
        """A state is not finite. This counts while the state is held."""
        order, held = self._saving, self._held_stage
        if order is None or order.number != event.number:
            return
        if (held.stage, held.version) == (order.stage, order.version):
            self._status_reports.spoilt(order.version, now)

    def save_if_due(self, now: float) -> None:
        """Save the held version if it is to be a checkpoint. Repeat the order if the last one had no result."""
        stage, version = self._held_stage.stage, self._held_stage.version
        if stage is None or version is None:
            return
        if not self._settings.saves(version) and version != self._to_save:
            return
        if self._status_reports.newest_saved(stage) >= version:
            return
        order = self._saving
        if order is None or (order.stage, order.version) != (stage, version):
            order = _Order(stage, version, self._states, now)
            self._states += 1
        elif now - order.at < self._settings.step_budget_s:
            return
        self._saving = replace(order, at=now)
        self._out.add(SaveCheckpoint(version, self._proven, order.number))
