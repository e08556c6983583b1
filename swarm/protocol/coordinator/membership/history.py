"""The durable history of a run: its term, last decision, version, archived versions and commands."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from swarm.protocol.controls import Controls
from swarm.protocol.ids import Term
from swarm.protocol.messages import Decision
from swarm.protocol.settings import Settings
from swarm.protocol.soundness import Soundness

RECENT = 256
"""Number of decisions that are kept in memory."""


@dataclass(slots=True)
class History:
    """The history. It changes only with facts that are on disk: a term, a decision, a command or an archived
    checkpoint.
    """

    term: Term
    decision: Decision | None
    """The last decision. None before the first step and after a rollback."""
    archived: int | None
    """Version of the newest complete checkpoint in the archive."""
    rolled_back_in: int = 0
    """The term of the last rollback; 0: none."""
    version: int = 0
    """Number of steps decided: the version that a training pass needs."""
    recent: deque[Decision] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The last decisions, in order, for peers that catch up."""
    controls: Controls = field(default_factory=Controls)
    """The combined effect of the organiser's commands."""
    asked: int = -1
    """The newest version that peers were asked to save although the manifest's schedule does not contain it."""
    soundness: Soundness = field(default_factory=Soundness)
    kept: tuple[int, ...] = ()
    """The versions in the archive, oldest first. Of those that are known to be sound, only the newest is certain to be
    there.
    """

    def __post_init__(self) -> None:
        if self.archived is not None and self.archived not in self.kept:
            self.kept = (*self.kept, self.archived)
        if self.decision is not None:
            self.version = self.decision.step + 1
            if not self.recent:
                self.recent.append(self.decision)

    def since(self, step: int) -> list[Decision] | None:
        """The decisions from `step` on. None if some of them are no longer in memory."""
        found = [decision for decision in self.recent if decision.step >= step]
        return found if len(found) == max(0, self.version - step) else None

    @property
    def restorable(self) -> bool:
        """True if the archive or the initial values can restore a stage that no peer holds any more.

        Version 0 can always be restored: if it was imported, the archive keeps it in addition to the newest versions.
        """
        return self.version == 0 or self.version == self.archived

    def end(self, settings: Settings) -> int:
        """Number of steps after which the run is complete."""
        return self.controls.end(settings)

    def saves(self, version: int, settings: Settings) -> bool:
        """Return True if a checkpoint of this version should be saved."""
        return settings.saves(version) or version == self.asked

    @property
    def is_asked(self) -> bool:
        """True if peers should save the current version although the manifest's schedule does not contain it."""
        return self.asked == self.version

    def decided(self, decision: Decision) -> None:
        self.decision = decision
        self.recent.append(decision)
        self.version = decision.step + 1
        self.soundness = self.soundness.after(decision)

    def stored(self, version: int, term: Term) -> None:
        """A checkpoint that was ordered in `term` is stored. Checkpoints of a rolled-back history do not count."""
        if term >= self.rolled_back_in and version <= self.version:
            self.archived = max(version, -1 if self.archived is None else self.archived)
            self.kept = tuple(sorted({*self.kept, version}))[-RECENT:]
            if self.archived >= self.asked:
                self.asked = -1

    def rolled_back(self, version: int) -> None:
        """The run goes back to `version` in the current term."""
        self.version = version
        if self.archived is not None:
            self.archived = min(self.archived, version)
        self.kept = tuple(kept for kept in self.kept if kept <= version)
        self.soundness = self.soundness.rolled_back(version)
        self.rolled_back_in = self.term
        self.asked = -1
        self.decision = None
        self.recent.clear()

    @property
    def last_sound(self) -> int:
        """The newest restorable version that is known to be sound. Version 0 can always be restored."""
        return max((version for version in self.kept if version <= self.soundness.proven), default=0)

    @property
    def rollback_target(self) -> int:
        """The version to go back to if the current one is lost."""
        return self.archived if self.archived is not None and self.archived < self.version else 0
