"""The network of one actor: it sends messages to other actors, delivers theirs, and reports lost connections.

It keeps the links to others. The reception (reception.py) admits their streams, and the inbox (inbox.py) reads the
messages on them.

Every message travels from peer to peer on the stream of its channel. `send` never blocks. The observer may delay the
reading of a stream (see `NetworkObserver.message`); this blocks the writing task of the sender, not the sender itself.
The drivers of a run never do this, because peers are sent only what they have requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from swarm.manifest import SignedManifest
from swarm.net.bulk import PROTOCOL
from swarm.net.bulk_exchange import BulkExchange
from swarm.net.channel import lanes_of
from swarm.net.dialler import Dialler
from swarm.net.door import Door
from swarm.net.handshake import Admission, Channel, Role
from swarm.net.host import Host
from swarm.net.inbox import Inbox
from swarm.net.incumbents import Incumbents
from swarm.net.links import Link, LinkEvents
from swarm.net.observer import NetworkObserver
from swarm.net.reception import Reception
from swarm.net.relaying import Relaying
from swarm.net.round_trips import RoundTrips
from swarm.net.traffic import TrafficMeter
from swarm.net.uplink import Uplink
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor, Attempt

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
        self.admission = Admission(me, door, role)
        """Checks handshakes; `admission.refused` counts the refused ones by reason."""
        self.round_trips = RoundTrips()
        """Measured round-trip times of the actors that were pinged."""
        self.traffic = TrafficMeter()
        """Bytes sent and received on all channels."""
        self._host = host
        self._observer = observer
        self._reconnect_grace_s = reconnect_grace_s
        self._lanes = lanes_of(uplink)
        self._links: dict[Actor, Link] = {}
        self._relaying = Relaying(me, host.identity, door.run_hash, self._links)
        self._dialler = Dialler(host, me, door.run_hash, role, certificate, self._has_link)
        self.bulk = BulkExchange(self._dialler, door, role, self._lanes, self.traffic, manifest)
        """Bulk transfers, in both directions."""
        self._inbox = Inbox(
            me,
            observer,
            self._links,
            self._relaying,
            self.traffic,
            self._on_ping,
            max_payload=max_payload,
            step_s=step_s,
        )
        self.refused_frames = self._inbox.refused_frames
        """Number of refused frames of each peer id, whatever incarnations it claims."""
        self.link_rates = self._inbox.link_rates
        """Measured rates of the incoming links."""
        self._reception = Reception(host, self.admission, observer, self._dialler, self._links, self._inbox, self.bulk)
        incumbents = Incumbents(self._last_heard, self._ask_for_a_sign, time.monotonic)
        self.admission.is_at_work = incumbents.at_work
        self._pong = asyncio.Event()
        """Set when a ping is answered, or a stream breaks."""

    # ------------------------------------------------------------ for the driver

    async def start(self) -> None:
        """Accept streams from now on."""
        await self._host.handle_streams(PROTOCOL, self._reception.serve)
        self._host.flood_guard.on_flood = self._observer.flooded
        self._inbox.start()

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
                self._inbox.refuse(self.me, f"to {message.destination}: {error}")
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
        self._inbox.abort(lambda sender: sender == actor)
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
        Coordinators are never shut out: records of earlier releases may expel one, and nothing could undo that.
        """
        door = self.admission.door
        banned = {peer: why for peer, why in banned.items() if peer not in door.coordinators}
        newly = banned.keys() - door.banned.keys()
        door.banned = banned
        for actor in [actor for actor in self._links if actor.peer in newly]:
            self.forget(actor)
        self._host.shut_out(banned)
        for peer in newly:
            self._reception.abort(peer)

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
        self._reception.close()
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        await asyncio.gather(*(link.closed() for link in links))
        self._inbox.close()

    # ------------------------------------------------------------ towards others

    def _link(self, actor: Actor) -> Link:
        link = self._links.get(actor)
        if link is None:
            events = LinkEvents(
                up=self._observer.link_up,
                lost=self._observer.link_lost,
                broke=self._broke,
                unsendable=lambda to, message, error: self._inbox.refuse(self.me, f"to {to}: {error}"),
                sent=partial(self.traffic.sent, actor),
                dropped=self._drop,
                undelivered=self._observer.undelivered,
            )

            reach = partial(self._dialler.reach, actor)
            link = Link(self.me, actor, reach, events, self._reconnect_grace_s, self._lanes, self._relaying.queued)
            self._links[actor] = link
        return link

    def _has_link(self, peer_id: str) -> bool:
        return any(actor.peer == peer_id and link.open for actor, link in self._links.items())

    def _broke(self, actor: Actor, channel: Channel, reason: str) -> None:
        self._pong.set()  # no answer will come
        self._observer.stream_broken(actor, channel, reason)

    def _drop(self, actor: Actor, count: int, reason: str) -> None:
        self.dropped[actor] += count
        self._observer.dropped(actor, count, reason)

    # ------------------------------------------------------------ pings and their answers

    def _on_ping(self, sender: Actor, message: m.Ping | m.Pong) -> None:
        if isinstance(message, m.Pong):
            self.round_trips.answered(sender, message.number)
            self._pong.set()
            return
        link, pong = self._links.get(sender), m.Pong(message.number)
        if link is not None and link.open and link.waiting(pong) < MAX_PONGS:
            link.send(pong)

    def _last_heard(self, coordinator: str) -> float | None:
        return self._inbox.last_heard(Actor(coordinator, COORDINATOR_INCARNATION))

    def _ask_for_a_sign(self, coordinator: str) -> None:
        self.ping(Actor(coordinator, COORDINATOR_INCARNATION))
