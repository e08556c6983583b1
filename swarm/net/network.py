"""The network as a driver sees it: learn actors, send them messages, be told what arrives and who is gone.

Every message travels on the stream of its channel, peer to peer. `send` never blocks. A driver may hold back a stream
(see `on_message`), which stops the sender's writer, not the sender; those of a run do not, since peers are sent what
they asked for. Whatever arrives is checked before it is delivered; what is refused is counted against its sender, and
the process lives on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from swarm.buffer import Buffer
from swarm.manifest import SignedManifest
from swarm.net import bulk, message_allowance
from swarm.net.bulk import (
    MAX_ADDRESS_ANSWERS,
    MAX_DETOURS,
    MAX_DETOURS_PER_PEER,
    MAX_SHOWN,
    MAX_SHOWN_PER_PEER,
    PROTOCOL,
    Answers,
    BulkError,
    BulkHandler,
    Registrar,
    Shown,
    Transfer,
)
from swarm.net.channel import channel_of, lanes_of
from swarm.net.detour import Detour, NoStraightWay, PassedOn, StraightWays
from swarm.net.dialler import Dialler
from swarm.net.door import Door
from swarm.net.handshake import OF_STRANGERS, Admission, Channel, Introduction, Refusal, Role
from swarm.net.host import Host
from swarm.net.link_rates import LinkRates
from swarm.net.links import Link, LinkEvents
from swarm.net.lobby import Crowded, Lobby
from swarm.net.message_allowance import MessageAllowance
from swarm.net.observer import NetworkObserver
from swarm.net.round_trips import RoundTrips
from swarm.net.stream import PREFIX_BYTES, Stream, StreamClosed
from swarm.net.uplink import Uplink
from swarm.net.wire import Decoder, payload_of
from swarm.net.wire_bounds import MAX_DATA_HEADER, MAX_HEADER, WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Attempt

MAX_STREAMS_PER_PEER = 64
"""Streams a peer may have open to us: five channels, and some bulk transfers at once."""
MAX_PONGS = 16
"""Messages that may wait on the way to somebody who is yet answered a ping."""
MOST_COUNTED = 4096
"""Actors whose bytes are counted apart, until that is asked."""
MAX_PASSED_ON = 256
"""Messages on one channel to one peer that others have passed on through us."""


@dataclass(frozen=True)
class Traffic:
    """Bytes by channel since the start, framing included, handshakes not."""

    sent: dict[str, int]
    received: dict[str, int]


class Network:
    """All links of one actor. `observer` is told in the loop: messages in order per sender and channel.

    `max_payload`: the largest payload a stranger can make this process allocate, bytes. `reconnect_grace_s`: how long
    a lost link keeps its messages. `uplink`: the limit of what may be sent, which others may share; None: no limit.
    `door`: judges who may speak to this actor. `certificate`: what it shows to others; empty: it is a coordinator.
    """

    def __init__(
        self,
        host: Host,
        me: Actor,
        door: Door,
        role: Role,
        observer: NetworkObserver,
        *,
        max_payload: int,
        reconnect_grace_s: float,
        manifest: SignedManifest | None = None,
        uplink: Uplink | None = None,
        certificate: bytes = b"",
    ) -> None:
        assert me.peer == host.peer_id, "an actor is named after its host"
        self.me = me
        self.manifest = manifest
        """Answered to whoever has a pass."""
        self.dropped: Counter[Actor] = Counter()
        """Messages that were given up because their actor could not be reached."""
        self.refused_frames: Counter[Actor] = Counter()
        self.admission = Admission(me, door, role)
        """Counts refused handshakes by reason, in `admission.refused`."""
        self.link_rates = LinkRates()
        """What comes in from whom, and how fast."""
        self.round_trips = RoundTrips(me)
        """How long those who were pinged took to answer."""
        self._host = host
        self._role = role
        self._observer = observer
        self._max_payload = max_payload
        self._reconnect_grace_s = reconnect_grace_s
        self._lanes = lanes_of(uplink)
        self._handler: BulkHandler | None = None
        self._registrar: Registrar | None = None
        self._shown: Shown | None = None
        self._answers = Answers()
        self._detours = Answers(at_most=MAX_DETOURS, per_peer=MAX_DETOURS_PER_PEER)
        self._address_answers = Answers(at_most=MAX_ADDRESS_ANSWERS)
        self._straight_ways = StraightWays()
        self._guides: tuple[Actor, ...] = ()
        self._links: dict[Actor, Link] = {}
        self._dialler = Dialler(host, me, door.run_hash, role, certificate, self._has_link)
        self._incoming: dict[tuple[Actor, Channel], Stream] = {}
        self._lobby = Lobby()
        self._allowance = MessageAllowance()
        self._admitted: dict[str, set[Stream]] = {}
        """Streams from others, of all channels, by peer id."""
        self._sent: Counter[Channel] = Counter()
        self._received: Counter[Channel] = Counter()
        self._sent_to: dict[Actor, Counter[Channel]] = {}
        """Since that was asked last."""

    # ------------------------------------------------------------ for the driver

    async def start(self) -> None:
        """Accept streams from now on."""
        await self._host.handle_streams(PROTOCOL, self._serve)

    def learn(self, actor: Actor, maddrs: Sequence[str] = ()) -> None:
        """Know an actor and where it can be dialled; nothing is opened yet.

        An actor without addresses, and without a connection, is dialled when they are learned.
        """
        link = self._link(actor)
        if maddrs and self._dialler.learn(actor.peer, maddrs):
            link.nudge()

    def dial(self, actor: Actor) -> None:
        """Reach an actor now, before there is anything to say."""
        self._link(actor).probe()

    def send(self, actor: Actor, message: m.Message) -> None:
        """Queue a message for an actor. Never blocks; dropped once the actor is lost for longer than the grace.

        What is asked for on a detour, but only waits for its turn on the straight way, is not sent twice. Of what is
        passed on for others only so much is held here; the rest is dropped, to be asked for again.
        """
        if actor.peer in self.admission.door.banned:
            self._drop(actor, 1, "it has no part in the run any more")
            return
        if isinstance(message, m.Relay):
            straight = self._links.get(message.destination)
            if straight is not None and straight.is_sending(message.message):
                return
            if message.origin != self.me and self._link(actor).waiting(message) >= MAX_PASSED_ON:
                self._drop(actor, 1, "too much is being passed on to it")
                return
        self._link(actor).send(message)

    def ping(self, actor: Actor) -> None:
        """Ask how long an actor takes to answer, if there is a way to it (`round_trips`)."""
        link = self._links.get(actor)
        if link is not None and link.open:
            link.send(self.round_trips.ping(actor))

    def take_sent(self, most: int) -> dict[Actor, tuple[int, ...]]:
        """Bytes to each actor since this was asked last, by LINK_KINDS: of those with most data, at most so many."""
        taken, self._sent_to = self._sent_to, {}
        sent = {actor: tuple(counts[channel] for channel in _BY_KIND) for actor, counts in taken.items()}
        largest = sorted(sent, key=lambda actor: (-sum(sent[actor][:-1]), -sent[actor][-1], actor))[:most]
        return {actor: sent[actor] for actor in largest}

    def withdraw(self, attempt: Attempt) -> None:
        """Own parts of an attempt to reduce, and of earlier ones of its stage, are void: none that waits is sent."""

        def void(message: m.Message) -> bool:
            part = message.message if isinstance(message, m.Relay) else message
            if not isinstance(part, m.ReducePart) or part.key.contributor != self.me:
                return False
            return attempt.ends(part.key.attempt)

        for link in self._links.values():
            link.withdraw(void)

    def why_lost(self, actor: Actor) -> str | None:
        """Why an actor cannot be reached at the moment; None when it can, or when nobody has tried."""
        link = self._links.get(actor)
        return None if link is None else link.lost

    def why_hopeless(self, actor: Actor) -> str | None:
        """Why an actor will never be reached again, as that it refuses us; None while it may be."""
        link = self._links.get(actor)
        return None if link is None else link.hopeless

    def forget(self, actor: Actor) -> None:
        """Close everything towards and from an actor. It may come back by itself."""
        link = self._links.pop(actor, None)
        if link is not None:
            link.close()
        for key in [key for key in self._incoming if key[0] == actor]:
            self._incoming.pop(key).abort()
        if not any(other.peer == actor.peer for other in self._links):
            self._dialler.forget(actor.peer)

    def forget_lost(self, after_s: float, keep: Collection[Actor]) -> list[Actor]:
        """Forget who was out of reach for so long, and is not in `keep`: nobody is dialled for ever. Returns who."""
        long_ago = asyncio.get_running_loop().time() - after_s
        gone = [a for a, link in self._links.items() if a not in keep and link.lost_since() <= long_ago]
        for actor in gone:
            self.forget(actor)
        return gone

    def serve(self, handler: BulkHandler) -> None:
        """Have `handler(requester, request)` answer bulk requests; it raises BulkError to refuse."""
        self._handler = handler

    def register(self, registrar: Registrar) -> None:
        """Have `registrar` make the certificates that guests ask for; it raises BulkError to refuse."""
        self._registrar = registrar

    def show(self, handler: BulkHandler) -> None:
        """Have `handler(observer, request)` answer observers; it raises BulkError to refuse by name."""
        self._shown = Shown(handler, Answers(at_most=MAX_SHOWN, per_peer=MAX_SHOWN_PER_PEER))

    def shut_out(self, banned: Mapping[str, str]) -> None:
        """These peers, and no others, have no part in the run: {peer id: why}. All that is open to and from them is
        closed at once, and nothing is opened again.
        """
        door = self.admission.door
        newly = banned.keys() - door.banned.keys()
        door.banned = dict(banned)
        for actor in [actor for actor in self._links if actor.peer in newly]:
            self.forget(actor)
        self._host.shut_out(banned)
        for peer in newly:
            for stream in self._admitted.get(peer, ()):
                stream.abort()

    def favour(self, peer_ids: Iterable[str]) -> None:
        """Answer these peers' bulk requests however many others are being answered."""
        self._answers.favoured = frozenset(peer_ids)

    def go_round_by(self, guides: Iterable[Actor]) -> None:
        """Have these coordinators pass on bulk requests to those who cannot be reached, and those of others to us."""
        self._guides = tuple(guides)

    async def fetch(
        self,
        who: Actor | str,
        request: bytes,
        max_bytes: int = bulk.DEFAULT_MAX_TRANSFER,
        least_rate: float = bulk.LEAST_RATE,
    ) -> Transfer:
        """Ask an actor, or whatever incarnation a peer id has, for bulk data. The limits are those of bulk.request.

        Raises BulkError (its chunks too), DialError, Refused, StreamClosed, TimeoutError.
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

    async def _go_round(self, why: NoStraightWay, detour: Detour, max_bytes: int, least_rate: float) -> Transfer:
        failed = "none is known"
        for guide in self._guides:
            if guide.peer == detour.peer:
                continue
            try:
                stream = await self._dialler.open(guide.peer, guide.incarnation, Channel.BULK)
                return await self._ask(stream, detour.encode(), max_bytes, least_rate)
            except (ConnectionError, TimeoutError) as error:
                failed = str(error) or "no answer"
        raise BulkError(f"{why}; and not through a coordinator: {failed}")

    async def _ask(self, stream: Stream, request: bytes, max_bytes: int, least_rate: float) -> Transfer:
        transfer = await bulk.request(stream, request, max_bytes, least_rate=least_rate)

        async def counted() -> AsyncGenerator[Buffer, None]:
            async with aclosing(transfer.chunks):
                async for chunk in transfer.chunks:
                    self._received[Channel.BULK] += PREFIX_BYTES + len(chunk)
                    yield chunk

        return Transfer(transfer.total, counted(), abandon=transfer.abandon)

    def traffic(self) -> Traffic:
        sent = {channel.value: self._sent[channel] for channel in Channel}
        return Traffic(sent, {channel.value: self._received[channel] for channel in Channel})

    async def close(self) -> None:
        """Close every stream; hellos are refused from now on. The host lives on."""
        self.admission.closing = True
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        await asyncio.gather(*(link.closed() for link in links))
        for stream in self._incoming.values():
            stream.abort()

    # ------------------------------------------------------------ towards others

    def _link(self, actor: Actor) -> Link:
        link = self._links.get(actor)
        if link is None:
            events = LinkEvents(
                up=self._observer.link_up,
                lost=self._observer.link_lost,
                broke=self._observer.stream_broken,
                unsendable=lambda to, message, error: self._refuse(self.me, f"to {to}: {error}"),
                sent=partial(self._count, actor),
                dropped=self._drop,
                undelivered=self._observer.undelivered,
            )

            reach = partial(self._dialler.reach, actor)
            link = self._links[actor] = Link(self.me, actor, reach, events, self._reconnect_grace_s, self._lanes)
        return link

    def _count(self, actor: Actor, channel: Channel, nbytes: int) -> None:
        self._sent[channel] += nbytes
        counts = self._sent_to.get(actor)
        if counts is None:
            if len(self._sent_to) >= MOST_COUNTED:
                return  # nobody asks
            counts = self._sent_to[actor] = Counter()
        counts[channel] += nbytes

    def _has_link(self, peer_id: str) -> bool:
        return any(actor.peer == peer_id and link.open for actor, link in self._links.items())

    def _drop(self, actor: Actor, count: int, reason: str) -> None:
        self.dropped[actor] += count
        self._observer.dropped(actor, count, reason)

    # ------------------------------------------------------------ from others

    async def _serve(self, stream: Stream, remote_peer: str) -> None:
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
                else:
                    self._observer.peer_refused(remote_peer, refused)
                return
            await self._use(verdict, message_allowance.OPENED)
            if verdict.channel is Channel.CONTROL:
                self._host.protect(remote_peer)
            self._admitted.setdefault(remote_peer, set()).add(stream)
            if verdict.role not in (Role.GUEST, Role.OBSERVER):
                self._supersede(verdict.sender)
            if verdict.channel is Channel.BULK:
                lanes = self._lanes[Channel.BULK], self._lanes[Channel.REDUCE]
                sent = await bulk.answer(
                    stream,
                    verdict,
                    self.manifest,
                    self._answer,
                    self._answers,
                    *lanes,
                    detours=self._detours,
                    addresses=self._address_answers,
                    registrar=self._registrar,
                    shown=self._shown,
                )
                self._count(verdict.sender, Channel.BULK, sent)
            else:
                await self._receive(stream, verdict)
        except WireError as error:
            self.admission.refused[Refusal.MALFORMED] += 1
            self._observer.stranger_refused(remote_peer, f"{Refusal.MALFORMED.value}: {error}")
        except Crowded as error:
            self._observer.stranger_refused(remote_peer, str(error))
        except (StreamClosed, TimeoutError):
            pass  # who opened it has gone or says nothing
        finally:
            self._dialler.went(remote_peer)
            if (streams := self._admitted.get(remote_peer)) is not None:
                streams.discard(stream)
                if not streams:
                    del self._admitted[remote_peer]

    async def _introduced(self, stream: Stream, remote_peer: str) -> Introduction | tuple[Refusal, str]:
        """The verdict on the first words of a stream. Members' streams do not wait among those of strangers."""
        if remote_peer in self._admitted:
            return await self.admission.receive(stream, remote_peer)
        with self._lobby.waits(stream, remote_peer):
            return await self.admission.receive(stream, remote_peer)

    async def _answer(self, requester: Actor, request: bytes) -> Transfer:
        detour = Detour.decode(request)
        if detour is not None:
            return await self._pass_on(requester, detour)
        passed_on = PassedOn.decode(request)
        if passed_on is not None:
            if requester not in self._guides:
                raise BulkError("only coordinators ask for others")
            requester, request = passed_on.origin, passed_on.request
            if requester.peer in self.admission.door.banned:
                raise BulkError(f"{requester.peer} has no part in the run any more")
        if self._handler is None:
            raise BulkError("this peer serves nothing but the manifest")
        return await self._handler(requester, request)

    async def _pass_on(self, origin: Actor, detour: Detour) -> Transfer:
        """A coordinator's business: of all others nobody knows that their lines bear it. And only to who is there:
        nobody is dialled for others, and no request goes round twice.
        """
        if self._role is not Role.COORDINATOR:
            raise BulkError("only coordinators pass requests on")
        if Detour.decode(detour.request) or PassedOn.decode(detour.request):
            raise BulkError("a request that was passed on is not passed on again")
        if not self._dialler.connected(detour.peer):
            raise BulkError(f"{detour.peer} is not connected here either")
        stream = await self._dialler.open(detour.peer, detour.incarnation, Channel.BULK)
        request = PassedOn(origin, detour.request).encode()
        return await self._ask(stream, request, bulk.DEFAULT_MAX_TRANSFER, bulk.LEAST_RATE)

    async def _use(self, opener: Introduction, points: float) -> None:
        """Count points of the opener and its pass, and wait while either has used too many."""
        wait_s = self._allowance.use(opener.sender.peer, opener.serial, points, asyncio.get_running_loop().time())
        if wait_s:
            self._observer.member_slowed(opener.sender, wait_s)
            await asyncio.sleep(wait_s)

    async def _receive(self, stream: Stream, opener: Introduction) -> None:
        sender, channel = opener.sender, opener.channel
        key = (sender, channel)
        older = self._incoming.get(key)
        self._incoming[key] = stream
        if older is not None:
            older.abort()
        link = self._links.get(sender)  # not made here: who is neither learned nor spoken to is nobody's business
        if link is not None:
            link.nudge()
        control = channel is Channel.CONTROL
        limits = (MAX_HEADER, 0) if control else (MAX_DATA_HEADER, self._max_payload)
        decoder = Decoder(sender, self.me)
        try:
            while True:
                try:
                    header, payload = await stream.read_frame(*limits)
                except WireError as error:  # the framing itself is void: nothing after it can be trusted
                    self._refuse(sender, str(error))
                    return
                self._received[channel] += PREFIX_BYTES + len(header) + len(payload)
                try:
                    message = decoder.decode(header, payload)
                    self._check(sender, message, channel)
                except ValueError as error:
                    self._refuse(sender, str(error))
                    await self._use(opener, message_allowance.REFUSED)
                    continue
                if control:
                    await self._use(opener, message_allowance.MESSAGE + len(header) / 1024)
                self.link_rates.arrived(sender, len(payload), stream.payload_s)
                if self._incoming.get(key) is not stream:
                    return
                if isinstance(message, m.Ping | m.Pong):
                    self._on_ping(sender, message)
                    continue
                waiting = self._observer.message(sender, message)
                if waiting is not None:
                    await waiting
        except StreamClosed:
            pass
        finally:
            if self._incoming.get(key) is stream:
                del self._incoming[key]
                link = self._links.get(sender)
                if control and link is not None:
                    link.probe()

    def _on_ping(self, sender: Actor, message: m.Ping | m.Pong) -> None:
        if isinstance(message, m.Pong):
            self.round_trips.answered(sender, message.number)
            return
        link, pong = self._links.get(sender), m.Pong(message.number)
        if link is not None and link.open and link.waiting(pong) < MAX_PONGS:
            link.send(pong)

    def _check(self, sender: Actor, message: m.Message, channel: Channel) -> None:
        if channel_of(message) is not channel:
            raise WireError(f"a {type(message).__name__} does not belong on the {channel.value} channel")
        claimed = _in_whose_name(sender, message, self.me)
        if claimed != sender:
            raise WireError(f"a {type(message).__name__} in the name of {claimed}")
        if isinstance(message, m.Relay) and message.destination != self.me:
            return  # its own stage judges the payload
        if payload_of(message) is not None:
            inner = message.message if isinstance(message, m.Relay) else message
            assert isinstance(inner, m.WithPayload)
            self._observer.check_frame(inner)

    def _supersede(self, newcomer: Actor) -> None:
        """Older incarnations of the newcomer's peer are gone: their process was restarted."""

        def older(actor: Actor) -> bool:
            return actor.peer == newcomer.peer and actor.incarnation < newcomer.incarnation

        for actor in filter(older, list(self._links)):
            self._links[actor].give_up(f"restarted as incarnation {newcomer.incarnation}")
        for key in [key for key in self._incoming if older(key[0])]:
            self._incoming.pop(key).abort()

    def _refuse(self, sender: Actor, reason: str) -> None:
        self.refused_frames[sender] += 1
        self._observer.frame_refused(sender, reason, self.refused_frames[sender])


_BY_KIND = (Channel.ACTIVATION, Channel.GRADIENT, Channel.REDUCE, Channel.BULK, Channel.CONTROL)
"""As LINK_KINDS."""


def _in_whose_name(sender: Actor, message: m.Message, me: Actor) -> Actor:
    """The actor a message speaks for. What comes over a sibling is taken on the sibling's word."""
    match message:
        case m.Join(actor=actor) | m.Status(actor=actor) | m.Leave(actor=actor) | m.Telemetry(actor=actor):
            return actor
        case m.ReducePart(key=key):
            return key.contributor
        case m.Relay(origin=origin, message=m.ReducePart(key=key)) if key.contributor != origin:
            return key.contributor
        case m.Relay(origin=origin, destination=destination) if destination != me:
            return origin
        case _:
            return sender
