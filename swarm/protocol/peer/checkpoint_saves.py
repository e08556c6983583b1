"""The checkpoints that a peer writes to its own disk: which versions, and when to order them again."""

from __future__ import annotations

from swarm.protocol.ids import StageIndex
from swarm.protocol.messages import Decision
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import CheckpointSaved, SaveCheckpoint
from swarm.protocol.peer.status_reports import Saved, StatusReports
from swarm.protocol.settings import Settings


class CheckpointSaves:
    """Call `save_if_due` when the held version may be one to save."""

    def __init__(self, settings: Settings, held_stage: HeldStage, status_reports: StatusReports, out: Outbox) -> None:
        self._settings = settings
        self._held_stage = held_stage
        self._status_reports = status_reports
        self._out = out
        self._saving: tuple[StageIndex, int, float] | None = None
        """(stage, version, time in seconds) of the last checkpoint that was ordered."""
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
        if self._saving is not None and self._saving[1] > version:
            self._saving = None
        if self._to_save > version:
            self._to_save = -1

    def saved(self, event: CheckpointSaved) -> None:
        """A checkpoint is on the disk."""
        if self._saving is not None and self._saving[1] == event.version:
            self._status_reports.saved(Saved(self._saving[0], event.version, event.digest))

    def save_if_due(self, now: float) -> None:
        """Save the held version if it is to be a checkpoint. Repeat the order if the last one had no result."""
        stage, version = self._held_stage.stage, self._held_stage.version
        if stage is None or version is None:
            return
        if not self._settings.saves(version) and version != self._to_save:
            return
        if self._status_reports.newest_saved(stage) >= version:
            return
        before = self._saving
        if before is not None and before[:2] == (stage, version) and now - before[2] < self._settings.step_budget_s:
            return
        self._saving = (stage, version, now)
        self._out.add(SaveCheckpoint(version, self._proven))
