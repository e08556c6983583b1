"""Packed pieces of a state: the exponents of its numbers in a Huffman code, the rest unchanged.

Trained values have few different exponents: the 8 exponent bits of a parameter or moment contain about 3 bits of
information, while the mantissa is noise. So an fp32 state becomes a sixth smaller in transfer, without loss (the idea
of ZipNN: Hershcovitch et al. 2024).

    packed piece: length of the exponents u32 | exponents, deflate with only Huffman codes |
                  sign and mantissa, 3 bytes per number | the rest, if the piece's length is no multiple of 4
    run of pieces: each piece after its length u32; a piece with its full length is not packed
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from swarm.state.error import StateError

_LENGTH = struct.Struct("<I")
_NUMBER = 4


def pack(piece: bytes | memoryview) -> bytes | None:
    """Pack a piece of little-endian fp32. None: packing would not make it shorter."""
    count = len(piece) // _NUMBER
    words = np.frombuffer(piece, "<u4", count)
    parts = ((words << 1) | (words >> 31)).astype("<u4").view(np.uint8).reshape(count, _NUMBER)
    coder = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=zlib.Z_HUFFMAN_ONLY)
    exponents = coder.compress(parts[:, 3].tobytes()) + coder.flush()
    packed = b"".join((_LENGTH.pack(len(exponents)), exponents, parts[:, :3].tobytes(), piece[count * _NUMBER :]))
    return packed if len(packed) < len(piece) else None


def framed(piece: bytes | memoryview) -> list[bytes | memoryview]:
    """A piece as it is sent within a run of pieces, in parts."""
    shortest = pack(piece) or piece
    return [_LENGTH.pack(len(shortest)), shortest]


def take_framed(run: bytearray, size: int, where: str) -> bytes | None:
    """Remove and return the piece of `size` bytes at the start of a run. None: it is not complete yet.

    Raises StateError naming `where`.
    """
    if len(run) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(run)
    if length > size:
        raise StateError(where, f"has sent a piece of {length} bytes, expected at most {size}")
    end = _LENGTH.size + length
    if len(run) < end:
        return None
    piece = bytes(memoryview(run)[_LENGTH.size : end])
    del run[:end]
    return piece if length == size else unpack(piece, size, where)


def framed_bytes(size: int) -> int:
    """Largest number of bytes that a piece of `size` bytes takes in a run."""
    return _LENGTH.size + size


def unpack(packed: bytes | memoryview, size: int, where: str) -> bytes:
    """The piece of `size` bytes. Raises StateError naming `where`; never produces more bytes than `size`."""
    count, left = divmod(size, _NUMBER)
    if len(packed) < _LENGTH.size:
        raise StateError(where, f"{len(packed)} bytes are not a packed piece")
    (length,) = _LENGTH.unpack_from(packed)
    begin = _LENGTH.size + length
    if len(packed) != begin + 3 * count + left:
        raise StateError(
            where, f"a packed piece of {len(packed)} bytes, {length} of them exponents, does not unpack to {size} bytes"
        )
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        exponents = decoder.decompress(packed[_LENGTH.size : begin], count + 1)
    except zlib.error as error:
        raise StateError(where, f"the exponents of a packed piece cannot be decoded: {error}") from None
    if len(exponents) != count or not decoder.eof:
        raise StateError(where, f"a packed piece has at least {len(exponents)} exponents, expected {count}")
    parts = np.empty((count, _NUMBER), np.uint8)
    parts[:, 3] = np.frombuffer(exponents, np.uint8)
    parts[:, :3] = np.frombuffer(packed, np.uint8, 3 * count, begin).reshape(count, 3)
    words = parts.reshape(-1).view("<u4")
    return ((words >> 1) | (words << 31)).astype("<u4").tobytes() + bytes(packed[begin + 3 * count :])
