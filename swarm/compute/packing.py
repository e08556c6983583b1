"""Numbers of a grid as bytes, with only the bits they need: what replicas send each other to add up.

In mode "exact" a sum is a multiple of 2^-b: an integer. Its 64 bits are few when the grid is as coarse as the gradients
allow, so blocks of 64 numbers are stored as integers of one width each: the zigzag of the largest. Every number comes
back with the very same bits, whatever it is: a block that holds anything else (infinity, NaN, a sum of more than
53 bits) is stored as it is.

    payload: a byte per block, its width in bits: 0 … 53, or 64 as it is | the blocks, those of width 0 first, then 1, …

Within a block: 8 groups of 8 numbers, each group `width` bytes, little-endian, first number in the lowest bits. The
last block is filled up with zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
_GROUP = 8
_WIDEST = 53
_RAW = 64
_LARGEST = 2.0 ** (_WIDEST - 1)

Buffer = bytes | bytearray | memoryview
Integers = NDArray[np.uint64]


class PackingError(ValueError):
    """Bytes that are no packed numbers; the text says why."""


def largest(count: int) -> int:
    """Bytes that `count` numbers take at most."""
    return _blocks(count) * (1 + 8 * BLOCK)


def pack(values: NDArray[np.float64], grid_bits: int) -> bytes:
    """values: (count,). Small where they are multiples of 2^-grid_bits."""
    blocks = np.zeros((_blocks(len(values)), BLOCK))
    blocks.reshape(-1)[: len(values)] = values
    integers, fits = _integers(blocks, grid_bits)
    folded = ((integers << 1) ^ (integers >> 63)).view(np.uint64)  # zigzag: small negative numbers are small too
    used = np.bitwise_or.reduce(folded, axis=1)
    widths = np.where(fits, np.frexp(used.astype(np.float64))[1], _RAW).astype(np.uint8)
    folded[~fits] = blocks[~fits].view(np.uint64)
    packed = [_pack(folded[widths == width], width) for width in _present(widths)]
    return b"".join((widths.tobytes(), *packed))


def unpack(payload: Buffer, count: int, grid_bits: int) -> NDArray[np.float64]:
    """(count,), freshly allocated. Raises PackingError."""
    widths, data = _split(payload, count)
    blocks = np.empty((len(widths), BLOCK))
    start = 0
    for width in _present(widths):
        chosen = np.flatnonzero(widths == width)
        end = start + len(chosen) * _GROUP * width
        folded = _unpack(data[start:end], len(chosen), width)
        start = end
        if width == _RAW:
            blocks[chosen] = folded.view(np.float64)
        else:
            integers = (folded >> 1).view(np.int64) ^ -(folded & 1).view(np.int64)
            blocks[chosen] = integers * 2.0**-grid_bits
    return blocks.reshape(-1)[:count]


def peak(payload: Buffer, count: int) -> float:
    """Largest magnitude among the numbers that are stored as they are; NaN if there is one.

    The others are below 2^(52 - grid_bits). Reads nothing else, so it costs little. Raises PackingError.
    """
    widths, data = _split(payload, count)
    raw = np.count_nonzero(widths == _RAW) * BLOCK
    numbers = data[len(data) - 8 * raw :].view(np.float64)  # the widest come last
    if raw and widths[-1] == _RAW:
        numbers = numbers[: raw - (len(widths) * BLOCK - count)]  # what fills up the last block is never read
    return float(np.abs(numbers).max(initial=0.0))


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _split(payload: Buffer, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(widths, data) of a payload whose size is what the widths say."""
    everything = np.frombuffer(payload, dtype=np.uint8)
    blocks = _blocks(count)
    if len(everything) < blocks:
        raise PackingError(f"{len(everything)} bytes, expected at least {blocks}")
    widths, data = everything[:blocks], everything[blocks:]
    unknown = (widths > _WIDEST) & (widths != _RAW)
    if unknown.any():
        raise PackingError(f"{len(everything)} bytes with a block of {int(widths[unknown][0])} bits a number")
    wanted = _GROUP * int(widths.sum(dtype=np.int64))
    if len(data) != wanted:
        raise PackingError(f"{blocks + len(data)} bytes, expected {blocks + wanted} by its widths")
    return widths, data


def _present(widths: NDArray[np.uint8]) -> list[int]:
    return [int(width) for width in np.unique(widths)]


def _integers(blocks: NDArray[np.float64], grid_bits: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Each number in units of the grid, and which blocks come back from that bit by bit."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = blocks * 2.0**grid_bits
        integers = scaled.astype(np.int64)
    back = integers * 2.0**-grid_bits
    same = (back.view(np.int64) == blocks.view(np.int64)) & (np.abs(scaled) < _LARGEST)
    return integers, same.all(axis=1)


def _pack(numbers: Integers, width: int) -> bytes:
    """numbers: (blocks, BLOCK), each below 2^width."""
    if width == _RAW:
        return numbers.tobytes()
    columns = np.ascontiguousarray(numbers.reshape(-1, _GROUP).T)  # (8, groups)
    words = np.zeros((_words(width), columns.shape[1]), dtype=np.uint64)
    for position, column in enumerate(columns):
        word, shift = divmod(position * width, 64)
        if width:
            words[word] |= column << np.uint64(shift)
        if shift + width > 64:
            words[word + 1] |= column >> np.uint64(64 - shift)
    rows = np.ascontiguousarray(words.T).view(np.uint8)  # (groups, 8 × words)
    return rows[:, :width].tobytes()


def _unpack(data: NDArray[np.uint8], blocks: int, width: int) -> Integers:
    """(blocks, BLOCK)"""
    if width == _RAW:
        return data.view(np.uint64).reshape(blocks, BLOCK)
    groups = blocks * BLOCK // _GROUP
    rows = np.zeros((groups, 8 * _words(width)), dtype=np.uint8)
    rows[:, :width] = data.reshape(groups, width)
    words = np.ascontiguousarray(rows.view(np.uint64).T)
    columns = np.zeros((_GROUP, groups), dtype=np.uint64)
    mask = np.uint64((1 << width) - 1)
    for position, column in enumerate(columns):
        word, shift = divmod(position * width, 64)
        if width:
            column |= words[word] >> np.uint64(shift)
        if shift + width > 64:
            column |= words[word + 1] << np.uint64(64 - shift)
        column &= mask
    return np.ascontiguousarray(columns.T).reshape(blocks, BLOCK)


def _words(width: int) -> int:
    return -(-width // 8)
