"""Huffman codes of bytes: DEFLATE (RFC 1951) without its search for repetitions, as a raw stream of zlib."""

from __future__ import annotations

import zlib

from swarm.buffer import Buffer
from swarm.codecs.codec import CodecError, Reason

_RAW = -15
"""Window bits: neither header nor checksum, because the frame has its own."""
_LEVEL, _MEMORY = 9, 9
"""The largest blocks: 32,768 symbols share a table."""


def shortened(symbols: Buffer) -> bytes:
    """The stream that contains these bytes."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, _MEMORY, zlib.Z_HUFFMAN_ONLY)
    return deflater.compress(symbols) + deflater.flush()


def restored(stream: memoryview, count: int, what: str) -> bytes:
    """The `count` bytes that a stream contains. `what`: their name in the plural. Raises CodecError.

    A stream of `shortened` has at least one bit for each of them. A shorter one contains repetitions, with which a few
    kilobytes would stand for megabytes. It is refused before it is decoded.
    """
    if 8 * len(stream) < count:
        raise CodecError(Reason.BAD_CODES, f"{len(stream)} bytes have less than one bit for each of {count} {what}")
    inflater = zlib.decompressobj(_RAW)
    try:
        found = inflater.decompress(stream, count + 1)
    except zlib.error as error:
        raise CodecError(Reason.BAD_CODES, str(error)) from None
    if len(found) != count or not inflater.eof or inflater.unused_data:
        raise CodecError(Reason.BAD_CODES, f"the stream does not contain {count} {what}")
    return found
