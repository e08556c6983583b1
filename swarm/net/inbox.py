"""The inbox of one actor: it reads the messages that others send to it, checks them, and delivers them.

The streams come from the reception, which has admitted their openers. Each message is checked before it is delivered. A
refused message is counted against its sender, and its stream is read on; only invalid framing ends the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from swarm.net import message_allowance
from swarm.net.channel import channel_of, kind_of
from swarm.net.handshake import Channel, Introduction
from swarm.net.link_rates import LinkRates
from swarm.net.links import Link
from swarm.net.observer import NetworkObserver
from swarm.net.relaying import Relaying
from swarm.net.stream import PREFIX_BYTES, Stream, StreamClosed
from swarm.net.traffic import TrafficMeter
from swarm.net.unfinished_frames import LOOK_EVERY_S, UnfinishedFrames
from swarm.net.wire import Decoder, payload_of
from swarm.net.wire_bounds import MAX_DATA_HEADER, MAX_HEADER, WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor

Charge = Callable[[float], Awaitable[None]]
"""Charges points to the opener of a stream (see message_allowance.py), and waits while its allowance is used up."""


class Inbox:
    """The incoming messages of the actor `me`.

    `links`: the actor's links, which their owner changes. `on_ping`: receives the pings and their answers; the observer
    receives the other messages. `max_payload`, `step_s`: as of `Network`.
    """

    def __init__(
        self,
        me: Actor,
        observer: NetworkObserver,
        links: Mapping[Actor, Link],
        relaying: Relaying,
        traffic: TrafficMeter,
        on_ping: Callable[[Actor, m.Ping | m.Pong], None],
        *,
        max_payload: int,
        step_s: float,
    ) -> None:
        self.refused_frames: Counter[str] = Counter()
        """Number of refused frames of each peer id, whatever incarnations it claims."""
        self.link_rates = LinkRates()
        """Measured rates of the incoming links."""
        self._me = me
        self._observer = observer
        self._links = links
        self._relaying = relaying
        self._traffic = traffic
        self._on_ping = on_ping
        self._max_payload = max_payload
        self._step_s = step_s
        self._streams: dict[tuple[Actor, Channel], Stream] = {}
        self._heard_at: dict[Actor, float] = {}
        """For each actor whose control channel to us is open: when its last message came, by time.monotonic."""
        self._unfinished = UnfinishedFrames(max_payload)
        self._look: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check regularly from now on that unfinished frames do not take too much memory."""
        self._look_at_unfinished()

    async def receive(self, stream: Stream, opener: Introduction, charge: Charge) -> None:
        """Deliver the messages of an admitted stream until it ends. An older stream of the same channel is aborted."""
        sender, control = opener.sender, opener.channel is Channel.CONTROL
        key = (sender, opener.channel)
        older = self._streams.get(key)
        self._streams[key] = stream
        if older is not None:
            older.abort()
        link = self._links.get(sender)  # do not create one: an unknown actor's messages need no link in return
        if link is not None:
            link.nudge()
        if control:
            self._heard_at[sender] = time.monotonic()
        try:
            with self._unfinished.reads(stream, sender, opener.serial):
                await self._read(stream, opener, charge)
        except StreamClosed:
            pass
        finally:
            if self._streams.get(key) is stream:
                del self._streams[key]
                link = self._links.get(sender)
                if control:
                    self._heard_at.pop(sender, None)
                if control and link is not None:
                    link.probe()

    def last_heard(self, actor: Actor) -> float | None:
        """When the actor's last message came, by time.monotonic; None if its control channel to us is not open."""
        return self._heard_at.get(actor)

    def refuse(self, sender: Actor, reason: str) -> None:
        """Count a frame that cannot be used against its sender, and report it."""
        self.refused_frames[sender.peer] += 1
        self._observer.frame_refused(sender, reason, self.refused_frames[sender.peer])

    def abort(self, of: Callable[[Actor], bool]) -> None:
        """Abort the streams of the actors for which `of` is true."""
        for key in [key for key in self._streams if of(key[0])]:
            self._streams.pop(key).abort()
            if key[1] is Channel.CONTROL:
                self._heard_at.pop(key[0], None)

    def close(self) -> None:
        """Abort all streams, and end the regular check."""
        if self._look is not None:
            self._look.cancel()
        for stream in self._streams.values():
            stream.abort()

    def _look_at_unfinished(self) -> None:
        loop = asyncio.get_running_loop()
        for sender in self._unfinished.look(loop.time()):
            self.refuse(sender, "it arrives slowly, and all slow frames from its pass take too much memory")
        self._look = loop.call_later(LOOK_EVERY_S, self._look_at_unfinished)

    async def _read(self, stream: Stream, opener: Introduction, charge: Charge) -> None:
        """Read and deliver messages until a newer stream takes the place of this one, or the framing is invalid.

        Raises StreamClosed.
        """
        sender, channel = opener.sender, opener.channel
        control = channel is Channel.CONTROL
        limits = (MAX_HEADER, 0) if control else (MAX_DATA_HEADER, self._max_payload)
        decoder = Decoder(sender, self._me)
        while True:
            try:
                header, payload = await stream.read_frame(*limits, self._step_s)
            except WireError as error:  # the framing is invalid, so the rest of the stream cannot be decoded
                self.refuse(sender, str(error))
                return
            nbytes = PREFIX_BYTES + len(header) + len(payload)
            began = time.thread_time()
            try:
                message = decoder.decode(header, payload)
                self._check(sender, message, channel)
            except ValueError as error:
                self._traffic.received(channel.value, nbytes)
                self.refuse(sender, str(error))
                cost = message_allowance.cost_of_refused(len(payload))
                await charge(cost + message_allowance.cost_of_time(time.thread_time() - began))
                continue
            self._traffic.received(kind_of(message), nbytes)
            if control:
                self._heard_at[sender] = time.monotonic()
            points = self._points(sender, message, len(header), len(payload), decoder.parts)
            if points is not None:
                await charge(points + message_allowance.cost_of_time(time.thread_time() - began))
            self.link_rates.arrived(sender, len(payload), stream.payload_s)
            if self._streams.get((sender, channel)) is not stream:
                return
            if isinstance(message, m.Padding):
                continue
            if isinstance(message, m.Ping | m.Pong):
                self._on_ping(sender, message)
                continue
            waiting = self._observer.message(sender, message)
            if waiting is not None:
                await waiting

    def _points(self, sender: Actor, message: m.Message, header: int, payload: int, parts: int) -> float | None:
        """Points that a message costs its sender, without its CPU time; None for data that are of use.

        `header`, `payload`: bytes. `parts`: nested values of the header.
        """
        if isinstance(message, m.Padding):
            return message_allowance.cost_of_useless(header)
        passed_on = isinstance(message, m.Relay) and message.destination != self._me
        if passed_on or channel_of(message) is Channel.CONTROL:
            return message_allowance.cost_of(header, parts)
        author, data = sender, message
        if isinstance(message, m.Relay):
            author, data = message.origin, message.message
        if not isinstance(data, m.WithPayload) or self._observer.expects(author, data):
            return None
        return message_allowance.cost_of_useless(payload)

    def _check(self, sender: Actor, message: m.Message, channel: Channel) -> None:
        if channel_of(message) is not channel:
            raise WireError(f"a {type(message).__name__} is not allowed on the {channel.value} channel")
        claimed = self._author(message, sender)
        if claimed != sender:
            raise WireError(f"a {type(message).__name__} was sent in the name of another actor, {claimed}")
        if isinstance(message, m.Relay):
            if message.destination != self._me:
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
