"""What the decisions say of the parameters: up to which version they have given gradients that are finite.

Parameters that are no numbers, or lead to none, are seen only in the next step. So a new checkpoint proves its worth
when a step that started from it is decided with a finite gradient; until then the newest one that has is kept beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.protocol.messages import Decision


@dataclass(frozen=True, slots=True)
class Soundness:
    """After some decisions."""

    proven: int = 0
    """The newest version from which a finite gradient came: all before it led there. Version 0 is taken for granted."""
    skipped: int = 0
    """Steps skipped one after the other, up to the last one."""

    def after(self, decision: Decision) -> Soundness:
        if decision.skip:
            return replace(self, skipped=self.skipped + 1)
        return Soundness(max(self.proven, decision.step))

    def rolled_back(self, version: int) -> Soundness:
        """The history goes on from `version`."""
        return Soundness(min(self.proven, version))


def to_keep(versions: Sequence[int], keep: int, proven: int | None) -> set[int]:
    """Of versions, oldest first: the newest `keep`, and the one to go back to if these turn out to be of no use.

    That is the newest up to `proven`, from which a finite gradient came; else the oldest. None: it is not known.
    """
    kept = set(versions[-keep:])
    if proven is not None and versions:
        kept.add(max((version for version in versions if version <= proven), default=versions[0]))
    return kept
