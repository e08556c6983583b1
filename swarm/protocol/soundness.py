"""Soundness: the newest version whose parameters have given finite gradients, according to the decisions.

Parameters that are not finite, or that give non-finite results, are noticed only in the next step. So a new checkpoint
is known to be sound once a step that started from it is decided with a finite gradient. Until then, the newest sound
checkpoint is kept as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.protocol.messages import Decision


@dataclass(frozen=True, slots=True)
class Soundness:
    """What some decisions show about the soundness of versions."""

    proven: int = 0
    """The newest version that gave a finite gradient, so that all earlier ones did too. Version 0 is assumed to be
    sound.
    """
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
    """The versions to keep, given all versions, oldest first.

    These are the newest `keep` versions, and one to return to if they are unusable: the newest version up to `proven`;
    if there is none, the oldest version. `proven` None: unknown.
    """
    kept = set(versions[-keep:])
    if proven is not None and versions:
        kept.add(max((version for version in versions if version <= proven), default=versions[0]))
    return kept
