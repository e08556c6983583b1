"""The Triton kernels of fused_packing.py: widths of blocks, columns to bytes, bytes to columns.

Each bucket has a column in `where`: offset of its first number, number of values, index of its first block. A group is
the set of all blocks of one width in one bucket. Each group has a row in `tables`: number of blocks, place of its first
block in `order`, offset of its first byte. `words` is `everything` viewed as 64-bit words.

Importing this module needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

_NUMBERS = ["total", "groups", "count"]
"""Arguments on whose values kernels are not specialised, because each group of buckets would compile new kernels."""


@triton.jit(do_not_specialize=["total", "count"])
def measure(numbers, widths, alike, peaks, buckets, where, total, count, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    valid = block < total
    bucket = tl.load(buckets + block, mask=valid, other=0)
    begin = (block - tl.load(where + 2 * count + bucket)) * 64
    size = tl.load(where + count + bucket)
    source = tl.load(where + bucket) + begin
    lane = tl.arange(0, 64)[None, :]
    inside = valid[:, None] & (begin[:, None] + lane < size[:, None])
    value = tl.load(numbers + source[:, None] + lane, mask=inside, other=0)
    widest = tl.max((value << 1) ^ (value >> 63), axis=1)
    width = tl.zeros((BLOCKS,), dtype=tl.int64)
    for bit in tl.static_range(54):
        width += (widest >= (1 << bit)).to(tl.int64)
    width = tl.where(width > 53, 64, width)
    tl.store(widths + block, width, mask=valid)
    tl.atomic_add(alike + bucket * 65 + width, tl.full((BLOCKS,), 1, dtype=tl.int64), mask=valid)
    magnitude = tl.where(value == -4611686018427387904, 0, tl.where(value < 0, -value, value))
    tl.atomic_max(peaks + bucket, tl.max(magnitude, axis=1), mask=valid)


@triton.jit
def _column(order, group, tables, buckets, where, total, groups, count, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """For each column: valid, width, number of columns in its group, its index among them, first block, offset of the
    group's first byte; for its bucket: start, number of values, first block."""
    here = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    valid = here < total * 8
    of = tl.load(group + here // 8, mask=valid, other=0)
    bucket = of // 65
    alike = tl.load(tables + of)
    first = tl.load(tables + groups + of)
    start = tl.load(tables + 2 * groups + of)
    source = tl.load(where + bucket)
    size = tl.load(where + count + bucket)
    begin = tl.load(where + 2 * count + bucket)
    return valid, of % 65, alike * 8, here - first * 8, first, start, source, size, begin


@triton.jit(do_not_specialize=_NUMBERS)
def pack_columns(  # type: ignore[no-untyped-def]
    numbers, everything, words, order, group, tables, buckets, where, total, groups, count, unit, COLUMNS: tl.constexpr
):
    valid, width, alike, column, first, start, source, size, begin = _column(
        order, group, tables, buckets, where, total, groups, count, COLUMNS
    )
    raw = width == 64
    lost = tl.full((COLUMNS,), 0x7FF8000000000000, dtype=tl.uint64)
    bits = tl.zeros((COLUMNS,), dtype=tl.uint64)
    filled = tl.zeros((COLUMNS,), dtype=tl.int64)
    word = tl.zeros((COLUMNS,), dtype=tl.int64)
    for row in tl.static_range(8):
        number = tl.where(raw, column * 8 + row, row * alike + column)
        used = valid & (width > 0)
        block = tl.load(order + first + number // 64, mask=used, other=0)
        place = (block - begin) * 64 + number % 64
        value = tl.load(numbers + source + place, mask=used & (place < size), other=0)
        folded = ((value << 1) ^ (value >> 63)).to(tl.uint64)
        plain = (value.to(tl.float64) * unit).to(tl.uint64, bitcast=True)
        folded = tl.where(raw, tl.where(value == -4611686018427387904, lost, plain), folded)
        bits = bits | (folded << filled.to(tl.uint64))
        full = filled + width >= 64
        there = start + tl.where(raw, column * 64 + word * 8, (word * alike + column) * 8)
        tl.store(words + there // 8, bits.to(tl.int64, bitcast=True), mask=valid & full)
        left = tl.minimum(64 - filled, 63).to(tl.uint64)  # if a number fills the word exactly, no rest remains
        rest = tl.where(filled + width > 64, folded >> left, tl.zeros((COLUMNS,), dtype=tl.uint64))
        bits = tl.where(full, rest, bits)
        word += full.to(tl.int64)
        filled = tl.where(full, filled + width - 64, filled + width)
    there = everything + start + word * alike * 8
    _store_rest(there, bits, width, alike, column, valid & (width < 64), 4)
    _store_rest(there, bits, width, alike, column, valid & (width < 64), 2)
    _store_rest(there, bits, width, alike, column, valid & (width < 64), 1)


@triton.jit
def _store_rest(there, bits, width, alike, column, valid, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store those bytes of a column's rest that belong into the plane with `SIZE` bytes per column."""
    before = width & (8 - 2 * SIZE)  # bytes in larger planes: those of 4, and of 2
    those = bits >> (before * 8).to(tl.uint64)
    for each in tl.static_range(SIZE):
        place = before * alike + column * SIZE + each
        tl.store(there + place, (those >> (8 * each)).to(tl.uint8), mask=valid & ((width & SIZE) > 0))


@triton.jit
def _load_rest(there, width, alike, column, valid, SIZE: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    before = width & (8 - 2 * SIZE)
    those = tl.zeros((COLUMNS,), dtype=tl.uint64)
    for each in tl.static_range(SIZE):
        place = before * alike + column * SIZE + each
        byte = tl.load(there + place, mask=valid & ((width & SIZE) > 0), other=0)
        those = those | (byte.to(tl.uint64) << (8 * each))
    return those << (before * 8).to(tl.uint64)


@triton.jit(do_not_specialize=_NUMBERS)
def unpack_columns(  # type: ignore[no-untyped-def]
    everything, words, out, order, group, tables, buckets, where, total, groups, count, scale,
    ADD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    valid, width, alike, column, first, start, source, size, begin = _column(
        order, group, tables, buckets, where, total, groups, count, COLUMNS
    )
    raw = width == 64
    whole = width >> 3
    there = everything + start + whole * alike * 8
    tail = _load_rest(there, width, alike, column, valid & (width < 64), 4, COLUMNS)
    tail = tail | _load_rest(there, width, alike, column, valid & (width < 64), 2, COLUMNS)
    tail = tail | _load_rest(there, width, alike, column, valid & (width < 64), 1, COLUMNS)
    one = tl.full((COLUMNS,), 1, dtype=tl.uint64)
    none = tl.zeros((COLUMNS,), dtype=tl.uint64)
    mask = (one << tl.minimum(width, 63).to(tl.uint64)) - one
    lost = tl.full((COLUMNS,), -4611686018427387904, dtype=tl.int64)
    bits = tl.zeros((COLUMNS,), dtype=tl.uint64)
    held = tl.zeros((COLUMNS,), dtype=tl.int64)
    word = tl.zeros((COLUMNS,), dtype=tl.int64)
    for row in tl.static_range(8):
        needs = held < width
        from_words = needs & (word < whole)
        at = start + tl.where(raw, column * 64 + word * 8, (word * alike + column) * 8)
        loaded = tl.load(words + at // 8, mask=valid & from_words, other=0).to(tl.uint64, bitcast=True)
        more = tl.where(from_words, loaded, tl.where(needs, tail, none))
        found = bits | (more << held.to(tl.uint64))
        used = tl.minimum(tl.maximum(width - held, 0), 63).to(tl.uint64)
        rest = tl.where(raw, none, more >> used)
        bits = tl.where(needs, rest, bits >> tl.minimum(width, 63).to(tl.uint64))
        held = tl.where(needs, held + 64 - width, held - width)
        word += from_words.to(tl.int64)
        found = tl.where(raw, found, found & mask)

        half = (found >> 1).to(tl.int64)
        value = half ^ -((found & 1).to(tl.int64))
        exponent = (found >> 52) & 0x7FF
        plain = found.to(tl.float64, bitcast=True)
        exact = (tl.where(raw & (exponent < 0x7FF), plain, 0.0) * scale).to(tl.int64)
        value = tl.where(raw, tl.where(exponent == 0x7FF, lost, exact), value)
        number = tl.where(raw, column * 8 + row, row * alike + column)
        block = tl.load(order + first + number // 64, mask=valid, other=0)
        place = (block - begin) * 64 + number % 64
        inside = valid & (place < size)
        if ADD:
            before = tl.load(out + source + place, mask=inside, other=0)
            value = tl.where((before == lost) | (value == lost), lost, before + value)
        tl.store(out + source + place, value, mask=inside)
