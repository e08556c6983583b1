"""The sending half of a channel: a stream that carries one kind of messages to one actor, reopened when it breaks.

A message is encoded when its turn comes, and written chunk by chunk as the receiver reads it. The queue only references
payloads that are kept in memory anyway, so a slow receiver costs little memory. A payload that was spilled to disk is
read back before it is queued, and stays in memory until it is sent. A queued message that is requested again is not
queued a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from swarm.net.courtesy import Courtesy
from swarm.net.daemon import DialError
from swarm.net.handshake import Channel, Refusal, Refused
from swarm.net.lane import Lane
from swarm.net.send_queue import RelayedBytes, SendQueue
from swarm.net.stream import PREFIX_BYTES, Stream, StreamClosed
from swarm.net.traffic import PADDING
from swarm.net.uplink import Uplink
from swarm.net.wire import Encoder
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
BRIEF_S = 1.0
"""After a stream that lived for less than this, the next dial waits too, longer and longer: an actor that accepts each
stream and closes it would otherwise be dialled, and reported as lost, hundreds of times a second.
"""
_PADDED = (Channel.ACTIVATION, Channel.GRADIENT, Channel.REDUCE)
"""The channels of PADDED_KINDS."""
_PASSING = (Refusal.CLOSING, Refusal.ASK_AGAIN)
"""Refusals after which a later dial may succeed."""
WEIGHTS: dict[Channel, float | None] = {
    Channel.CONTROL: None,
    Channel.GRADIENT: 12.0,
    Channel.ACTIVATION: 3.0,
    Channel.REDUCE: 3.0,
    Channel.BULK: 1.0,
}
"""Weight of each channel on a limited uplink (see uplink.py). None: urgent.

Gradients have a high weight because a gradient allows the peer two stages further to begin another microbatch. State
transfers have the lowest weight.
"""


def lanes_of(uplink: Uplink | None) -> dict[Channel, Lane]:
    """The lane of each channel. It decides when a piece of the channel's frames is written. `uplink` None: no rate
    limit.
    """
    if uplink is not None:
        return {channel: uplink.lane(weight) for channel, weight in WEIGHTS.items()}
    courtesy = Courtesy()
    return {channel: courtesy.lane(gives_way=channel is Channel.BULK) for channel in Channel if WEIGHTS[channel]}


def channel_of(message: m.Message) -> Channel:
    """The channel a message travels on."""
    match message:
        case m.Relay(message=inner):
            return channel_of(inner)
        case m.Frame(key=key):
            return Channel.ACTIVATION if key.direction is Direction.FORWARD else Channel.GRADIENT
        case m.ReducePart() | m.ReducedPart():
            return Channel.REDUCE
        case m.Padding(kind=kind):
            return _PADDED[kind]
        case _:
            return Channel.CONTROL


def kind_of(message: m.Message) -> str:
    """The kind of traffic as which the bytes of a message count: its channel, or PADDING."""
    return PADDING if isinstance(message, m.Padding) else channel_of(message).value


@dataclass(frozen=True, slots=True)
class Reports:
    """Callbacks from an outgoing channel to its link. Called in the channel's task."""

    opened: Callable[[Channel], None]
    broke: Callable[[Channel, str], None]
    unreachable: Callable[[Channel, str], None]
    refused: Callable[[Channel, Refused], None]
    unsendable: Callable[[m.Message, WireError], None]
    sent: Callable[[str, int], None]
    """(kind of traffic, number of bytes)."""
    failed: Callable[[Channel, BaseException], None]
    """The sending task ended with an unexpected error; queued messages are lost."""


class Outgoing:
    """Sends messages of one channel to one actor, in order.

    The stream of the control channel is always kept open; that of another channel is opened for its first message.
    """

    def __init__(
        self,
        me: Actor,
        actor: Actor,
        channel: Channel,
        open_stream: Callable[[Channel], Awaitable[Stream]],
        reports: Reports,
        lane: Lane | None,
        relayed: RelayedBytes | None = None,
    ) -> None:
        self._me = me
        self._actor = actor
        self._channel = channel
        self._open_stream = open_stream
        self._reports = reports
        self._lane = lane
        self._queue = SendQueue(relayed)
        self._leaving: set[Hashable] = set()
        """Identities of the frames and parts that are queued or being written."""
        self._stream: Stream | None = None
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"{channel.value} to {actor}")
        self._task.add_done_callback(self._ended)

    def send(self, message: m.Message) -> None:
        """Queue a message.

        Ignore it if the same frame or part is already queued: a waiting peer repeats its request. Padding is only
        queued if nothing else is queued or being written, and dropped when something else is queued.
        """
        if (what := _identity(message)) is not None:
            if what in self._leaving:
                return
            self._leaving.add(what)
        if isinstance(message, m.Padding):
            if self._leaving:
                return
        elif isinstance(self._queue.first, m.Padding):
            self._queue.remove()
        self._queue.append(message)
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Number of queued messages."""
        return len(self._queue)

    def is_sending(self, message: m.Message) -> bool:
        """Whether this frame or part is queued or being written, on an open stream whose receiver reads."""
        flowing = self._stream is not None and not self._stream.held_up
        return flowing and _identity(message) in self._leaving

    def withdraw(self, void: Callable[[m.Message], bool]) -> None:
        """Drop the queued messages for which `void` is true."""
        self._leaving.difference_update(map(_identity, self._queue.remove(void)))

    def clear(self) -> tuple[m.Message, ...]:
        """Drop the queued messages, and return them."""
        self._leaving.clear()
        return self._queue.remove()

    def retry(self) -> None:
        """Dial now instead of after the delay, because the other side has just reached us."""
        self._retry.set()

    def reopen(self) -> None:
        """Close the open stream; a new one is opened at once."""
        if self._stream is not None:
            self._stream.abort()

    def close(self) -> None:
        self._task.cancel()
        self._queue.close()

    async def closed(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": f"sending {task.get_name()} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
            self._reports.failed(self._channel, error)

    async def _run(self) -> None:
        delay = FIRST_DELAY_S
        failed = False
        while True:
            if self._channel is not Channel.CONTROL and not failed:
                await self._wait_for_work()
            failed = True  # until a stream opens: the link queues nothing that could wake this task after a failed dial
            self._retry.clear()  # if the actor reaches us during this dial and the dial fails, dial again at once
            try:
                stream = await self._open_stream(self._channel)
            except Refused as error:
                if error.refusal not in _PASSING and not self._is_older(error):
                    self._reports.refused(self._channel, error)
                    return
                self._reports.unreachable(self._channel, str(error))
            except (DialError, StreamClosed, WireError, TimeoutError) as error:
                self._reports.unreachable(self._channel, str(error) or "no answer to our hello")
            else:
                failed = False
                self._reports.opened(self._channel)
                opened = asyncio.get_running_loop().time()
                self._stream = stream
                try:
                    reason = await self._carry(stream)
                finally:
                    self._stream = None
                    stream.abort()
                self._reports.broke(self._channel, reason)
                if asyncio.get_running_loop().time() - opened >= BRIEF_S:
                    delay = FIRST_DELAY_S
                    continue
            try:
                async with asyncio.timeout(delay):
                    await self._retry.wait()
            except TimeoutError:
                delay = min(2 * delay, LONGEST_DELAY_S)

    def _is_older(self, refused: Refused) -> bool:
        """Whether an older process with the same key has answered instead of the actor.

        Such a process runs from a copy of the actor's home folder and will end soon, so dialling goes on.
        """
        responder = refused.responder
        return refused.refusal is Refusal.WRONG_INCARNATION and (
            responder is not None and responder.incarnation < self._actor.incarnation
        )

    async def _carry(self, stream: Stream) -> str:
        """Write queued messages until the stream ends; returns why it ended."""
        encoder = Encoder(self._me, self._actor)
        # the receiver sends nothing on this stream; reading from it detects at once that its process has ended
        ended = asyncio.create_task(stream.wait_ended())
        ended.add_done_callback(lambda _task: self._wake.set())
        try:
            while not ended.done():
                if not self._queue:
                    await self._wait_for_work_or(ended)
                    continue
                message = self._queue.take()
                try:
                    header, payload = encoder.encode(message)
                    await stream.write_frame(header, payload, self._lane)
                    self._reports.sent(kind_of(message), PREFIX_BYTES + len(header) + len(payload))
                except WireError as error:
                    self._reports.unsendable(message, error)
                finally:
                    self._leaving.discard(_identity(message))
            return ended.result()
        except StreamClosed as error:
            return str(error)
        finally:
            ended.cancel()

    async def _wait_for_work(self) -> None:
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()

    async def _wait_for_work_or(self, ended: asyncio.Task[str]) -> None:
        self._wake.clear()
        if not ended.done():
            await self._wake.wait()


def _identity(message: m.Message) -> Hashable:
    """A key that is equal for two messages with the same content, origin and receiver. None if messages of this kind
    may differ in content.
    """
    match message:
        case m.Relay(origin=origin, destination=to, message=m.Frame() | m.ReducePart() | m.ReducedPart() as inner):
            return origin, to, inner.key
        case m.Frame(key=key) | m.ReducePart(key=key) | m.ReducedPart(key=key):
            return key
        case _:
            return None
