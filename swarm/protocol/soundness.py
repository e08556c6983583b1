"""Soundness: the newest version whose parameters have given finite gradients, according to the decisions.

Parameters that are not finite, or lead to results that are not, show only in the next step. So a new checkpoint is
known to be sound when a step that started from it is decided with a finite gradient. Until then the newest sound
checkpoint is kept as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.protocol.messages import Decision


@dataclass(frozen=True, slots=True)
class Soundness:
    """The soundness after some decisions."""

    proven: int = 0
    """The newest version that gave a finite gradient, so all before it did too. Version 0 is taken for granted."""
    skipped: int = 0
    """Number of consecutive skipped steps, up to the last one."""

    def after(self, decision: Decision) -> Soundness:
        if decision.skip:
            return replace(self, skipped=self.skipped + 1)
        return Soundness(max(self.proven, decision.step))

    def rolled_back(self, version: int) -> Soundness:
        """The history continues from `version`."""
        return Soundness(min(self.proven, version))


def to_keep(versions: Sequence[int], keep: int, proven: int | None) -> set[int]:
    """The versions to keep, given versions oldest first: the newest `keep`, and one to go back to if these are useless.

    That one is the newest up to `proven`, from which a finite gradient came; else the oldest. None: `proven` is
    unknown.
    """
    kept = set(versions[-keep:])
    if proven is not None and versions:
        kept.add(max((version for version in versions if version <= proven), default=versions[0]))
    return kept
