"""Checks that a peer that is asked to leave costs the run no work and no state."""

from __future__ import annotations

from collections import Counter

from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import Decision
from swarm.simulation.checks.watched import PeerView, WorldView
from swarm.simulation.kernel.violation import Violation

ENOUGH_TO_LEAVE_S = 2.0
"""Virtual seconds that suffice to finish a step and to copy a state to another peer."""


class OrderlyLeave:
    """The check of the invariant "orderly leave". It applies to runs without disturbances other than requests to
    leave.
    """

    def __init__(self, world: WorldView) -> None:
        self._world = world
        self.disturbed = False
        """True if anything other than requests to leave has happened. Then work and states may be lost."""
        self._accumulated: Counter[tuple[PassId, int, int]] = Counter()
        """(pass, stage, microbatch) → number of peers that accumulated it."""
        self._dismissed: set[Actor] = set()

    @property
    def _orderly(self) -> bool:
        """True if leaving must cost nothing: there is enough time, and nothing else happens."""
        world = self._world
        return not self.disturbed and world.network.weather is None and world.settings.leave_s >= ENOUGH_TO_LEAVE_S

    def accumulates(self, peer: PeerView, pass_id: PassId, microbatch: int) -> None:
        assert peer.stage is not None
        self._accumulated[pass_id, peer.stage, microbatch] += 1

    def leaves(self, peer: PeerView) -> None:
        """`peer`, which was asked to leave, is gone."""
        if self._orderly and peer.actor not in self._dismissed and peer.version is not None:
            raise Violation(
                "orderly leave", f"{peer.label} was not dismissed within {self._world.settings.leave_s:g} s"
            )

    def dismisses(self, actor: Actor, needed: int, archived: int) -> None:
        """Check that nothing depends on `actor`: others hold its stage, it can be made again, or no peer could take it
        up.

        `needed`: the version that the next pass starts from.
        """
        self._dismissed.add(actor)
        world = self._world
        leaver = world.by_actor.get(actor)
        staying = [p for p in world.alive() if p.role not in ("coordinator", "process") and not p.leaving]
        stage = leaver.stage if leaver is not None else None
        if not self._orderly or stage is None or needed in (0, archived):
            return
        held = {p.stage for p in staying if p.version in (needed, needed - 1)}
        if stage in held:
            return
        counts = Counter(p.stage for p in staying)
        spare = sum(count if where is None else count - 1 for where, count in counts.items())
        bereft = set(range(world.settings.stages)) - held - {stage}
        if counts[stage] or spare > len(bereft):  # another stage without holders may need the spare peers
            raise Violation("orderly leave", f"{actor} is dismissed with the only copy of stage {stage}")

    def decided(self, decision: Decision) -> None:
        """Check that no work of a decided step was accumulated twice."""
        if not self._orderly or self._world.settings.averages_compressed:
            return
        for (pass_id, stage, m), times in self._accumulated.items():
            if pass_id == PassId(decision.term, decision.step) and times > 1:
                raise Violation("orderly leave", f"{pass_id} s{stage}: microbatch {m} was accumulated {times} times")
