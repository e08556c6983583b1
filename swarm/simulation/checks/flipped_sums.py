"""Bits that flipped in reduced sums, and the only case in which nobody can notice one.

Replicas notice a flipped bit by comparing digests. In runs with flipped bits, peers do not die, but the organiser may
expel the only peer with which a flipped one could be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import Decision
from swarm.simulation.checks.sent_tables import SentTables


class FlippedSums:
    """`is_expelled`: whether the organiser has expelled an actor."""

    def __init__(self, tables: SentTables, is_expelled: Callable[[Actor], bool]) -> None:
        self._tables = tables
        self._is_expelled = is_expelled
        self._flipped: defaultdict[tuple[PassId, int], set[Actor]] = defaultdict(set)
        """{(pass, stage): the peers with a flipped bit in their sums}"""

    def flipped(self, pass_id: PassId, stage: int, actor: Actor) -> None:
        """A bit of this actor's sums has flipped."""
        self._flipped[pass_id, stage].add(actor)

    def excuse(self, decision: Decision, right: Sequence[str]) -> bool:
        """Return True if all wrong sums come from stages where only flipped replicas are left, and the organiser has
        expelled all others. `right`: the digest of each stage without a flipped bit.
        """
        pass_id = PassId(decision.term, decision.step)
        wrong = [stage for stage, each in enumerate(decision.outcomes) if each.digest != right[stage]]
        return all(self._nobody_is_left(pass_id, stage) for stage in wrong)

    def _nobody_is_left(self, pass_id: PassId, stage: int) -> bool:
        """Return True if no replica with other sums is left, because of an expulsion."""
        flipped = self._flipped.get((pass_id, stage), set())
        others = self._tables.served[pass_id, stage] - flipped
        return bool(flipped and others) and all(map(self._is_expelled, others))
