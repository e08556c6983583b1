"""The network of one actor: it sends messages to other actors, delivers theirs, and reports lost connections.

Every message travels from peer to peer on the stream of its channel. `send` never blocks. The observer may delay the
reading of a stream (see `NetworkObserver.message`); this blocks the writing task of the sender, not the sender itself.
The drivers of a run never do this, because peers are sent only what they have requested. Incoming messages are checked
before they are delivered. A refused message is counted against its sender, and this process continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from swarm.manifest import SignedManifest
from swarm.net import message_allowance
from swarm.net.bulk import PROTOCOL
from swarm.net.bulk_exchange import BulkExchange
from swarm.net.channel import channel_of, lanes_of
from swarm.net.dialler import Dialler
from swarm.net.door import Door
from swarm.net.handshake import OF_STRANGERS, Admission, Channel, Introduction, Refusal, Role
from swarm.net.host import Host
from swarm.net.incumbents import Incumbents
from swarm.net.link_rates import LinkRates
from swarm.net.links import Link, LinkEvents
from swarm.net.lobby import Crowded, Lobby
from swarm.net.message_allowance import MessageAllowance
from swarm.net.observer import NetworkObserver
from swarm.net.relaying import Relaying
from swarm.net.round_trips import RoundTrips
from swarm.net.showing_out import ShowingOut
from swarm.net.stream import PREFIX_BYTES, Stream, StreamClosed
from swarm.net.traffic import TrafficMeter
from swarm.net.unfinished_frames import LOOK_EVERY_S, UnfinishedFrames
from swarm.net.uplink import Uplink
from swarm.net.wire import Decoder, payload_of
from swarm.net.wire_bounds import MAX_DATA_HEADER, MAX_HEADER, WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor, Attempt

MAX_STREAMS_PER_PEER = 64
"""Largest number of streams that a peer may have open to us: five channels, and some simultaneous bulk transfers."""
MAX_PONGS = 16
"""A ping is answered only while fewer messages than this are queued for its sender."""
LAST_WORD_S = 3.0
"""Longest time that a process waits at its end until its last messages are read."""


class Network:
    """All links of one actor.

    `observer`: called in the event loop; it gets the messages of one sender and channel in order. `max_payload`:
    largest accepted payload, bytes; no sender can make this process allocate more at once. `reconnect_grace_s`: seconds
    for which a lost link keeps its messages. `step_s`: seconds that a step of the run may take, see
    `Stream.read_frame`. `uplink`: the rate limit, which may be shared with other parts of the program; None: no limit.
    `door`: the access control. `certificate`: of this actor. A coordinator shows its process card instead.
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
        step_s: float,
        manifest: SignedManifest | None = None,
        uplink: Uplink | None = None,
        certificate: bytes = b"",
    ) -> None:
        assert me.peer == host.peer_id, "an actor is named after its host"
        self.me = me
        self.dropped: Counter[Actor] = Counter()
        """Number of messages that were dropped because the actor could not be reached."""
        self.refused_frames: Counter[str] = Counter()
        """Number of refused frames of each peer id, whatever incarnations it claims."""
        self.admission = Admission(me, door, role)
        """Checks handshakes; `admission.refused` counts the refused ones by reason."""
        self.link_rates = LinkRates()
        """Measured rates of the incoming links."""
        self.round_trips = RoundTrips()
        """Measured round-trip times of the actors that were pinged."""
        self.traffic = TrafficMeter()
        """Bytes sent and received on all channels."""
        self._host = host
        self._observer = observer
        self._max_payload = max_payload
        self._step_s = step_s
        self._reconnect_grace_s = reconnect_grace_s
        self._lanes = lanes_of(uplink)
        self._links: dict[Actor, Link] = {}
        self._relaying = Relaying(me, host.identity, door.run_hash, self._links)
        self._dialler = Dialler(host, me, door.run_hash, role, certificate, self._has_link)
        self.bulk = BulkExchange(self._dialler, door, role, self._lanes, self.traffic, manifest)
        """Bulk transfers, in both directions."""
        self._incoming: dict[tuple[Actor, Channel], Stream] = {}
        self._heard_at: dict[Actor, float] = {}
        """For each actor whose control channel to us is open: when its last message came, by time.monotonic."""
        incumbents = Incumbents(self._last_heard, self._ask_for_a_sign, time.monotonic)
        self.admission.is_at_work = incumbents.at_work
        self._pong = asyncio.Event()
        """Set when a ping is answered, or a stream breaks."""
        self._lobby = Lobby()
        self._showing_out = ShowingOut(host.disconnect, self._is_known)
        self._unfinished = UnfinishedFrames(max_payload)
        self._look: asyncio.TimerHandle | None = None
        self._allowance = MessageAllowance()
        self._admitted: dict[str, set[Stream]] = {}
        """Accepted incoming streams of all channels, by peer id."""

    # ------------------------------------------------------------ for the driver

    async def start(self) -> None:
        """Accept streams from now on."""
        await self._host.handle_streams(PROTOCOL, self._serve)
        self._host.flood_guard.on_flood = self._observer.flooded
        self._look_at_unfinished()

    def learn(self, actor: Actor, maddrs: Sequence[str] = ()) -> None:
        """Register an actor and its addresses; this opens no connection.

        If messages already wait for an actor without addresses, it is dialled when its addresses are learned.
        """
        link = self._link(actor)
        if maddrs and self._dialler.learn(actor.peer, maddrs):
            link.nudge()

    def dial(self, actor: Actor) -> None:
        """Connect to an actor now, before there is a message for it."""
        self._link(actor).probe()

    def send(self, actor: Actor, message: m.Message) -> None:
        """Queue a message for an actor; never blocks.

        It is dropped if the actor is lost for longer than the grace period. A relayed message is not sent if the same
        message is already queued on the direct link to its destination. If too many messages of others are queued (see
        `relaying`), further ones are dropped, and are requested again.
        """
        if actor.peer in self.admission.door.banned:
            self._drop(actor, 1, "it was banned from the run")
            return
        if isinstance(message, m.Relay):
            if self._relaying.is_needless(message):
                return
            if not self._relaying.has_room_for(actor, message):
                self._drop(actor, 1, "too many relayed messages are queued")
                return
            try:
                message = self._relaying.signed(message)
            except WireError as error:
                self._refuse(self.me, f"to {message.destination}: {error}")
                return
        self._link(actor).send(message)

    def ping(self, actor: Actor) -> None:
        """Measure the round-trip time to an actor, if a stream to it is open; see `round_trips`."""
        link = self._links.get(actor)
        if link is not None and link.open:
            link.send(self.round_trips.ping(actor))

    def pad(self, actor: Actor, kind: int, nbytes: int) -> None:
        """Send padding before data of this kind (see `Padding`), if a stream to the actor is open."""
        link = self._links.get(actor)
        if link is None or not link.open:
            return
        for start in range(0, nbytes, m.MAX_FILLER):
            link.send(m.Padding(kind, bytes(min(m.MAX_FILLER, nbytes - start))))

    def withdraw(self, attempt: Attempt) -> None:
        """Drop our own queued parts of a reduction attempt, and of earlier attempts of its stage."""

        def void(message: m.Message) -> bool:
            part = message.message if isinstance(message, m.Relay) else message
            if not isinstance(part, m.ReducePart) or part.key.contributor != self.me:
                return False
            return attempt.ends(part.key.attempt)

        for link in self._links.values():
            link.withdraw(void)

    def why_lost(self, actor: Actor) -> str | None:
        """The reason why an actor cannot be reached now; None if it can, or if it was never dialled."""
        link = self._links.get(actor)
        return None if link is None else link.lost

    def why_hopeless(self, actor: Actor) -> str | None:
        """The reason why an actor will never be reached again, for example that it refuses us; None otherwise."""
        link = self._links.get(actor)
        return None if link is None else link.hopeless

    @property
    def connected(self) -> bool:
        """Whether a stream to any actor is open."""
        return any(link.open for link in self._links.values())

    def on_rival(self, heard: Callable[[str, bytes], None]) -> None:
        """Have `heard(peer id, sealed card)` called when that peer refuses us for another process with our key. The
        card is not verified.
        """
        self._dialler.on_rival = heard

    def forget(self, actor: Actor) -> None:
        """Close all streams to and from an actor. The actor may connect again."""
        link = self._links.pop(actor, None)
        if link is not None:
            link.close()
        for key in [key for key in self._incoming if key[0] == actor]:
            self._incoming.pop(key).abort()
        if not any(other.peer == actor.peer for other in self._links):
            self._dialler.forget(actor.peer)

    def forget_lost(self, after_s: float, keep: Collection[Actor]) -> list[Actor]:
        """Forget the actors that are lost for `after_s` seconds or more, so that they are not dialled for ever.

        Actors in `keep` are not forgotten. Returns the forgotten actors.
        """
        long_ago = asyncio.get_running_loop().time() - after_s
        gone = [a for a, link in self._links.items() if a not in keep and link.lost_since() <= long_ago]
        for actor in gone:
            self.forget(actor)
        return gone

    def shut_out(self, banned: Mapping[str, str]) -> None:
        """Set the banned peers: {peer id: reason}.

        Streams to and from them are closed at once, and none is opened again. The list replaces the previous one.
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

    async def until_read(self, actors: Collection[Actor], within_s: float = LAST_WORD_S) -> None:
        """Wait until these actors have read what was sent to them on the control channel, for `within_s` seconds at
        most. Actors that are not connected are not waited for.

        Call it before `close`, which drops what is still queued or on its way through the libp2p daemon.
        """
        pings = {}
        for actor in actors:
            link = self._links.get(actor)
            if link is not None and link.open:
                link.send(ping := self.round_trips.ping(actor))
                pings[link] = ping.number
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(link.open and self.round_trips.is_open(number) for link, number in pings.items()):
                    self._pong.clear()
                    await self._pong.wait()

    async def close(self) -> None:
        """Close every stream and refuse further Hellos. The host stays open."""
        self.admission.closing = True
        self._showing_out.close()
        if self._look is not None:
            self._look.cancel()
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
                broke=self._broke,
                unsendable=lambda to, message, error: self._refuse(self.me, f"to {to}: {error}"),
                sent=partial(self.traffic.sent, actor),
                dropped=self._drop,
                undelivered=self._observer.undelivered,
            )

            reach = partial(self._dialler.reach, actor)
            link = self._links[actor] = Link(self.me, actor, reach, events, self._reconnect_grace_s, self._lanes)
        return link

    def _has_link(self, peer_id: str) -> bool:
        return any(actor.peer == peer_id and link.open for actor, link in self._links.items())

    def _is_known(self, peer_id: str) -> bool:
        """Whether a peer has any business with us: we have accepted it, or it has accepted us, or we dial it."""
        return peer_id in self._admitted or any(actor.peer == peer_id for actor in self._links)

    def _broke(self, actor: Actor, channel: Channel, reason: str) -> None:
        self._pong.set()  # no answer will come
        self._observer.stream_broken(actor, channel, reason)

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
                    self._showing_out.soon(remote_peer)
                else:
                    self._observer.peer_refused(remote_peer, refused)
                return
            await self._use(verdict, message_allowance.OPENED)
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
                await self.bulk.answer(stream, verdict)
            else:
                with self._unfinished.reads(stream, verdict.sender, verdict.serial):
                    await self._receive(stream, verdict)
        except WireError as error:
            self.admission.refused[Refusal.MALFORMED] += 1
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

    async def _introduced(self, stream: Stream, remote_peer: str) -> Introduction | tuple[Refusal, str]:
        """The result of the handshake on a stream. Streams of peers that are already admitted bypass the lobby."""
        if remote_peer in self._admitted:
            return await self.admission.receive(stream, remote_peer)
        with self._lobby.waits(stream, remote_peer):
            return await self.admission.receive(stream, remote_peer)

    async def _use(self, opener: Introduction, points: float) -> None:
        """Charge points to the opener and its pass, and wait while the allowance of either is used up."""
        await self._wait(opener, self._allowance.use(opener.sender.peer, opener.serial, points, self._now))

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _wait(self, opener: Introduction, wait_s: float) -> None:
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
        link = self._links.get(sender)  # do not create one: an unknown actor's messages need no link in return
        if link is not None:
            link.nudge()
        control = channel is Channel.CONTROL
        if control:
            self._heard_at[sender] = time.monotonic()
        limits = (MAX_HEADER, 0) if control else (MAX_DATA_HEADER, self._max_payload)
        decoder = Decoder(sender, self.me)
        try:
            while True:
                try:
                    header, payload = await stream.read_frame(*limits, self._step_s)
                except WireError as error:  # the framing is invalid, so the rest of the stream cannot be decoded
                    self._refuse(sender, str(error))
                    return
                self.traffic.received(channel, PREFIX_BYTES + len(header) + len(payload))
                try:
                    message = decoder.decode(header, payload)
                    self._check(sender, message, channel)
                except ValueError as error:
                    self._refuse(sender, str(error))
                    await self._use(opener, message_allowance.cost_of_refused(len(payload)))
                    continue
                if control:
                    self._heard_at[sender] = time.monotonic()
                if control or (isinstance(message, m.Relay) and message.origin == sender):
                    await self._use(opener, message_allowance.cost_of(len(header), decoder.parts))
                elif isinstance(message, m.Padding):
                    await self._use(opener, message_allowance.cost_of_useless(len(header)))
                elif isinstance(message, m.WithPayload) and not self._observer.expects(sender, message):
                    await self._use(opener, message_allowance.cost_of_useless(len(payload)))
                self.link_rates.arrived(sender, len(payload), stream.payload_s)
                if self._incoming.get(key) is not stream:
                    return
                if isinstance(message, m.Padding):
                    continue
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
                if control:
                    self._heard_at.pop(sender, None)
                if control and link is not None:
                    link.probe()

    def _look_at_unfinished(self) -> None:
        for sender in self._unfinished.look(self._now):
            self._refuse(sender, "it arrives slowly, and all slow frames from its pass take too much memory")
        self._look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_at_unfinished)

    def _on_ping(self, sender: Actor, message: m.Ping | m.Pong) -> None:
        if isinstance(message, m.Pong):
            self.round_trips.answered(sender, message.number)
            self._pong.set()
            return
        link, pong = self._links.get(sender), m.Pong(message.number)
        if link is not None and link.open and link.waiting(pong) < MAX_PONGS:
            link.send(pong)

    def _check(self, sender: Actor, message: m.Message, channel: Channel) -> None:
        if channel_of(message) is not channel:
            raise WireError(f"a {type(message).__name__} is not allowed on the {channel.value} channel")
        claimed = self._author(message, sender)
        if claimed != sender:
            raise WireError(f"a {type(message).__name__} was sent in the name of another actor, {claimed}")
        if isinstance(message, m.Relay):
            if message.destination != self.me:
                return  # its destination checks the signature and the payload
            self._relaying.check(message)
        if payload_of(message) is not None:
            inner = message.message if isinstance(message, m.Relay) else message
            assert isinstance(inner, m.WithPayload)
            self._observer.check_frame(inner)

    def _author(self, message: m.Message, sender: Actor) -> Actor:
        """The actor that must have sent a message."""
        match message:
            case m.Join(actor=actor) | m.Status(actor=actor) | m.Leave(actor=actor) | m.Telemetry(actor=actor):
                return actor
            case m.ReducePart(key=key):
                return key.contributor
            case m.Relay():
                return self._relaying.author(message, sender)
            case _:
                return sender

    def _supersede(self, newcomer: Actor) -> None:
        """Give up the older incarnations of a peer, because a newer one has connected: the process was restarted."""

        def older(actor: Actor) -> bool:
            return actor.peer == newcomer.peer and actor.incarnation < newcomer.incarnation

        for actor in filter(older, list(self._links)):
            self._links[actor].give_up(f"restarted as incarnation {newcomer.incarnation}")
        for key in [key for key in self._incoming if older(key[0])]:
            self._incoming.pop(key).abort()

    def _last_heard(self, coordinator: str) -> float | None:
        return self._heard_at.get(Actor(coordinator, COORDINATOR_INCARNATION))

    def _ask_for_a_sign(self, coordinator: str) -> None:
        self.ping(Actor(coordinator, COORDINATOR_INCARNATION))

    def _start_anew(self, coordinator: Actor, only: Stream) -> None:
        """Close all streams from and to a coordinator except one, because they lead to an older process of it."""
        for stream in self._admitted.get(coordinator.peer, ()):
            if stream is not only:
                stream.abort()
        if (link := self._links.get(coordinator)) is not None:
            link.reopen()

    def _refuse(self, sender: Actor, reason: str) -> None:
        self.refused_frames[sender.peer] += 1
        self._observer.frame_refused(sender, reason, self.refused_frames[sender.peer])
