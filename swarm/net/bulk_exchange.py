"""The bulk transfers of one actor: it requests data from others and answers their requests.

A request goes straight to its peer, or through a coordinator if no direct connection can be opened (`detour`). A
coordinator forwards requests of others to the peers that are connected to it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing

from swarm.buffer import Buffer
from swarm.manifest import SignedManifest
from swarm.net import bulk
from swarm.net.bulk import (
    MAX_ADDRESS_ANSWERS,
    MAX_DETOURS,
    MAX_DETOURS_PER_PEER,
    MAX_SHOWN,
    MAX_SHOWN_PER_PEER,
    Answers,
    BulkError,
    BulkHandler,
    Registrar,
    Shown,
    Transfer,
)
from swarm.net.detour import Detour, NoStraightWay, PassedOn, StraightWays
from swarm.net.dialler import Dialler
from swarm.net.door import Door
from swarm.net.handshake import Channel, Introduction, Role
from swarm.net.lane import Lane
from swarm.net.stream import PREFIX_BYTES, Stream
from swarm.net.traffic import TrafficMeter
from swarm.protocol.ids import Actor


class BulkExchange:
    """Requests bulk data, and answers or forwards the requests of admitted actors.

    `lanes`: the lane of each channel. `traffic`: counts the bytes. `manifest`: as the attribute.
    """

    def __init__(
        self,
        dialler: Dialler,
        door: Door,
        role: Role,
        lanes: Mapping[Channel, Lane],
        traffic: TrafficMeter,
        manifest: SignedManifest | None,
    ) -> None:
        self.manifest = manifest
        """The manifest for requesters that have a pass; None: not known yet."""
        self._dialler = dialler
        self._door = door
        self._role = role
        self._lanes = lanes
        self._traffic = traffic
        self._handler: BulkHandler | None = None
        self._registrar: Registrar | None = None
        self._shown: Shown | None = None
        self._answers = Answers()
        self._detours = Answers(at_most=MAX_DETOURS, per_peer=MAX_DETOURS_PER_PEER)
        self._address_answers = Answers(at_most=MAX_ADDRESS_ANSWERS)
        self._straight_ways = StraightWays()
        self._guides: tuple[Actor, ...] = ()

    async def fetch(
        self,
        who: Actor | str,
        request: bytes,
        max_bytes: int = bulk.DEFAULT_MAX_TRANSFER,
        least_rate: float = bulk.LEAST_RATE,
    ) -> Transfer:
        """Request bulk data from an actor, or from any incarnation of a peer id. The limits are those of bulk.request.

        Raises BulkError (the chunks raise it too), DialError, Refused, StreamClosed, TimeoutError.
        """
        peer_id, target = (who.peer, who.incarnation) if isinstance(who, Actor) else (who, None)
        if all(guide.peer == peer_id for guide in self._guides):
            stream = await self._dialler.open(peer_id, target, Channel.BULK)
            return await self._ask(stream, request, max_bytes, least_rate)
        try:
            stream = await self._straight_ways.open(peer_id, lambda: self._dialler.open(peer_id, target, Channel.BULK))
        except NoStraightWay as error:
            return await self._go_round(error, Detour(peer_id, target, request), max_bytes, least_rate)
        return await self._ask(stream, request, max_bytes, least_rate)

    def serve(self, handler: BulkHandler) -> None:
        """Have `handler(requester, request)` answer bulk requests; it raises BulkError to refuse."""
        self._handler = handler

    def register(self, registrar: Registrar) -> None:
        """Have `registrar` make the certificates that guests ask for; it raises BulkError to refuse."""
        self._registrar = registrar

    def show(self, handler: BulkHandler) -> None:
        """Have `handler(observer, request)` answer observers; it raises BulkError, with the reason, to refuse."""
        self._shown = Shown(handler, Answers(at_most=MAX_SHOWN, per_peer=MAX_SHOWN_PER_PEER))

    def favour(self, peer_ids: Iterable[str]) -> None:
        """Exempt these peers' bulk requests from the limits on simultaneous answers."""
        self._answers.favoured = frozenset(peer_ids)

    def go_round_by(self, guides: Iterable[Actor]) -> None:
        """Set the coordinators that forward our bulk requests to unreachable peers, and requests of others to us."""
        self._guides = tuple(guides)

    async def answer(self, stream: Stream, requester: Introduction) -> None:
        """Answer the single request on an accepted stream; the errors are those of bulk.answer."""
        sent = await bulk.answer(
            stream,
            requester,
            self.manifest,
            self._answer,
            self._answers,
            self._lanes[Channel.BULK],
            self._lanes[Channel.REDUCE],
            detours=self._detours,
            addresses=self._address_answers,
            registrar=self._registrar,
            shown=self._shown,
        )
        self._traffic.sent(requester.sender, Channel.BULK.value, sent)

    async def _go_round(self, why: NoStraightWay, detour: Detour, max_bytes: int, least_rate: float) -> Transfer:
        failed = "no coordinator is known"
        for guide in self._guides:
            if guide.peer == detour.peer:
                continue
            try:
                stream = await self._dialler.open(guide.peer, guide.incarnation, Channel.BULK)
                return await self._ask(stream, detour.encode(), max_bytes, least_rate)
            except (ConnectionError, TimeoutError) as error:
                failed = str(error) or "no answer"
        raise BulkError(f"{why}; the request through a coordinator failed too: {failed}")

    async def _ask(self, stream: Stream, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
        transfer = await bulk.request(stream, request, max_bytes, least_rate=least_rate)

        async def counted() -> AsyncGenerator[Buffer, None]:
            async with aclosing(transfer.chunks):
                async for chunk in transfer.chunks:
                    self._traffic.received(Channel.BULK.value, PREFIX_BYTES + len(chunk))
                    yield chunk

        return Transfer(transfer.total, counted(), abandon=transfer.abandon)

    async def _answer(self, requester: Actor, request: bytes) -> Transfer:
        detour = Detour.decode(request)
        if detour is not None:
            return await self._pass_on(requester, detour)
        passed_on = PassedOn.decode(request)
        if passed_on is not None:
            if requester not in self._guides:
                raise BulkError("only coordinators may forward requests of others")
            requester, request = passed_on.origin, passed_on.request
            if requester.peer in self._door.banned:
                raise BulkError(f"{requester.peer} was banned from the run")
        if self._handler is None:
            raise BulkError("this peer serves only the manifest")
        return await self._handler(requester, request)

    async def _pass_on(self, origin: Actor, detour: Detour) -> Transfer:
        """Forward a request to a peer that is connected here. Raises BulkError.

        Only coordinators do this, because only their links are known to be fast enough. They dial no peer for it, and
        do not forward a request that was forwarded before.
        """
        if self._role is not Role.COORDINATOR:
            raise BulkError("only coordinators forward requests")
        if Detour.decode(detour.request) or PassedOn.decode(detour.request):
            raise BulkError("a forwarded request cannot be forwarded again")
        if not self._dialler.connected(detour.peer):
            raise BulkError(f"{detour.peer} is not connected to this coordinator either")
        stream = await self._dialler.open(detour.peer, detour.incarnation, Channel.BULK)
        request = PassedOn(origin, detour.request).encode()
        return await self._ask(stream, request, bulk.DEFAULT_MAX_TRANSFER, bulk.LEAST_RATE)
