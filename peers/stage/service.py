"""Service: answers other peers' requests for live states, pieces, saved checkpoints, and noise for a link probe."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from peers.runtime.link_probe import DOWN, noise
from peers.runtime.piece_request import PieceKind, PieceRequest
from peers.runtime.state_request import StateRequest
from peers.stage.keeper import Keeper
from swarm.buffer import Buffer
from swarm.net.bulk import BulkError, Transfer
from swarm.protocol.ids import Actor
from swarm.state.transfer import TransferHeader


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
                answered = await self._keeper.answer(pieces)
                return Transfer.of(answered, urgent=pieces.kind is PieceKind.SUMS)  # a peer without them falls behind
            request = StateRequest.decode(raw)
            if request.checkpoint and requester.peer not in self._coordinators:
                raise BulkError("saved checkpoints are for the coordinator's archive: ask for the live state")
            chunks = self._keeper.serve(request, requester)
            first = await anext(chunks)
        except (OSError, ValueError) as error:
            raise BulkError(str(error)) from None
        header = TransferHeader.decode(first, "own state")
        return Transfer(len(first) + header.size, _chain(first, chunks))


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[Buffer, None]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk
