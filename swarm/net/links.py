"""A link: the outgoing channels of this actor to one other actor, and whether that actor can be reached.

A broken stream is redialled at once. If this fails for the control channel, the link is reported as *lost*, once, with
the reason. Then the control channel is redialled with growing delays until the link is *up* again or forgotten.

A dial may also fail because two dials collide or because the other process is just starting. So messages stay queued
for a grace period. After it, queued and new messages are dropped: they are counted and reported with the reason, and
the protocol recovers them. If there has never been a connection, they are also handed back to the caller, because such
an actor is usually alive but not reachable directly. If only a data channel cannot be opened, the link is not lost:
while the control channel is open, the actor is alive.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from swarm.net.channel import Outgoing, Reports, channel_of
from swarm.net.handshake import Channel
from swarm.net.lane import Lane
from swarm.net.send_queue import RelayedBytes
from swarm.net.stream import Stream
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Callbacks from a link to the network."""

    up: Callable[[Actor], None]
    lost: Callable[[Actor, str], None]
    broke: Callable[[Actor, Channel, str], None]
    unsendable: Callable[[Actor, m.Message, WireError], None]
    sent: Callable[[str, int], None]
    """(kind of traffic, number of bytes)."""
    dropped: Callable[[Actor, int, str], None]
    """(actor, number of dropped messages, reason)."""
    undelivered: Callable[[Actor, tuple[m.Message, ...]], None]
    """Dropped messages to an actor with which there has never been a connection."""


class Link:
    """The outgoing channels to one actor."""

    def __init__(
        self,
        me: Actor,
        actor: Actor,
        open_stream: Callable[[Channel], Awaitable[Stream]],
        events: LinkEvents,
        grace_s: float,
        lanes: Mapping[Channel, Lane] | None = None,
        relayed: RelayedBytes | None = None,
    ) -> None:
        """`lanes`: the lane of each channel; None: no rate limit. `grace_s`: seconds for which messages stay queued
        while the link is lost. `relayed`: counts what waits here for others; None: nobody counts it.
        """
        self.actor = actor
        self.hopeless: str | None = None
        """The reason why this actor will never be reached again: it was replaced, or it refuses us; None otherwise."""
        self._me = me
        self._open_stream = open_stream
        self._events = events
        self._grace_s = grace_s
        self._lanes = lanes or {}
        self._relayed = relayed
        self.lost: str | None = None
        """The reason why the actor cannot be reached now; None if it can be reached or was never dialled."""
        self._lost_at = 0.0
        self._dropped = 0
        """Number of dropped messages that are not reported yet."""
        self._channels: dict[Channel, Outgoing] = {}
        self._open: set[Channel] = set()
        self._was_open = False
        self._broken: set[Channel] = {Channel.CONTROL}
        """Channels that broke or never opened, so that messages may have been lost on them."""
        self._failing_since: dict[Channel, float] = {}
        self._told_failing: set[Channel] = set()

    def send(self, message: m.Message) -> None:
        """Queue a message; drop it if its channel or the control channel could not be opened for the grace period."""
        channel = channel_of(message)
        if self.hopeless is not None or self._given_up(channel):
            self._drop((message,))
            return
        self.probe()
        self._outgoing(channel).send(message)

    def is_sending(self, message: m.Message) -> bool:
        """Whether this frame or part is queued or being written on a working stream, so that it will arrive."""
        outgoing = self._channels.get(channel_of(message))
        return outgoing is not None and outgoing.is_sending(message)

    def waiting(self, message: m.Message) -> int:
        """Number of messages that are queued on the channel of this message."""
        outgoing = self._channels.get(channel_of(message))
        return 0 if outgoing is None else outgoing.waiting

    def withdraw(self, void: Callable[[m.Message], bool]) -> None:
        """Drop the queued messages for which `void` is true."""
        for outgoing in self._channels.values():
            outgoing.withdraw(void)

    @property
    def open(self) -> bool:
        """Whether a stream to the actor is open."""
        return bool(self._open)

    def lost_since(self) -> float:
        """Time at which the actor was lost, on the loop's clock; infinity if it is not lost."""
        return math.inf if self.lost is None else self._lost_at

    def probe(self) -> None:
        """Open the control channel, if it is not open or being dialled, to learn whether the actor can be reached."""
        if self.hopeless is None:
            self._outgoing(Channel.CONTROL)

    def nudge(self) -> None:
        """Redial now instead of after the delay, because the actor has just reached us."""
        for outgoing in self._channels.values():
            outgoing.retry()

    def reopen(self) -> None:
        """Close the open streams and dial again, because another process answers for the actor now."""
        for outgoing in self._channels.values():
            outgoing.reopen()

    def give_up(self, reason: str) -> None:
        """Close the link for good, because the actor will never be reached again."""
        if self.hopeless is None:
            self.hopeless = reason
            self.close()
            for channel in Channel:
                self._drop_queued(channel)
            self._tell_dropped(reason)
            self._lose(reason)

    def close(self) -> None:
        for outgoing in self._channels.values():
            outgoing.close()

    async def closed(self) -> None:
        await asyncio.gather(*(outgoing.closed() for outgoing in self._channels.values()))

    def _outgoing(self, channel: Channel) -> Outgoing:
        if channel not in self._channels:
            reports = Reports(
                opened=self._opened,
                broke=self._broke,
                unreachable=self._unreachable,
                refused=lambda _channel, refused: self.give_up(str(refused)),
                unsendable=lambda message, error: self._events.unsendable(self.actor, message, error),
                sent=self._events.sent,
                failed=self._failed,
            )
            lane = self._lanes.get(channel)
            self._channels[channel] = Outgoing(
                self._me, self.actor, channel, self._open_stream, reports, lane, self._relayed
            )
        return self._channels[channel]

    def _opened(self, channel: Channel) -> None:
        # report "up" whenever messages may have been lost before on this channel
        tell = channel in self._broken
        self._open.add(channel)
        self._was_open = True
        self._broken.discard(channel)
        self._failing_since.pop(channel, None)
        self._told_failing.discard(channel)
        if self.lost is not None:
            self.nudge()
            if channel is Channel.CONTROL:
                self.lost = None
                self._failing_since.clear()  # the actor is alive: the grace period of the other channels starts again
        self._tell_dropped("it could not be reached for a while")
        if tell:
            self._events.up(self.actor)

    def _broke(self, channel: Channel, reason: str) -> None:
        self._open.discard(channel)
        self._broken.add(channel)
        self._events.broke(self.actor, channel, reason)
        if channel is not Channel.CONTROL:
            self.probe()

    def _unreachable(self, channel: Channel, reason: str) -> None:
        self._broken.add(channel)
        given_up = [each for each in Channel if self._given_up(each)]
        self._failing_since.setdefault(channel, asyncio.get_running_loop().time())
        for each in given_up:
            self._drop_queued(each)
        self._tell_dropped(reason)
        if channel is Channel.CONTROL:
            self._lose(reason)
        elif self.lost is None and channel in given_up and channel not in self._told_failing:
            self._told_failing.add(channel)
            self._events.broke(self.actor, channel, reason)

    def _failed(self, channel: Channel, error: BaseException) -> None:
        """Handle an internal error that ended the task of a channel: the next message starts a new task."""
        reason = f"internal error: {error!r}"
        self._drop(self._channels.pop(channel).clear())
        self._open.discard(channel)
        self._broken.add(channel)
        self._tell_dropped(reason)
        if channel is Channel.CONTROL:
            self._lose(reason)
        self._events.broke(self.actor, channel, reason)

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            self._lost_at = asyncio.get_running_loop().time()
            self._events.lost(self.actor, reason)

    def _given_up(self, channel: Channel) -> bool:
        """Whether a channel drops messages: it is closed, and it or control has failed for the grace period."""
        if channel in self._open:
            return False
        long_ago = asyncio.get_running_loop().time() - self._grace_s
        return any(self._failing_since.get(c, math.inf) <= long_ago for c in (channel, Channel.CONTROL))

    def _drop_queued(self, channel: Channel) -> None:
        if channel in self._channels:
            self._drop(self._channels[channel].clear())

    def _drop(self, messages: tuple[m.Message, ...]) -> None:
        messages = tuple(message for message in messages if not isinstance(message, m.Padding))  # nobody misses it
        self._dropped += len(messages)
        if messages and self.hopeless is None and not self._was_open:
            self._events.undelivered(self.actor, messages)

    def _tell_dropped(self, reason: str) -> None:
        if self._dropped:
            self._events.dropped(self.actor, self._dropped, reason)
            self._dropped = 0
