"""A byte stream to another process, with flow control in both directions and without unnecessary copies.

A `Stream` is an asyncio BufferedProtocol. Small reads go through a scratch buffer of 16 KiB; the kernel reads a payload
directly into the caller's buffer. If no task reads, only the scratch buffer fills: then reading pauses, and the sender
blocks. A write waits until the transport has accepted the data of the previous write.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any, cast

from swarm.buffer import Buffer
from swarm.net.lane import MAX_PIECE, Lane
from swarm.net.wire_bounds import check_lengths

CHUNK = MAX_PIECE
"""Bytes written at a time: the most data that this process queues besides the caller's own references."""

_SCRATCH = 16 << 10
_PREFIX = struct.Struct("<II")  # bytes of the header, bytes of the payload
PREFIX_BYTES = _PREFIX.size
FRAME_S = 60.0
"""Seconds within which the rest of a small frame must arrive after its first byte."""
LEAST_RATE = 50.0
"""Lowest accepted rate of any frame, bytes/s: what one of several streams gets on the slowest supported uplink."""
LEAST_RATE_OF_STEP = 16 * 1024.0
"""Lowest accepted rate of a frame that takes longer than a step may take, bytes/s. On a line of 15 Mbit/s that 64
streams share, each stream has 29 kB/s. On a slower line such a frame is late anyway: its step is restarted without it.
"""
RESERVED = 1 << 20
"""Bytes of a frame for which memory is reserved before they arrive."""
_ZEROS = bytes(RESERVED)


class StreamClosed(ConnectionError):
    """The other side closed the stream, its process ended, or the connection broke."""


class Stream(asyncio.BufferedProtocol):
    """A connected stream. One task reads and one task writes at a time."""

    def __init__(self) -> None:
        self.sent = 0
        """Bytes written so far."""
        self.blocked_s = 0.0
        """Total seconds for which writes have waited because the other side or the link did not accept the data."""
        self.origin = ""
        """For an incoming stream: the address block of the opener (`block_of`)."""
        self.payload_s = 0.0
        """Seconds from the header of the last frame to the end of its payload."""
        self.frame_since = 0.0
        """The time on the loop's clock when the last frame began."""
        self.reserved = 0
        """Bytes of memory that the unfinished frame takes; 0 between frames."""
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(_SCRATCH)
        self._start = 0
        self._end = 0
        self._target: memoryview | None = None
        self._filled = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._ended: str | None = None

    # ------------------------------------------------------------ for the owner

    async def read_exactly(self, count: int) -> bytes:
        """Read exactly `count` bytes. Raises StreamClosed if the stream ends before."""
        target = bytearray(count)
        await self.read_into(memoryview(target))
        return bytes(target)

    async def read_into(self, target: memoryview) -> None:
        """Fill `target`. Raises StreamClosed if the stream ends before.

        If cancelled, the stream cannot be used further.
        """
        held = min(self._end - self._start, len(target))
        target[:held] = memoryview(self._scratch)[self._start : self._start + held]
        self._start += held
        if self._start == self._end:
            self._start = self._end = 0
        if held < len(target):
            if self._ended is not None:
                raise StreamClosed(self._ended)
            self._target, self._filled = target, held
            self._reader = asyncio.get_running_loop().create_future()
            self._resume_reading()
            try:
                await self._reader
            finally:
                self._target = self._reader = None

    async def read_frame(
        self, max_header: int, max_payload: int, step_s: float | None = None
    ) -> tuple[bytes, bytearray]:
        """Read the next frame: (header, payload). Waits for its first byte without a time limit.

        `step_s`: seconds that a step of the run may take, if the frame belongs to a step. None: it does not. A frame of
        n bytes may take FRAME_S + n / LEAST_RATE seconds. A frame of a step may take FRAME_S + `step_s` at most, or
        FRAME_S + n / LEAST_RATE_OF_STEP if this is longer. Pauses count, so a sender may pause for FRAME_S at least.
        If its computer was suspended for longer, the connection is lost anyway. An honest sender whose stream is closed
        opens another one at once, and is asked for the frame again.

        Raises WireError, before it allocates memory, if a length exceeds its limit. Raises StreamClosed, and aborts the
        stream, if the rest of the frame arrives too slowly.
        """
        first = await self.read_exactly(1)
        patience_s = FRAME_S
        self.frame_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self.frame_since + patience_s) as patience:
                header_bytes, payload_bytes = _PREFIX.unpack(first + await self.read_exactly(_PREFIX.size - 1))
                check_lengths(header_bytes, payload_bytes, max_header, max_payload)
                patience_s += _longest_s(header_bytes + payload_bytes, step_s)
                patience.reschedule(self.frame_since + patience_s)
                self.reserved = header_bytes
                header = await self.read_exactly(header_bytes)
                began = time.monotonic()
                payload = await self._payload(payload_bytes)
        except TimeoutError:
            self.abort()
            raise StreamClosed(f"the rest of a frame has not arrived within {patience_s:.0f} s") from None
        finally:
            self.reserved = 0
        self.payload_s = time.monotonic() - began
        return header, payload

    async def _payload(self, count: int) -> bytearray:
        """Read a payload. Its memory grows as it arrives, so that a sender cannot reserve much more than it sends."""
        payload = bytearray(min(count, RESERVED))
        self.reserved += len(payload)
        arrived = 0
        while arrived < count:
            if arrived:
                more = min(RESERVED, count - arrived)
                payload += _ZEROS if more == RESERVED else bytes(more)
                self.reserved += more
            with memoryview(payload) as view, view[arrived:] as rest:
                await self.read_into(rest)
            arrived = len(payload)
        return payload

    async def write_frame(self, header: bytes, payload: Buffer = b"", lane: Lane | None = None) -> None:
        """Write one frame; returns when at most one chunk of it is still unsent. Raises StreamClosed.

        `lane`: decides when each piece may be sent; None: at once.
        """
        view = memoryview(payload)
        head = memoryview(_PREFIX.pack(len(header), len(view)) + header)
        size = CHUNK if lane is None else lane.piece
        frame = 0 if lane is None else lane.frame()
        for part in (head, view):
            for offset in range(0, len(part), size):
                piece = part[offset : offset + size]
                if lane is None:
                    await self.write(piece)
                    continue
                await lane.take(frame, len(piece))
                try:
                    await self.write(piece)
                finally:
                    lane.wrote(len(piece))

    async def write(self, data: Buffer) -> None:
        if self._ended is not None or self._transport is None or self._transport.is_closing():
            raise StreamClosed(self._ended or "the stream is closed")
        self._transport.write(data)
        self.sent += len(data)
        if self._writing_paused:
            self._writer = asyncio.get_running_loop().create_future()
            began = time.monotonic()
            try:
                await self._writer
            finally:
                self._writer = None
                self.blocked_s += time.monotonic() - began

    @property
    def held_up(self) -> bool:
        """Whether written data waits because the other side or the link does not accept it."""
        return self._writing_paused

    async def wait_ended(self) -> str:
        """Wait for the end of a stream on which the other side must send nothing; returns why it ended.

        If data arrives nevertheless, the stream is closed.
        """
        try:
            await self.read_exactly(1)
        except StreamClosed as error:
            return str(error)
        self.close()
        return "the other side has sent data on a one-way stream"

    def close(self) -> None:
        """Close the stream after all written data is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the stream at once; written data that is not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ for the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=CHUNK)

    def get_buffer(self, sizehint: int) -> Any:
        if self._target is not None:
            return self._target[self._filled :]
        if self._start:
            self._scratch[: self._end - self._start] = self._scratch[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        return memoryview(self._scratch)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._target is not None:
            self._filled += nbytes
            if self._filled == len(self._target):
                self._target = None
                if self._reader is not None and not self._reader.done():
                    self._reader.set_result(None)
            return
        self._end += nbytes
        if self._end - self._start == len(self._scratch) and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._end_with("the other side closed the stream")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end_with(f"the connection broke: {error}" if error is not None else "the stream is closed")

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _end_with(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_exception(StreamClosed(self._ended))


def _longest_s(nbytes: int, step_s: float | None) -> float:
    """Seconds that a frame of `nbytes` bytes may take, besides FRAME_S."""
    longest_s = nbytes / LEAST_RATE
    return longest_s if step_s is None else min(longest_s, max(step_s, nbytes / LEAST_RATE_OF_STEP))
