"""The reception of one actor: it admits or refuses the streams that others open to it.

An admitted stream carries messages, which go to the inbox, or one bulk request, which goes to the bulk exchange. The
connection of a stranger is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from swarm.net import message_allowance
from swarm.net.bulk_exchange import BulkExchange
from swarm.net.dialler import Dialler
from swarm.net.handshake import OF_STRANGERS, Admission, Channel, Introduction, Refusal, Role
from swarm.net.host import Host
from swarm.net.inbox import Inbox
from swarm.net.links import Link
from swarm.net.lobby import Crowded, Lobby
from swarm.net.message_allowance import MessageAllowance
from swarm.net.observer import NetworkObserver
from swarm.net.showing_out import ShowingOut
from swarm.net.stream import Stream, StreamClosed
from swarm.net.wire_bounds import WireError
from swarm.protocol.ids import Actor

MAX_STREAMS_PER_PEER = 64
"""Largest number of streams that a peer may have open to us: five channels, and some simultaneous bulk transfers."""


class Reception:
    """The incoming streams of one actor. `links`: the actor's links, which their owner changes."""

    def __init__(
        self,
        host: Host,
        admission: Admission,
        observer: NetworkObserver,
        dialler: Dialler,
        links: Mapping[Actor, Link],
        inbox: Inbox,
        bulk: BulkExchange,
    ) -> None:
        self._host = host
        self._admission = admission
        self._observer = observer
        self._dialler = dialler
        self._links = links
        self._inbox = inbox
        self._bulk = bulk
        self._lobby = Lobby()
        self._showing_out = ShowingOut(host.disconnect, self._is_known)
        self._allowance = MessageAllowance()
        self._admitted: dict[str, set[Stream]] = {}
        """Accepted incoming streams of all channels, by peer id."""

    async def serve(self, stream: Stream, remote_peer: str) -> None:
        """Read the Hello on a new stream and answer it. If it is accepted, serve the stream until it ends."""
        if self._dialler.streams[remote_peer] >= MAX_STREAMS_PER_PEER:
            self._observer.peer_refused(remote_peer, f"more than {MAX_STREAMS_PER_PEER} streams at once")
            return
        self._dialler.came(remote_peer)
        try:
            verdict = await self._introduced(stream, remote_peer)
            if not isinstance(verdict, Introduction):
                refusal, reason = verdict
                refused = f"{refusal.value}: {reason}"
                if refusal in OF_STRANGERS:
                    self._observer.stranger_refused(remote_peer, refused)
                    self._showing_out.soon(remote_peer)
                else:
                    self._observer.peer_refused(remote_peer, refused)
                return
            await self._charge(verdict, message_allowance.OPENED)
            if verdict.restarted:
                await self._wait(verdict, self._allowance.restart(remote_peer, verdict.serial, self._now))
            if verdict.channel is Channel.CONTROL:
                self._host.protect(remote_peer)
            self._admitted.setdefault(remote_peer, set()).add(stream)
            if verdict.role not in (Role.GUEST, Role.OBSERVER):
                self._supersede(verdict.sender)
            if verdict.replaces:
                self._start_anew(verdict.sender, stream)
            if verdict.channel is Channel.BULK:
                await self._bulk.answer(stream, verdict)
            else:
                await self._inbox.receive(stream, verdict, partial(self._charge, verdict))
        except WireError as error:
            self._admission.refused[Refusal.MALFORMED] += 1
            self._observer.stranger_refused(remote_peer, f"{Refusal.MALFORMED.value}: {error}")
            self._showing_out.now(remote_peer)
        except Crowded as error:
            self._observer.stranger_refused(remote_peer, str(error))
            self._showing_out.now(remote_peer)
        except TimeoutError:
            self._showing_out.now(remote_peer)  # it sends nothing
        except StreamClosed:
            pass
        finally:
            self._dialler.went(remote_peer)
            if (streams := self._admitted.get(remote_peer)) is not None:
                streams.discard(stream)
                if not streams:
                    del self._admitted[remote_peer]

    def abort(self, peer_id: str) -> None:
        """Abort all admitted streams of a peer."""
        for stream in self._admitted.get(peer_id, ()):
            stream.abort()

    def close(self) -> None:
        """Refuse further Hellos. The admitted streams stay open."""
        self._admission.closing = True
        self._showing_out.close()

    async def _introduced(self, stream: Stream, remote_peer: str) -> Introduction | tuple[Refusal, str]:
        """The result of the handshake on a stream. Streams of peers that are already admitted bypass the lobby."""
        if remote_peer in self._admitted:
            return await self._admission.receive(stream, remote_peer)
        with self._lobby.waits(stream, remote_peer):
            return await self._admission.receive(stream, remote_peer)

    async def _charge(self, opener: Introduction, points: float) -> None:
        """Charge points to the opener and its pass, and wait while the allowance of either is used up."""
        await self._wait(opener, self._allowance.use(opener.sender.peer, opener.serial, points, self._now))

    async def _wait(self, opener: Introduction, wait_s: float) -> None:
        if wait_s:
            self._observer.member_slowed(opener.sender, wait_s)
            await asyncio.sleep(wait_s)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _is_known(self, peer_id: str) -> bool:
        """Whether a peer has any business with us: we have accepted it, or it has accepted us, or we dial it."""
        return peer_id in self._admitted or any(actor.peer == peer_id for actor in self._links)

    def _supersede(self, newcomer: Actor) -> None:
        """Give up the older incarnations of a peer, because a newer one has connected: the process was restarted."""

        def older(actor: Actor) -> bool:
            return actor.peer == newcomer.peer and actor.incarnation < newcomer.incarnation

        for actor in filter(older, list(self._links)):
            self._links[actor].give_up(f"restarted as incarnation {newcomer.incarnation}")
        self._inbox.abort(older)

    def _start_anew(self, coordinator: Actor, only: Stream) -> None:
        """Close all streams from and to a coordinator except one, because they lead to an older process of it."""
        for stream in self._admitted.get(coordinator.peer, ()):
            if stream is not only:
                stream.abort()
        if (link := self._links.get(coordinator)) is not None:
            link.reopen()
