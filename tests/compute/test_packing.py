"""Packed numbers come back with the very same bits, take few bytes on a grid, and nothing malformed is read."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from swarm.compute.packing import PackingError, largest, pack, peak, unpack

ANYTHING = arrays.arrays(np.float64, st.integers(0, 200), elements=st.floats(width=64, allow_nan=True))
GRID = st.integers(8, 48)


def same(values: np.ndarray, others: np.ndarray) -> bool:
    """Bit for bit: also the sign of zero and the payload of NaN."""
    return values.dtype == others.dtype == np.float64 and values.tobytes() == others.tobytes()


@given(values=ANYTHING, grid_bits=GRID)
def test_whatever_goes_in_comes_out(values, grid_bits):
    packed = pack(values, grid_bits)
    assert len(packed) <= largest(len(values))
    assert same(unpack(packed, len(values), grid_bits), values)


@given(
    integers=st.lists(st.integers(-(2**53) + 1, 2**53 - 1), max_size=200),
    shift=st.integers(0, 53),
    grid_bits=GRID,
)
def test_sums_on_the_grid_of_every_width(integers, shift, grid_bits):
    values = np.array([math.ldexp(number >> shift, -grid_bits) for number in integers], dtype=np.float64)
    packed = pack(values, grid_bits)
    assert same(unpack(memoryview(b"\0" * 3 + packed)[3:], len(values), grid_bits), values), "at any alignment"
    widest = max((abs(number >> shift).bit_length() + 1 for number in integers), default=0)
    blocks = -(-len(values) // 64)
    assert len(packed) <= blocks * (1 + 8 * (widest if widest <= 53 else 64))


@pytest.mark.parametrize("width", range(54))
def test_a_block_takes_its_width(width):
    rng = np.random.default_rng(width)
    low = -(2 ** (width - 1)) + (width == 53) if width else 0  # zigzag: from −2^(w−1) to 2^(w−1) − 1
    values = rng.integers(low, max(-low, 1), 64 * 50).astype(np.float64) / 2**30
    values[::64] = low / 2**30
    packed = pack(values, 30)
    assert same(unpack(packed, len(values), 30), values)
    assert len(packed) == 50 * (1 + 8 * width)


def test_one_strange_block_costs_only_itself():
    values = np.full(64 * 10, 5 / 2**30)
    for strange in (math.nan, math.inf, -math.inf, -0.0, 1e300, 2.0**-31, 2.0**23):
        mixed = values.copy()
        mixed[100] = strange
        packed = pack(mixed, 30)
        assert len(packed) == 10 + 9 * 8 * 4 + 512
        assert same(unpack(packed, len(mixed), 30), mixed)


def test_gradients_take_the_bits_between_the_grid_and_their_size():
    """A normal deviate of deviation σ has log2(σ·2^b) + 2.05 bits of entropy on the grid 2^-b."""
    values = np.random.default_rng(0).normal(0, 4.0, 1 << 16)
    for grid_bits in (30, 20, 12):
        rounded = np.round(values * 2**grid_bits) / 2**grid_bits
        bits = 8 * len(pack(rounded, grid_bits)) / len(values)
        assert 2 + grid_bits + 2.05 < bits < 2 + grid_bits + 3.2


def test_the_peak_is_that_of_what_is_stored_as_it_is():
    values = np.full(130, 7.0)
    assert peak(pack(values, 30), 130) == 0.0
    values[129] = -1e9
    assert peak(pack(values, 30), 130) == 1e9
    values[3] = math.nan
    assert math.isnan(peak(pack(values, 30), 130))
    filled = bytes([64]) + np.array([1.0] * 10 + [math.nan] * 54).tobytes()
    assert peak(filled, 10) == 1.0, "what fills up the last block is never read"


@given(payload=st.binary(max_size=700), count=st.integers(0, 200))
def test_rubbish_is_refused_or_read(payload, count):
    try:
        height = peak(payload, count)
    except PackingError:
        with pytest.raises(PackingError):
            unpack(payload, count, 30)
        return
    values = unpack(payload, count, 30)
    assert len(values) == count
    assert math.isnan(height) == np.isnan(values).any()
    assert math.isnan(height) or np.abs(values).max(initial=0.0) <= max(height, 2.0**22)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "0 bytes, expected at least 2"),
        (bytes([1, 2]) + bytes(23), "25 bytes, expected 26 by its widths"),
        (bytes([1, 2]) + bytes(25), "27 bytes, expected 26"),
        (bytes([1, 63]) + bytes(512), "a block of 63 bits"),
        (bytes([1, 255]) + bytes(512), "a block of 255 bits"),
    ],
)
def test_malformed_payloads_are_named(payload, reason):
    with pytest.raises(PackingError, match=reason):
        unpack(payload, 100, 30)
