"""Checks that peers work only on the pass that they began last, and begin passes in order."""

from __future__ import annotations

from swarm.protocol.ids import Attempt, PassId, PassKind
from swarm.protocol.peer.io import Begin
from swarm.simulation.checks.watched import PeerView
from swarm.simulation.kernel.violation import Violation


class BegunPasses:
    """For each process id, the pass and the attempt that the peer began last."""

    def __init__(self) -> None:
        self._passes: dict[int, PassId] = {}
        self._attempts: dict[int, Attempt] = {}

    def began(self, peer: PeerView, begin: Begin) -> None:
        """A peer begins a pass."""
        pass_id, kind = begin.pass_id, begin.kind
        before = self._passes.get(peer.pid)
        if before is not None and pass_id <= before:
            raise Violation("no zombies", f"{peer.label} begins {pass_id} after {before}")
        self._passes[peer.pid] = pass_id
        if (kind is PassKind.TRAIN) != (pass_id.index == 0):
            raise Violation("contract", f"{peer.label} begins {pass_id} as {kind.value}")
        if peer.held_stage != pass_id.version:
            raise Violation("atomic", f"{peer.label} begins {pass_id} holding version {peer.held_stage}")

    def is_in_pass_of(self, peer: PeerView, other: PeerView) -> bool:
        """Return True if both peers began the same pass last."""
        return self._passes.get(peer.pid) == self._passes.get(other.pid)

    def works_on(self, peer: PeerView, pass_id: PassId, what: str) -> None:
        if self._passes.get(peer.pid) != pass_id:
            raise Violation("no zombies", f"{peer.label} orders {what} of {pass_id} in {self._passes.get(peer.pid)}")

    def reduces(self, peer: PeerView, attempt: Attempt) -> None:
        self.works_on(peer, attempt.pass_id, "a reduce")
        before = self._attempts.get(peer.pid)
        if before is not None and attempt < before:
            raise Violation("no zombies", f"{peer.label} works on {attempt} after {before}")
        if attempt.stage != peer.stage:
            raise Violation("contract", f"{peer.label} holds stage {peer.stage} and works on {attempt}")
        self._attempts[peer.pid] = attempt
