"""Packed pieces: the same bytes again, whatever they are, and nothing from a stranger is taken on trust."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.state.error import StateError
from swarm.state.packed import framed, framed_bytes, pack, take_framed, unpack

WEIGHTS = (0.02 * np.random.default_rng(0).standard_normal(65536)).astype("<f4").tobytes()


def test_weights_are_a_sixth_shorter() -> None:
    packed = pack(WEIGHTS)
    assert packed is not None and 0.75 < len(packed) / len(WEIGHTS) < 0.85
    assert unpack(packed, len(WEIGHTS), "x") == WEIGHTS


@given(st.lists(st.floats(width=32), max_size=40), st.binary(max_size=3))
def test_any_numbers_come_back_bit_for_bit(numbers: list[float], rest: bytes) -> None:
    piece = struct.pack(f"<{len(numbers)}f", *numbers) * 20 + rest
    packed = pack(piece)
    assert packed is None or unpack(packed, len(piece), "x") == piece
    run = bytearray(b"".join(framed(piece)))
    assert len(run) <= framed_bytes(len(piece))
    assert take_framed(run, len(piece), "x") == piece and not run


def test_noise_is_sent_as_it_is() -> None:
    noise = np.random.default_rng(0).bytes(4096)
    assert pack(noise) is None
    assert b"".join(framed(noise)) == struct.pack("<I", 4096) + noise


def test_a_run_is_taken_piece_by_piece_as_it_comes() -> None:
    sent = b"".join(b"".join(framed(piece)) for piece in (WEIGHTS, WEIGHTS[:999], b"x"))
    come, found, sizes = bytearray(), [], [len(WEIGHTS), 999, 1]
    for at in range(0, len(sent), 1000):
        come += sent[at : at + 1000]
        while sizes and (piece := take_framed(come, sizes[0], "x")) is not None:
            found.append(piece)
            sizes.pop(0)
    assert found == [WEIGHTS, WEIGHTS[:999], b"x"]


@given(st.binary(max_size=200), st.integers(0, 300))
def test_bytes_from_a_stranger_are_refused_by_name(raw: bytes, size: int) -> None:
    try:
        assert len(unpack(raw, size, "the donor")) == size
    except StateError as error:
        assert error.where == "the donor"


def test_a_bomb_is_not_unpacked() -> None:
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = coder.compress(bytes(1 << 26)) + coder.flush()
    with pytest.raises(StateError, match="at least 4097 exponents, expected 4096"):
        unpack(struct.pack("<I", len(bomb)) + bomb + bytes(3 * 4096), 4 * 4096, "x")
