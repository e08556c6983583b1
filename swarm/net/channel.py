"""One direction of one channel: the stream that carries messages of a kind to an actor, reopened when it breaks.

A message is encoded when its turn comes, and written chunk by chunk as the other side takes it. The queue holds
references to payloads that are kept anyway, so a slow receiver costs little. A spilled payload is read back before it
is queued, and stays in memory until it is sent. A message that is requested again while it waits here is not queued
twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from swarm.net.courtesy import Courtesy
from swarm.net.daemon import DialError
from swarm.net.handshake import Channel, Refusal, Refused
from swarm.net.lane import Lane
from swarm.net.stream import PREFIX_BYTES, Stream, StreamClosed
from swarm.net.uplink import Uplink
from swarm.net.wire import Encoder
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
WEIGHTS: dict[Channel, float | None] = {
    Channel.CONTROL: None,
    Channel.GRADIENT: 12.0,
    Channel.ACTIVATION: 3.0,
    Channel.REDUCE: 3.0,
    Channel.BULK: 1.0,
}
"""The weights of a limited uplink (see uplink.py). A gradient frees a slot two hops on; state goes last."""


def lanes_of(uplink: Uplink | None) -> dict[Channel, Lane]:
    """The lane in which each channel's pieces wait for their turn. Without an `uplink` they are not limited."""
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
        case _:
            return Channel.CONTROL


@dataclass(frozen=True, slots=True)
class Reports:
    """Callbacks from an outgoing channel to its link. Called in the channel's task."""

    opened: Callable[[Channel], None]
    broke: Callable[[Channel, str], None]
    unreachable: Callable[[Channel, str], None]
    refused: Callable[[Channel, Refused], None]
    unsendable: Callable[[m.Message, WireError], None]
    sent: Callable[[Channel, int], None]
    failed: Callable[[Channel, BaseException], None]
    """The task ended with an unexpected error; queued messages are lost."""


class Outgoing:
    """Sends messages of one channel to one actor, in order. The control channel is kept open; others open on use."""

    def __init__(
        self,
        me: Actor,
        actor: Actor,
        channel: Channel,
        open_stream: Callable[[Channel], Awaitable[Stream]],
        reports: Reports,
        lane: Lane | None,
    ) -> None:
        self._me = me
        self._actor = actor
        self._channel = channel
        self._open_stream = open_stream
        self._reports = reports
        self._lane = lane
        self._queue: deque[m.Message] = deque()
        self._leaving: set[Hashable] = set()
        """Frames and parts that are queued or being written."""
        self._stream: Stream | None = None
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"{channel.value} to {actor}")
        self._task.add_done_callback(self._ended)

    def send(self, message: m.Message) -> None:
        """Queue a message, unless the same frame or part is already queued: a peer that waits for long asks again."""
        if (what := _identity(message)) is not None:
            if what in self._leaving:
                return
            self._leaving.add(what)
        self._queue.append(message)
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Number of queued messages."""
        return len(self._queue)

    def is_sending(self, message: m.Message) -> bool:
        """Whether this frame or part is queued or being written, and only waits for its turn."""
        flowing = self._stream is not None and not self._stream.held_up
        return flowing and _identity(message) in self._leaving

    def withdraw(self, void: Callable[[m.Message], bool]) -> None:
        """Drop the queued messages that are void."""
        kept = []
        for message in self._queue:
            if void(message):
                self._leaving.discard(_identity(message))
            else:
                kept.append(message)
        self._queue.clear()
        self._queue.extend(kept)

    def clear(self) -> tuple[m.Message, ...]:
        """Drop the queued messages, and return them."""
        queued = tuple(self._queue)
        self._queue.clear()
        self._leaving.clear()
        return queued

    def retry(self) -> None:
        """The other side has just reached us: dial now rather than after the delay."""
        self._retry.set()

    def close(self) -> None:
        self._task.cancel()

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
            failed = True  # until it opens, the link gives it no work that could wake it
            self._retry.clear()  # from here on, an actor that reaches us during this dial is dialled again at once
            try:
                stream = await self._open_stream(self._channel)
            except Refused as error:
                if error.refusal is not Refusal.CLOSING and not self._is_older(error):
                    self._reports.refused(self._channel, error)
                    return
                self._reports.unreachable(self._channel, str(error))
            except (DialError, StreamClosed, WireError, TimeoutError) as error:
                self._reports.unreachable(self._channel, str(error) or "no answer to our hello")
            else:
                delay, failed = FIRST_DELAY_S, False
                self._reports.opened(self._channel)
                self._stream = stream
                try:
                    reason = await self._carry(stream)
                finally:
                    self._stream = None
                    stream.abort()
                self._reports.broke(self._channel, reason)
                continue
            try:
                async with asyncio.timeout(delay):
                    await self._retry.wait()
            except TimeoutError:
                delay = min(2 * delay, LONGEST_DELAY_S)

    def _is_older(self, refused: Refused) -> bool:
        """Whether an older process with the actor's key answers in its place: a copy of its home, which will leave."""
        responder = refused.responder
        return refused.refusal is Refusal.WRONG_INCARNATION and (
            responder is not None and responder.incarnation < self._actor.incarnation
        )

    async def _carry(self, stream: Stream) -> str:
        """Write queued messages until the stream ends; returns why it ended."""
        encoder = Encoder(self._me, self._actor)
        # nothing is expected on the return half: reading it detects the end of the other process at once
        ended = asyncio.create_task(stream.wait_ended())
        ended.add_done_callback(lambda _task: self._wake.set())
        try:
            while not ended.done():
                if not self._queue:
                    await self._wait_for_work_or(ended)
                    continue
                message = self._queue.popleft()
                try:
                    header, payload = encoder.encode(message)
                    await stream.write_frame(header, payload, self._lane)
                    self._reports.sent(self._channel, PREFIX_BYTES + len(header) + len(payload))
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
    """The content and receiver of a message whose bytes are always the same; else None."""
    match message:
        case m.Relay(destination=destination, message=m.Frame() | m.ReducePart() | m.ReducedPart() as inner):
            return destination, inner.key
        case m.Frame(key=key) | m.ReducePart(key=key) | m.ReducedPart(key=key):
            return key
        case _:
            return None
