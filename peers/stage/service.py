"""Answers requests of other peers: for pieces of the live state and of sums, for saved checkpoints, and for noise (link
probes).
"""

from __future__ import annotations

from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.link_probe import DOWN, noise
from peers.runtime.piece_request import PieceKind, PieceRequest
from peers.stage.keeper import Keeper
from swarm.compute.held import StateFreed
from swarm.net.bulk import BulkError, Transfer
from swarm.protocol.ids import Actor


class Service:
    def __init__(self, keeper: Keeper, coordinators: tuple[Actor, ...]) -> None:
        self._keeper = keeper
        self._coordinators = {coordinator.peer for coordinator in coordinators}

    async def answer(self, requester: Actor, raw: bytes) -> Transfer:
        """The answer to a request. Raises BulkError."""
        if raw == DOWN and requester.peer in self._coordinators:
            return noise()
        try:
            if (pieces := PieceRequest.decode(raw)) is not None:
                answered = await self._keeper.answer(pieces, requester.peer)
                return Transfer.of(answered, urgent=pieces.kind is PieceKind.SUMS)  # a peer without them falls behind
            request = CheckpointRequest.decode(raw)
            if requester.peer not in self._coordinators:
                raise BulkError("only the coordinator may fetch saved checkpoints: ask for pieces of the live state")
            return self._keeper.saved(request)
        except BulkError:
            raise
        except (OSError, ValueError, StateFreed) as error:
            raise BulkError(str(error)) from None
