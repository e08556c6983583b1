"""Numbers of a grid as bytes, with only the bits they need: what replicas send each other to add up.

In mode "exact" a sum is a multiple of 2^-b: an integer. Its 64 bits are few when the grid is as coarse as the gradients
allow, so blocks of 64 numbers are stored as integers of one width each: the zigzag of the largest. Every number comes
back with the very same bits, whatever it is: a block that holds anything else (infinity, NaN, a sum of more than
53 bits) is stored as it is.

    payload: a byte per block, its width in bits: 0 … 53, or 64 as it is | the blocks, those of width 0 first, then 1, …

The n blocks of one width are 64·n numbers in 8 rows of equal length. A column is 8 numbers in `width` bytes, the number
of the first row in the lowest bits: so many words of 64 bits, and what is left over as 32, 16 and 8 bits. First the
first word of every column is stored, then the second, …; all little-endian. So numpy works on whole rows, and nothing
is transposed. The last block is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from swarm.buffer import Buffer

BLOCK = 64
_ROWS = 8
_WIDEST = 53
_RAW = 64
_CHUNK = 512
"""Blocks that are worked on at a time, so that what comes between two operations stays in a cache."""

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


class PackingError(ValueError):
    """Bytes that are no packed numbers; the text says why."""


def largest(count: int) -> int:
    """Bytes that `count` numbers take at most."""
    return _blocks(count) * (1 + 8 * BLOCK)


def pack(values: NDArray[np.float64], grid_bits: int) -> bytes:
    """values: (count,), contiguous. Small where they are multiples of 2^-grid_bits."""
    folded, widths = _folded(values, grid_bits)
    present = _present(widths)
    packed = [_pack(folded if len(present) == 1 else folded[widths == width], width) for width in present]
    return b"".join((widths.tobytes(), *(plane for planes in packed for plane in planes)))


def unpack(payload: Buffer, count: int, grid_bits: int) -> NDArray[np.float64]:
    """(count,), freshly allocated. Raises PackingError."""
    widths, data = _split(payload, count)
    blocks = np.empty((len(widths), BLOCK))
    start = 0
    for width in _present(widths):
        chosen = np.flatnonzero(widths == width)
        end = start + len(chosen) * BLOCK // 8 * width
        _unfold(_unpack(data[start:end], len(chosen), width), width, grid_bits, blocks, chosen)
        start = end
    return blocks.reshape(-1)[:count]


def peak(payload: Buffer, count: int) -> float:
    """Largest magnitude among the numbers that are stored as they are; NaN if there is one.

    The others are at most 2^(52 - grid_bits). Reads nothing else, so it costs little. Raises PackingError.
    """
    widths, data = _split(payload, count)
    raw = np.count_nonzero(widths == _RAW) * BLOCK
    numbers = data[len(data) - 8 * raw :].view(np.float64)  # the widest come last
    if raw and widths[-1] == _RAW:
        numbers = numbers[: raw - (len(widths) * BLOCK - count)]  # what fills up the last block is never read
    return float(np.abs(numbers).max(initial=0.0))


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _split(payload: Buffer, count: int) -> tuple[Bytes, Bytes]:
    """(widths, data) of a payload whose size is what the widths say."""
    everything = np.frombuffer(payload, dtype=np.uint8)
    blocks = _blocks(count)
    if len(everything) < blocks:
        raise PackingError(f"{len(everything)} bytes, expected at least {blocks}")
    widths, data = everything[:blocks], everything[blocks:]
    unknown = (widths > _WIDEST) & (widths != _RAW)
    if unknown.any():
        raise PackingError(f"{len(everything)} bytes with a block of {int(widths[unknown][0])} bits a number")
    wanted = BLOCK // 8 * int(widths.sum(dtype=np.int64))
    if len(data) != wanted:
        raise PackingError(f"{blocks + len(data)} bytes, expected {blocks + wanted} by its widths")
    return widths, data


def _present(widths: Bytes) -> list[int]:
    return [int(width) for width in np.flatnonzero(np.bincount(widths))]


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


# ------------------------------------------------ numbers and integers


def _folded(values: NDArray[np.float64], grid_bits: int) -> tuple[Words, Bytes]:
    """Each number in units of the grid, zigzag, (blocks, BLOCK), and the blocks' widths; as it is where that is RAW."""
    blocks = _blocks(len(values))
    folded, widths = np.empty((blocks, BLOCK), np.uint64), np.empty(blocks, np.uint8)
    scratch = np.empty((min(_CHUNK, blocks), BLOCK))
    for where in _chunks(blocks, _CHUNK):
        numbers = values[where.start * BLOCK : where.stop * BLOCK]
        if len(numbers) < (where.stop - where.start) * BLOCK:
            numbers = np.concatenate((numbers, np.zeros(-len(numbers) % BLOCK)))
        widths[where] = _fold(numbers.reshape(-1, BLOCK), grid_bits, folded[where], scratch)
    return folded, widths


def _fold(numbers: NDArray[np.float64], grid_bits: int, folded: Words, scratch: NDArray[np.float64]) -> Bytes:
    """numbers, folded: (blocks, BLOCK). Returns the widths."""
    integers = folded.view(np.int64)
    scaled = scratch[: len(numbers)]
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(numbers, 2.0**grid_bits, out=scaled)
        np.copyto(integers, scaled, casting="unsafe")
    back = np.multiply(integers, 2.0**-grid_bits, out=scaled)
    same = (back.view(np.int64) == numbers.view(np.int64)).all(axis=1)
    signs = np.right_shift(integers, 63, out=scaled.view(np.int64))
    np.left_shift(integers, 1, out=integers)
    np.bitwise_xor(integers, signs, out=integers)  # zigzag: small negative numbers are small too
    used = np.bitwise_or.reduce(folded, axis=1)
    fits = same & (used < 1 << _WIDEST)
    folded[~fits] = numbers[~fits].view(np.uint64)
    return np.where(fits, np.frexp(used.astype(np.float64))[1], _RAW).astype(np.uint8)


def _unfold(folded: Words, width: int, grid_bits: int, blocks: NDArray[np.float64], chosen: NDArray[np.intp]) -> None:
    """folded: (len(chosen), BLOCK), overwritten: the blocks `chosen` of `blocks`."""
    for where in _chunks(len(chosen), _CHUNK):
        if width == _RAW:
            blocks[chosen[where]] = folded[where].view(np.float64)
            continue
        integers = folded[where].view(np.int64)
        signs = np.negative(integers & 1)
        np.right_shift(integers, 1, out=integers)
        np.bitwise_xor(integers, signs, out=integers)
        if len(chosen) == len(blocks):
            np.multiply(integers, 2.0**-grid_bits, out=blocks[where])
        else:
            blocks[chosen[where]] = integers * 2.0**-grid_bits


# ------------------------------------------------ integers and bytes


def _pack(numbers: Words, width: int) -> list[bytes]:
    """numbers: (blocks, BLOCK), each below 2^width."""
    if width == _RAW:
        return [numbers.tobytes()]
    rows = numbers.reshape(_ROWS, -1)
    words = np.zeros((-(-width // 8), rows.shape[1]), dtype=np.uint64)
    for where in _chunks(rows.shape[1], _CHUNK * BLOCK // _ROWS) if width else ():
        chunk = list(words[:, where])
        for place, row in enumerate(rows[:, where]):
            word, shift = divmod(place * width, 64)
            chunk[word] |= row << np.uint64(shift)
            if shift + width > 64:
                chunk[word + 1] |= row >> np.uint64(64 - shift)
    return [(words[word] >> np.uint64(shift)).astype(kind).tobytes() for word, shift, kind in _planes(width)]


def _unpack(data: Bytes, blocks: int, width: int) -> Words:
    """(blocks, BLOCK)"""
    if width == _RAW:
        return data.view(np.uint64).reshape(blocks, BLOCK)
    columns = blocks * BLOCK // _ROWS
    words = np.zeros((-(-width // 8), columns), dtype=np.uint64)
    start = 0
    for word, shift, kind in _planes(width):
        plane = data[start : (start := start + columns * kind().itemsize)].view(kind)
        words[word] |= plane.astype(np.uint64) << np.uint64(shift)
    rows = np.zeros((_ROWS, columns), dtype=np.uint64)
    mask = np.uint64((1 << width) - 1)
    for where in _chunks(columns, _CHUNK * BLOCK // _ROWS) if width else ():
        chunk = words[:, where]
        for place, row in enumerate(rows[:, where]):
            word, shift = divmod(place * width, 64)
            np.right_shift(chunk[word], np.uint64(shift), out=row)
            if shift + width > 64:
                row |= chunk[word + 1] << np.uint64(64 - shift)
            row &= mask
    return rows.reshape(blocks, BLOCK)


def _planes(width: int) -> Iterator[tuple[int, int, type[np.unsignedinteger]]]:
    """(word of a column, lowest bit, type) of what is stored of it, in order: `width` bytes."""
    words, left = divmod(width, 8)
    yield from ((word, 0, np.uint64) for word in range(words))
    shift = 0
    for kind in (np.uint32, np.uint16, np.uint8):
        if left & kind().itemsize:
            yield words, shift, kind
            shift += 8 * kind().itemsize
