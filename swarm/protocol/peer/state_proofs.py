"""Proves that a peer holds its stage: it answers the coordinator's Prove when the peer holds the requested version.

The coordinator compares the answer with a sibling's before it gives this peer any work
(swarm/protocol/coordinator/proofs.py).
"""

from __future__ import annotations

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Proof, Prove
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import ShowState, StateShown

_MOST = 32
"""Number of requests for later versions that are kept: the newest ones."""


class StateProofs:
    def __init__(self, held_stage: HeldStage, out: Outbox) -> None:
        self._held_stage = held_stage
        self._out = out
        self._due: dict[int, Prove] = {}
        """The requests for versions that this peer has not reached yet, by nonce."""
        self._shown: dict[int, int] = {}
        """The answers about the state that this peer holds, by nonce."""

    def asked(self, prove: Prove, coordinator: Actor, applying: bool) -> None:
        """A proof is requested. `applying`: True while a step is being applied, so that the held version is about to
        change.
        """
        held, version = self._held_stage, self._held_stage.version
        at = held.loading if version is None else version + applying
        if prove.nonce in self._shown:
            self._out.send(coordinator, Proof(prove.nonce, self._shown[prove.nonce]))
        elif prove.stage != held.stage or at is None or prove.version < at:
            self._due.pop(prove.nonce, None)
            self._out.send(coordinator, Proof(prove.nonce))
        elif prove.version == version:
            self._out.add(ShowState(prove.version, prove.nonce))
        else:
            self._due[prove.nonce] = prove
            if len(self._due) > _MOST:
                del self._due[next(iter(self._due))]

    def reached(self, coordinator: Actor) -> None:
        """The peer holds another version. Call this before that version changes."""
        due, self._due = self._due, {}
        for prove in due.values():
            self.asked(prove, coordinator, applying=False)

    def shown(self, event: StateShown, coordinator: Actor) -> None:
        if event.checksum is not None:
            self._shown[event.nonce] = event.checksum
            if len(self._shown) > _MOST:
                del self._shown[next(iter(self._shown))]
        self._out.send(coordinator, Proof(event.nonce, event.checksum))

    def is_wrong(self, nonce: int, coordinator: Actor) -> bool:
        """Return True if a disproved answer is about the state that this peer holds. If it is about an earlier state,
        tell the coordinator so.
        """
        if nonce in self._shown:
            return True
        self._out.send(coordinator, Proof(nonce))
        return False

    def clear(self) -> None:
        """Another state is loaded, or none is held any more."""
        self._due.clear()
        self._shown.clear()
