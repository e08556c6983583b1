"""Whole numbers as bytes by Rice's code: a quarter of a bit above their entropy, where packing.py takes one more.

A number's zigzag u is written as u >> r in unary and its r lowest bits as they are. Each block of 64 numbers has the r
that suits it best. (Rice, Plaunt: Adaptive variable-length coding, IEEE Trans. Communications 19, 1971.)

    payload: kind u8 = 0 | a byte per block, r: 0 … 40, or 255: all zero | the low bits, packed (packing.py) by width
             | the quotients of all numbers in blocks that are not zero, by r: so many 0 bits each, and a 1
    payload: kind u8 = 1 | packed numbers (packing.py), where some are not finite, or larger than 2^40

What a stranger sends is bounded before anything is allocated: quotients take three bits a number at most on average.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from swarm.buffer import Buffer
from swarm.compute import packing
from swarm.compute.packing import BLOCK, Bytes, PackingError, Whole

LARGEST = 1 << 40
"""Magnitude of what has a Rice code here."""
_MOST = 40
_EMPTY = 255
_UNARY = 3
"""Bits of quotients by number at most: r is not below the binary logarithm of the mean, so they are below 2."""


class Kind(enum.IntEnum):
    RICE = 0
    PACKED = 1


def largest(count: int) -> int:
    """Bytes that `count` numbers take at most."""
    return 1 + packing.largest(count)


def pack(numbers: Whole, grid_bits: int) -> bytes:
    """numbers: (count,), contiguous. `grid_bits`: for packed ones, as packing.py has it."""
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
    """Into `out`, (count,), contiguous. Raises PackingError, with `out` undefined."""
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
    alone = np.count_nonzero(shifts == 0)  # the sign is the lowest bit: here it is in the quotients
    quotients[:alone] = (quotients[:alone] >> 1) ^ -(quotients[:alone] & 1)
    whole ^= quotients << np.maximum(shifts - 1, 0)
    numbers = np.zeros((len(widths), BLOCK), np.int64)
    numbers[order] = whole
    out[:] = numbers.reshape(-1)[:count]


def check(payload: Buffer, count: int, grid_bits: int) -> None:
    """Raise PackingError for what `unpack` refuses. Costs a fraction of it."""
    if _kind(payload) is Kind.PACKED:
        packing.check(memoryview(payload)[1:], count, grid_bits)
    else:
        _split(payload, count)


def _kind(payload: Buffer) -> Kind:
    view = memoryview(payload).cast("B")
    if not len(view) or view[0] > Kind.PACKED:
        raise PackingError(f"{len(view)} bytes of kind {view[0] if len(view) else 'none'}, expected 0 or 1")
    return Kind(view[0])


def _split(payload: Buffer, count: int) -> tuple[Bytes, Bytes, Bytes]:
    """(r of every block, low bits, quotients) of a payload that has the numbers of each."""
    everything = np.frombuffer(payload, dtype=np.uint8)[1:]
    blocks = -(-count // BLOCK)
    if len(everything) < blocks:
        raise PackingError(f"{1 + len(everything)} bytes, expected at least {1 + blocks}")
    widths, rest = everything[:blocks], everything[blocks:]
    known = widths[widths != _EMPTY]
    if known.max(initial=0) > _MOST:
        raise PackingError(f"{1 + len(everything)} bytes with a block of {int(known.max())} low bits a number")
    low = BLOCK // 8 * int(known.sum(dtype=np.int64))
    most = _UNARY * BLOCK // 8 * len(known)
    if not low <= len(rest) <= low + most:
        raise PackingError(
            f"{1 + len(everything)} bytes, expected {1 + blocks + low} to {1 + blocks + low + most} by its widths"
        )
    unary = rest[low:]
    if (found := int(np.bitwise_count(unary).sum(dtype=np.int64))) != BLOCK * len(known):
        raise PackingError(f"{1 + len(everything)} bytes with {found} numbers, expected {BLOCK * len(known)}")
    return widths, rest[:low], unary


def _widths(zigzag: Whole) -> NDArray[np.uint8]:
    """The r of every block."""
    sums = zigzag.sum(1)
    least = np.maximum(np.frexp(sums / BLOCK)[1].astype(np.int64) - 1, 0)
    cost = (zigzag >> least[:, None]).sum(1)
    more = (zigzag >> (least[:, None] + 1)).sum(1) + BLOCK
    widths: NDArray[np.uint8] = (least + (more < cost)).astype(np.uint8)
    widths[sums == 0] = _EMPTY
    return widths
