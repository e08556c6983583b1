"""Packed numbers come back with the very same bits, take few bytes on a grid, and nothing malformed is read."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from swarm.buffer import Buffer
from swarm.compute.grid import NOT_FINITE
from swarm.compute.packing import PackingError, check, largest, pack, unpack

WIDE = st.one_of(st.integers(-(2**53) + 1, 2**53 - 1), st.just(NOT_FINITE))
ANYTHING = arrays.arrays(np.int64, st.integers(0, 200), elements=WIDE)
GRID = st.integers(8, 48)


def same(values: np.ndarray, others: np.ndarray) -> bool:
    return values.dtype == others.dtype == np.int64 and values.tobytes() == others.tobytes()


def unpacked(payload: Buffer, count: int, grid_bits: int) -> np.ndarray:
    out = np.full(count, 77)
    unpack(payload, count, grid_bits, out)
    return out


@given(values=ANYTHING, grid_bits=GRID)
def test_whatever_goes_in_comes_out(values, grid_bits):
    packed = pack(values, grid_bits)
    assert len(packed) <= largest(len(values))
    assert same(unpacked(packed, len(values), grid_bits), values)


@given(
    integers=st.lists(st.integers(-(2**53) + 1, 2**53 - 1), max_size=200),
    shift=st.integers(0, 53),
    grid_bits=GRID,
)
def test_sums_on_the_grid_of_every_width(integers, shift, grid_bits):
    values = np.array([number >> shift for number in integers], dtype=np.int64)
    packed = pack(values, grid_bits)
    assert same(unpacked(memoryview(b"\0" * 3 + packed)[3:], len(values), grid_bits), values), "at any alignment"
    widest = max((abs(number >> shift).bit_length() + 1 for number in integers), default=0)
    blocks = -(-len(values) // 64)
    assert len(packed) <= blocks * (1 + 8 * (widest if widest <= 53 else 64))


@pytest.mark.parametrize("width", range(54))
def test_a_block_takes_its_width(width):
    rng = np.random.default_rng(width)
    low = -(2 ** (width - 1)) + (width == 53) if width else 0  # zigzag: from −2^(w−1) to 2^(w−1) − 1
    values = rng.integers(low, max(-low, 1), 64 * 50)
    values[::64] = low
    packed = pack(values, 30)
    assert same(unpacked(packed, len(values), 30), values)
    assert len(packed) == 50 * (1 + 8 * width)


def test_one_strange_block_costs_only_itself():
    values = np.full(64 * 10, 5)
    for strange in (NOT_FINITE, 2**52, -(2**53) + 1):
        mixed = values.copy()
        mixed[100] = strange
        packed = pack(mixed, 30)
        assert len(packed) == 10 + 9 * 8 * 4 + 512
        assert same(unpacked(packed, len(mixed), 30), mixed)


def test_gradients_take_the_bits_between_the_grid_and_their_size():
    """A normal deviate of deviation σ has log2(σ·2^b) + 2.05 bits of entropy on the grid 2^-b."""
    values = np.random.default_rng(0).normal(0, 4.0, 1 << 16)
    for grid_bits in (30, 20, 12):
        bits = 8 * len(pack(np.round(values * 2**grid_bits).astype(np.int64), grid_bits)) / len(values)
        assert 2 + grid_bits + 2.05 < bits < 2 + grid_bits + 3.2


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (1e300, r"numbers reach 1e\+300; the limit of the grid is 8\.38861e\+06"),
        (-(2.0**23), r"numbers reach 8\.38861e\+06; the limit of the grid is 8\.38861e\+06"),
        (2.0**-31, r"numbers are not multiples of 2\^-30"),
    ],
)
def test_numbers_that_no_peer_can_have_summed_are_refused(number, reason):
    """They can only be told as fp64. What fills up the last block is never read."""
    for place in (0, 9):
        values = np.zeros(64)
        values[place] = number
        for read in (check, unpacked):
            with pytest.raises(PackingError, match=reason):
                read(bytes([64]) + values.tobytes(), 10, 30)
    filled = bytes([64]) + np.array([1.0] * 10 + [number] * 54).tobytes()
    check(filled, 10, 30)


def test_all_that_is_not_finite_is_read_as_one_number_and_sent_as_one():
    values = np.array([math.nan, math.inf, -math.inf, -math.nan, 2.0] + [0.0] * 59)
    read = unpacked(bytes([64]) + values.tobytes(), 64, 30)
    assert read[:5].tolist() == [NOT_FINITE] * 4 + [2 << 30]
    sent = np.frombuffer(pack(read, 30), dtype=np.uint8)[1:].view(np.uint64)
    assert len(set(sent[:4].tolist())) == 1


@given(payload=st.binary(max_size=700), count=st.integers(0, 200))
def test_rubbish_is_refused_or_read(payload, count):
    try:
        check(payload, count, 30)
    except PackingError:
        with pytest.raises(PackingError):
            unpacked(payload, count, 30)
        return
    values = unpacked(payload, count, 30)
    assert np.abs(values[values != NOT_FINITE]).max(initial=0) < 2**53


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "0 bytes, expected at least 2"),
        (bytes([1, 2]) + bytes(23), "25 bytes; their widths need 26"),
        (bytes([1, 2]) + bytes(25), "27 bytes; their widths need 26"),
        (bytes([1, 63]) + bytes(512), "a block of 63 bits"),
        (bytes([1, 255]) + bytes(512), "a block of 255 bits"),
    ],
)
def test_malformed_payloads_are_named(payload, reason):
    with pytest.raises(PackingError, match=reason):
        unpacked(payload, 100, 30)
