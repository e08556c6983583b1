"""Packed pieces of a state: the exponents of its numbers in a Huffman code, the rest unchanged.

Trained values have few exponents: of the 32 bits of a parameter or a moment, the 8 of the exponent carry about 3 bits,
and the mantissa is noise. So a state of fp32 is a sixth smaller in transfer, and bit for bit the same afterwards. (The
idea of ZipNN: Hershcovitch et al. 2024.)

    packed piece: length of the exponents u32 | exponents, deflate with only Huffman codes |
                  sign and mantissa, 3 bytes per number | the rest, if the piece's length is no multiple of 4
    run of pieces: each with its length u32 in front; if it is as long as the piece, it is the piece unpacked
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from swarm.state.error import StateError

_LENGTH = struct.Struct("<I")
_NUMBER = 4


def pack(piece: bytes | memoryview) -> bytes | None:
    """The piece, of little-endian fp32, packed. None: packing would not make it shorter."""
    count = len(piece) // _NUMBER
    words = np.frombuffer(piece, "<u4", count)
    parts = ((words << 1) | (words >> 31)).astype("<u4").view(np.uint8).reshape(count, _NUMBER)
    coder = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=zlib.Z_HUFFMAN_ONLY)
    exponents = coder.compress(parts[:, 3].tobytes()) + coder.flush()
    packed = b"".join((_LENGTH.pack(len(exponents)), exponents, parts[:, :3].tobytes(), piece[count * _NUMBER :]))
    return packed if len(packed) < len(piece) else None


def framed(piece: bytes | memoryview) -> list[bytes | memoryview]:
    """The parts of a piece within a run of pieces."""
    shortest = pack(piece) or piece
    return [_LENGTH.pack(len(shortest)), shortest]


def take_framed(run: bytearray, size: int, where: str) -> bytes | None:
    """Take the piece of `size` bytes at the beginning of a run. None: it is not complete yet.

    Raises StateError naming `where`.
    """
    if len(run) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(run)
    if length > size:
        raise StateError(where, f"a piece of {length} bytes, expected {size} at most")
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
        raise StateError(where, f"a packed piece of {len(packed)} bytes, with {length} of exponents, is not of {size}")
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        exponents = decoder.decompress(packed[_LENGTH.size : begin], count + 1)
    except zlib.error as error:
        raise StateError(where, f"the exponents of a packed piece cannot be read: {error}") from None
    if len(exponents) != count or not decoder.eof:
        raise StateError(where, f"a packed piece has {len(exponents)} exponents or more, expected {count}")
    parts = np.empty((count, _NUMBER), np.uint8)
    parts[:, 3] = np.frombuffer(exponents, np.uint8)
    parts[:, :3] = np.frombuffer(packed, np.uint8, 3 * count, begin).reshape(count, 3)
    words = parts.reshape(-1).view("<u4")
    return ((words >> 1) | (words << 31)).astype("<u4").tobytes() + bytes(packed[begin + 3 * count :])
