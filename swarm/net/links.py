"""A link: everything this actor has open towards one other actor, and whether that one can be reached.

A broken stream is redialled at once. If that fails for the control channel the link is *lost*, once, with its reason;
then it is redialled with growing delays until it is *up* again or forgotten. Within the grace messages are still taken:
a dial may fail although the other side is there, when two dials cross, when it is just starting. What is queued when a
dial fails after the grace is dropped, and so is what comes later: counted, told with the reason, and recovered by the
protocol; handed back if there has never been a connection, since whom nobody can dial is as a rule not dead. A data
channel that cannot be opened is its own trouble: as long as control is open the actor is there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from swarm.net.channel import Outgoing, Reports, channel_of
from swarm.net.handshake import Channel
from swarm.net.lane import Lane
from swarm.net.stream import Stream
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """What a link tells the network."""

    up: Callable[[Actor], None]
    lost: Callable[[Actor, str], None]
    broke: Callable[[Actor, Channel, str], None]
    unsendable: Callable[[Actor, m.Message, WireError], None]
    sent: Callable[[Channel, int], None]
    dropped: Callable[[Actor, int, str], None]
    """Messages that were given up, and why."""
    undelivered: Callable[[Actor, tuple[m.Message, ...]], None]
    """Messages to an actor to whom there has never been a connection."""


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
    ) -> None:
        """`lanes`: where messages wait for their turn, by channel."""
        self.actor = actor
        self.hopeless: str | None = None
        """Why this actor will never be reached again: it was replaced, or it refuses us."""
        self._me = me
        self._open_stream = open_stream
        self._events = events
        self._grace_s = grace_s
        self._lanes = lanes or {}
        self.lost: str | None = None
        """Why the actor cannot be reached at the moment."""
        self._lost_at = 0.0
        self._dropped = 0
        """Messages given up and not told yet."""
        self._channels: dict[Channel, Outgoing] = {}
        self._open: set[Channel] = set()
        self._was_open = False
        self._broken: set[Channel] = {Channel.CONTROL}
        """Channels on which something may have been lost since they were open."""
        self._failing_since: dict[Channel, float] = {}
        self._told_failing: set[Channel] = set()

    def send(self, message: m.Message) -> None:
        """Queue a message. It is dropped when its channel, or the link, could not be opened for the grace."""
        channel = channel_of(message)
        if self.hopeless is not None or self._given_up(channel):
            self._drop((message,))
            return
        self.probe()
        self._outgoing(channel).send(message)

    def is_sending(self, message: m.Message) -> bool:
        """Whether this frame or part is on its way out and will arrive in its turn."""
        outgoing = self._channels.get(channel_of(message))
        return outgoing is not None and outgoing.is_sending(message)

    def waiting(self, message: m.Message) -> int:
        """How many messages wait before this one."""
        outgoing = self._channels.get(channel_of(message))
        return 0 if outgoing is None else outgoing.waiting

    def withdraw(self, void: Callable[[m.Message], bool]) -> None:
        """Drop what is queued and void."""
        for outgoing in self._channels.values():
            outgoing.withdraw(void)

    @property
    def open(self) -> bool:
        """Whether a stream to the actor is open."""
        return bool(self._open)

    def lost_since(self) -> float:
        """When the actor was lost, in the loop's time; infinity when it is not."""
        return math.inf if self.lost is None else self._lost_at

    def probe(self) -> None:
        """Find out whether the actor is there, unless that is watched already."""
        if self.hopeless is None:
            self._outgoing(Channel.CONTROL)

    def nudge(self) -> None:
        """The actor has just reached us: dial it now if we were waiting to."""
        for outgoing in self._channels.values():
            outgoing.retry()

    def give_up(self, reason: str) -> None:
        """The actor will never come back: lost for good."""
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
            self._channels[channel] = Outgoing(self._me, self.actor, channel, self._open_stream, reports, lane)
        return self._channels[channel]

    def _opened(self, channel: Channel) -> None:
        # up is told whenever something may have been lost before, on any channel
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
                self._failing_since.clear()  # the others begin anew: it is there
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
        """Its task ended by a fault of ours: what is sent next begins a new one."""
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
        """Whether a channel takes no messages: it is not open, and it or control could not be opened for the grace."""
        if channel in self._open:
            return False
        long_ago = asyncio.get_running_loop().time() - self._grace_s
        return any(self._failing_since.get(c, math.inf) <= long_ago for c in (channel, Channel.CONTROL))

    def _drop_queued(self, channel: Channel) -> None:
        if channel in self._channels:
            self._drop(self._channels[channel].clear())

    def _drop(self, messages: tuple[m.Message, ...]) -> None:
        self._dropped += len(messages)
        if messages and self.hopeless is None and not self._was_open:
            self._events.undelivered(self.actor, messages)

    def _tell_dropped(self, reason: str) -> None:
        if self._dropped:
            self._events.dropped(self.actor, self._dropped, reason)
            self._dropped = 0
