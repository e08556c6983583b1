"""Rice coding of integers: 0.25 bits per number above the entropy, about one bit less than packing.py.

For a zigzag-coded number u, u >> r is written in unary, and the r lowest bits are written unchanged. Each block of 64
numbers has the best r. (Rice, Plaunt: Adaptive variable-length coding, IEEE Trans. Communications 19, 1971.)

    payload: kind u8 = 0 | a byte per block, r: 0 … 40, or 255: all zero | the low bits, packed (packing.py) by width
             | the quotients of all numbers in blocks that are not zero, by r: so many 0 bits each, and a 1
    payload: kind u8 = 1 | packed numbers (packing.py), where some are not finite, or larger than 2^40

Payloads of other peers are checked before memory is allocated: quotients have at most three bits per number on average.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from swarm.buffer import Buffer
from swarm.compute import packing
from swarm.compute.packing import BLOCK, Bytes, PackingError, Whole

LARGEST = 1 << 40
"""Largest magnitude that is Rice-coded."""
_MOST = 40
_EMPTY = 255
_UNARY = 3
"""Largest average number of quotient bits per number: r ≥ log₂ of the mean, so the mean quotient is below 2."""


class Kind(enum.IntEnum):
    RICE = 0
    PACKED = 1


def largest(count: int) -> int:
    """Upper bound on the bytes of `count` coded numbers."""
    return 1 + packing.largest(count)


def pack(numbers: Whole, grid_bits: int) -> bytes:
    """Code numbers: (count,), contiguous. `grid_bits`: as in packing.py, for kind 1."""
    if len(numbers) and max(-int(numbers.min()), int(numbers.max())) > LARGEST:
        return bytes((Kind.PACKED,)) + packing.pack(numbers, grid_bits)
    blocks = -(-len(numbers) // BLOCK)
    zigzag = np.zeros((blocks, BLOCK), np.int64)
    flat = zigzag.reshape(-1)[: len(numbers)]
    np.left_shift(numbers, 1, out=flat)
    flat ^= numbers >> 63
    widths = _widths(zigzag)
    order = np.argsort(widths, kind="stable")[: blocks - np.count_nonzero(widths == _EMPTY)]
    ordered = zigzag[order]
    shifts = widths[order].astype(np.int64)[:, None]
    quotients = ordered >> shifts
    ordered &= (np.int64(1) << shifts) - 1
    low = np.zeros(BLOCK // 8 * int(shifts.sum()), np.uint8)
    for width, those, where in packing.groups(np.bincount(widths[order])):
        packing.pack_width(ordered[those].view(np.uint64), width, low[where])
    ends = np.cumsum(quotients.reshape(-1) + 1)
    unary = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    unary[ends - 1] = 1
    return b"".join((bytes((Kind.RICE,)), widths.tobytes(), low.tobytes(), np.packbits(unary).tobytes()))


def unpack(payload: Buffer, count: int, grid_bits: int, out: Whole) -> None:
    """Decode into `out`, (count,), contiguous. Raises PackingError; `out` is undefined then."""
    if _kind(payload) is Kind.PACKED:
        packing.unpack(memoryview(payload)[1:], count, grid_bits, out)
        return
    widths, low, unary = _split(payload, count)
    order = np.argsort(widths, kind="stable")[: len(widths) - np.count_nonzero(widths == _EMPTY)]
    shifts = widths[order].astype(np.int64)[:, None]
    whole = np.empty((len(order), BLOCK), np.int64)
    for width, those, where in packing.groups(np.bincount(widths[order])):
        packing.unpack_width(low[where], width, whole[those])
    ends = np.flatnonzero(np.unpackbits(unary).view(np.bool_))
    quotients = np.diff(ends, prepend=-1).reshape(-1, BLOCK)
    quotients -= 1
    alone = np.count_nonzero(shifts == 0)  # with r = 0, the sign (the lowest bit) is part of the quotient
    quotients[:alone] = (quotients[:alone] >> 1) ^ -(quotients[:alone] & 1)
    whole ^= quotients << np.maximum(shifts - 1, 0)
    numbers = np.zeros((len(widths), BLOCK), np.int64)
    numbers[order] = whole
    out[:] = numbers.reshape(-1)[:count]


def check(payload: Buffer, count: int, grid_bits: int) -> None:
    """Raise PackingError for payloads that `unpack` refuses, in a fraction of its time."""
    if _kind(payload) is Kind.PACKED:
        packing.check(memoryview(payload)[1:], count, grid_bits)
    else:
        _split(payload, count)


def _kind(payload: Buffer) -> Kind:
    view = memoryview(payload).cast("B")
    if not len(view) or view[0] > Kind.PACKED:
        raise PackingError(f"coded numbers are of kind {view[0] if len(view) else 'none'}, expected 0 or 1")
    return Kind(view[0])


def _split(payload: Buffer, count: int) -> tuple[Bytes, Bytes, Bytes]:
    """Split a payload into (r of every block, low bits, quotients), and check their sizes. Raises PackingError."""
    everything = np.frombuffer(payload, dtype=np.uint8)[1:]
    blocks = -(-count // BLOCK)
    if len(everything) < blocks:
        raise PackingError(f"coded numbers have {1 + len(everything)} bytes, expected at least {1 + blocks}")
    widths, rest = everything[:blocks], everything[blocks:]
    known = widths[widths != _EMPTY]
    if known.max(initial=0) > _MOST:
        raise PackingError(f"coded numbers have a block of {int(known.max())} low bits per number, which is too many")
    low = BLOCK // 8 * int(known.sum(dtype=np.int64))
    most = _UNARY * BLOCK // 8 * len(known)
    if not low <= len(rest) <= low + most:
        raise PackingError(
            f"coded numbers have {1 + len(everything)} bytes, expected {1 + blocks + low} to "
            f"{1 + blocks + low + most} for their widths"
        )
    unary = rest[low:]
    if (found := int(np.bitwise_count(unary).sum(dtype=np.int64))) != BLOCK * len(known):
        raise PackingError(f"the code contains {found} numbers, expected {BLOCK * len(known)}")
    return widths, rest[:low], unary


def _widths(zigzag: Whole) -> NDArray[np.uint8]:
    """The best r of every block."""
    sums = zigzag.sum(1)
    least = np.maximum(np.frexp(sums / BLOCK)[1].astype(np.int64) - 1, 0)
    cost = (zigzag >> least[:, None]).sum(1)
    more = (zigzag >> (least[:, None] + 1)).sum(1) + BLOCK
    widths: NDArray[np.uint8] = (least + (more < cost)).astype(np.uint8)
    widths[sums == 0] = _EMPTY
    return widths
