"""The packed format of sums that replicas exchange: integers on the grid, with only the bits that they need.

In mode "exact" a sum is an integer in units of 2^-b. Most sums need far fewer than 64 bits. So blocks of 64 numbers are
stored as integers of one width, that of the largest zigzag-coded number in the block. A block that contains NOT_FINITE,
or a number of more than 53 bits with its sign, is stored as fp64, with NaN for NOT_FINITE.

    payload: a byte per block, its width in bits: 0 … 53, or 64 for fp64 | the blocks, those of width 0 first, then 1, …

The n blocks of one width are 64·n numbers in 8 rows of equal length. A column is 8 numbers in `width` bytes, with the
number of the first row in the lowest bits. A column is split into 64-bit words, and a rest of 32, 16 and 8 bits. The
first words of all columns are stored first, then the second words, …; all little-endian. So numpy can process whole
rows, and nothing is transposed. The last block is padded with zeros.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from swarm.buffer import Buffer
from swarm.compute.grid import NOT_FINITE

BLOCK = 64
_ROWS = 8
_WIDEST = 53
_RAW = 64
_COLUMNS = 1 << 12
"""Columns that are processed at a time, so that intermediate results stay in the cache."""
_WORDS = -(-_WIDEST // 8)

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Whole = NDArray[np.int64]


class PackingError(ValueError):
    """The bytes are not valid packed numbers; the message gives the reason."""


def largest(count: int) -> int:
    """Largest number of bytes of `count` packed numbers."""
    return _blocks(count) * (1 + 8 * BLOCK)


def pack(numbers: Whole, grid_bits: int) -> bytearray:
    """Pack numbers: (count,), contiguous, in units of 2^-grid_bits."""
    blocks = _blocks(len(numbers))
    folded, widths = _folded(numbers, grid_bits)
    payload = bytearray(blocks + BLOCK // 8 * int(widths.sum(dtype=np.int64)))
    everything = np.frombuffer(payload, dtype=np.uint8)
    everything[:blocks] = widths
    counts = np.bincount(widths)
    ordered = folded
    if np.count_nonzero(counts) > 1:
        order = np.argsort(widths, kind="stable")
        ordered = np.take(folded, order, axis=0, out=_scratch("ordered", (blocks, BLOCK)), mode="clip")
    for width, those, where in groups(counts):
        pack_width(ordered[those], width, everything[blocks:][where])
    return payload


def unpack(payload: Buffer, count: int, grid_bits: int, out: Whole) -> None:
    """Unpack into `out`, (count,), contiguous. Raises PackingError; `out` is undefined then."""
    widths, data = _split(payload, count)
    blocks = len(widths)
    counts = np.bincount(widths)
    whole = _scratch("unpacked", (blocks, BLOCK)).view(np.int64)
    for width, those, where in groups(counts):
        if width == _RAW:
            whole[those] = _from_floats(data[where].view(np.float64), grid_bits).reshape(-1, BLOCK)
        else:
            unpack_width(data[where], width, whole[those])
    if np.count_nonzero(counts) <= 1:
        out[:] = whole.reshape(-1)[:count]
        return
    order = np.argsort(widths, kind="stable")
    full = count // BLOCK
    if full == blocks:
        out.reshape(-1, BLOCK)[order] = whole
        return
    last = int(np.flatnonzero(order == full)[0])  # the padded block
    out[full * BLOCK :] = whole[last, : count - full * BLOCK]
    rest = np.delete(order, last)
    out[: full * BLOCK].reshape(-1, BLOCK)[rest] = np.delete(whole, last, axis=0)


def check(payload: Buffer, count: int, grid_bits: int) -> None:
    """Raise PackingError if the payload is malformed, or contains a number that is not on the grid or beyond its limit.

    It only reads the blocks stored as fp64, so it is fast: other numbers are always at most 2^(52 - grid_bits).
    """
    widths, data = _split(payload, count)
    if widths.max(initial=0) < _RAW:
        return
    numbers = data[len(data) - 8 * BLOCK * np.count_nonzero(widths == _RAW) :].view(np.float64)  # these come last
    if widths[-1] == _RAW:
        numbers = numbers[: len(numbers) - (len(widths) * BLOCK - count)]  # without the padding of the last block
    _from_floats(numbers, grid_bits)


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _split(payload: Buffer, count: int) -> tuple[Bytes, Bytes]:
    """Split a payload into (widths, data), and check its size. Raises PackingError."""
    everything = np.frombuffer(payload, dtype=np.uint8)
    blocks = _blocks(count)
    if len(everything) < blocks:
        raise PackingError(f"packed numbers have {len(everything)} bytes, expected at least {blocks}")
    widths, data = everything[:blocks], everything[blocks:]
    if widths.max(initial=0) > _WIDEST and len(unknown := widths[(widths > _WIDEST) & (widths != _RAW)]):
        raise PackingError(f"packed numbers have a block of {int(unknown[0])} bits per number, which is not a width")
    wanted = BLOCK // 8 * int(widths.sum(dtype=np.int64))
    if len(data) != wanted:
        raise PackingError(f"packed numbers have {blocks + len(data)} bytes; their widths need {blocks + wanted}")
    return widths, data


def groups(counts: NDArray[np.intp]) -> Iterator[tuple[int, slice, slice]]:
    """For each existing width except 0: (width, slice of its blocks in sorted order, slice of its bytes)."""
    block = start = 0
    for width in np.flatnonzero(counts).tolist():
        those = slice(block, block := block + int(counts[width]))
        where = slice(start, start := start + (those.stop - those.start) * BLOCK // 8 * width)
        yield width, those, where


_local = threading.local()


def _scratch(name: str, shape: tuple[int, ...]) -> Words:
    """Uninitialised scratch memory of this thread, reused by later calls: new pages would cost as much as the work."""
    size = math.prod(shape)
    held: Words | None = getattr(_local, name, None)
    if held is None or len(held) < size:
        held = np.empty(size, np.uint64)
        setattr(_local, name, held)
    return held[:size].reshape(shape)


# ------------------------------------------------ numbers and zigzag


def _folded(numbers: Whole, grid_bits: int) -> tuple[Words, Bytes]:
    """(numbers in zigzag code, (blocks, BLOCK); width of each block). Blocks with the width RAW are fp64."""
    blocks = _blocks(len(numbers))
    folded = _scratch("folded", (blocks, BLOCK))
    integers, flat = folded.view(np.int64), folded.reshape(-1).view(np.int64)
    signs = _scratch("signs", (_ROWS * _COLUMNS,)).view(np.int64)
    widest = np.empty(blocks, np.int64)
    for start in range(0, len(numbers), len(signs)):
        part = numbers[start : start + len(signs)]
        where = flat[start : start + len(part)]
        np.left_shift(part, 1, out=where)
        np.bitwise_xor(where, np.right_shift(part, 63, out=signs[: len(part)]), out=where)
        if len(part) % BLOCK:
            flat[len(numbers) :] = 0
        those = slice(start // BLOCK, _blocks(start + len(part)))
        torch.amax(torch.from_numpy(integers[those]), 1, out=torch.from_numpy(widest[those]))
    widths = np.frexp(widest.astype(np.float64))[1].astype(np.uint8)
    if len(wide := np.flatnonzero(widths > _WIDEST)):
        widths[wide] = _RAW
        filled = integers[wide]  # the zigzag of zeros is zero
        folded[wide] = _to_floats((filled >> 1) ^ -(filled & 1), grid_bits).view(np.uint64)
    return folded, widths


def _to_floats(whole: Whole, grid_bits: int) -> NDArray[np.float64]:
    return np.where(whole == NOT_FINITE, np.nan, whole * 2.0**-grid_bits)


def _from_floats(numbers: NDArray[np.float64], grid_bits: int) -> Whole:
    """Convert fp64 to units. NaN and infinity become NOT_FINITE.

    Raises PackingError for numbers off or beyond the grid.
    """
    finite = np.isfinite(numbers)
    known = np.where(finite, numbers, 0.0)
    if (peak := np.abs(known).max(initial=0.0)) >= (limit := 2.0 ** (_WIDEST - grid_bits)):
        raise PackingError(f"packed numbers reach {peak:.6g}; the limit of the grid is {limit:.6g}")
    scaled = known * 2.0**grid_bits
    whole = scaled.astype(np.int64)
    if np.any(whole != scaled):
        raise PackingError(f"packed numbers are not multiples of 2^-{grid_bits}")
    return np.where(finite, whole, NOT_FINITE)


# ------------------------------------------------ zigzag and bytes


def pack_width(numbers: Words, width: int, data: Bytes) -> None:
    """Write numbers of one width. numbers: (blocks, BLOCK), each below 2^width; data: receives their bytes."""
    if width == _RAW:
        data[:] = numbers.reshape(-1).view(np.uint8)
        return
    if not width:
        return
    rows = numbers.reshape(_ROWS, -1)
    count = rows.shape[1]
    words, shifted = _scratch("words", (_WORDS, _COLUMNS)), _scratch("shifted", (_COLUMNS,))
    for start in range(0, count, _COLUMNS):
        part = rows[:, start : start + _COLUMNS]
        size = part.shape[1]
        begun = 0
        for place, row in enumerate(part):
            word, shift = divmod(place * width, 64)
            if word == begun:  # the first number in this word: overwrite it
                np.left_shift(row, np.uint64(shift), out=words[word, :size])
                begun += 1
            else:
                held = words[word, :size]
                np.bitwise_or(held, np.left_shift(row, np.uint64(shift), out=shifted[:size]), out=held)
            if shift + width > 64:
                np.right_shift(row, np.uint64(64 - shift), out=words[word + 1, :size])
                begun += 1
        for word, shift, kind, plane in _planes(width, count, data):
            held = words[word, :size]
            if shift:
                held = np.right_shift(held, np.uint64(shift), out=shifted[:size])
            plane[start * kind().itemsize : (start + size) * kind().itemsize] = held.astype(kind, copy=False).view(
                np.uint8
            )


def unpack_width(data: Bytes, width: int, whole: Whole) -> None:
    """Read numbers of one width into `whole`, (blocks, BLOCK)."""
    if not width:
        whole[:] = 0
        return
    rows = whole.reshape(_ROWS, -1)
    count = rows.shape[1]
    words, shifted = _scratch("words", (_WORDS, _COLUMNS)), _scratch("shifted", (_COLUMNS,))
    zigzag = _scratch("signs", (_ROWS, _COLUMNS)).view(np.int64)
    mask = np.uint64((1 << width) - 1)
    for start in range(0, count, _COLUMNS):
        size = min(_COLUMNS, count - start)
        for word, shift, kind, plane in _planes(width, count, data):
            piece = plane[start * kind().itemsize : (start + size) * kind().itemsize].view(kind)
            held = words[word, :size]
            if shift:
                held |= np.left_shift(piece, np.uint64(shift), out=shifted[:size], dtype=np.uint64)
            else:
                held[:] = piece
        for place in range(_ROWS):
            row = rows[place, start : start + size]
            bits = row.view(np.uint64)
            word, shift = divmod(place * width, 64)
            np.right_shift(words[word, :size], np.uint64(shift), out=bits)
            if shift + width > 64:
                bits |= np.left_shift(words[word + 1, :size], np.uint64(64 - shift), out=shifted[:size])
            bits &= mask
        part = rows[:, start : start + size]
        signs = zigzag[:, :size]
        np.negative(np.bitwise_and(part, 1, out=signs), out=signs)
        np.right_shift(part, 1, out=part)
        part ^= signs


def _planes(width: int, count: int, data: Bytes) -> Iterator[tuple[int, int, type[np.unsignedinteger], Bytes]]:
    """The stored planes of `count` columns, in order: (word within the column, lowest bit, dtype, bytes)."""
    words, left = divmod(width, 8)
    start = 0
    for word in range(words):
        yield word, 0, np.uint64, data[start : (start := start + 8 * count)]
    shift = 0
    for kind in (np.uint32, np.uint16, np.uint8):
        size = kind().itemsize
        if left & size:
            yield words, shift, kind, data[start : (start := start + size * count)]
            shift += 8 * size
