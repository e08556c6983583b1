"""Misreports: replicas that report something false about summed bytes which their siblings hold too.

Such a report is refuted at once, without any further attempt at the step (`Preparation.contradicted`). It costs the
others nothing. The peer gets a strike. If it reports a second time that finite sums are not finite, or the other way
round, it is expelled: no machine rounds so differently, and a memory error does not happen twice.
"""

from __future__ import annotations

from swarm.protocol.coordinator.audit.culprit_search import Accused
from swarm.protocol.coordinator.passes.preparation import Contradicted

MOST_PLAIN = 2
"""A peer with this number of plain misreports is expelled, in runs with audits."""
REMEMBERED = 4096
"""Number of peers whose misreports are kept: those with the newest ones."""


class Misreports:
    """Counts the plain misreports of each peer id, so that a restart does not clear them."""

    def __init__(self) -> None:
        self._plain: dict[str, int] = {}

    def add(self, found: Contradicted) -> Accused | None:
        """A replica has misreported. Return it if it is to be expelled."""
        if not found.plain:
            return None
        peer = found.actor.peer
        times = self._plain[peer] = self._plain.pop(peer, 0) + 1
        if len(self._plain) > REMEMBERED:
            del self._plain[next(iter(self._plain))]
        return Accused(found.actor, found.stage, f"again {found.reason}") if times >= MOST_PLAIN else None
