"""What only the int8 codec promises: its grid, its ties, its size, scales beyond fp16."""

import struct

import pytest
import torch
from frames import reseal

from swarm import codecs
from swarm.codecs import CodecError, Reason
from swarm.codecs.codec import HEADER_BYTES

INT8 = codecs.get("int8")


def quantised(x: torch.Tensor) -> list[int]:
    frame = INT8.encode(x)
    return list(struct.unpack(f"{x.numel()}b", frame[-x.numel() :]))


def test_ties_round_to_even() -> None:
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5])
    assert quantised(x) == [127, 0, 2, 2, 0, -2, -2, 126]


def test_one_byte_a_value_and_two_a_block() -> None:
    assert len(INT8.encode(torch.ones(4, 256, 64))) == HEADER_BYTES + 2 + 4 * 256 * (2 + 64)


def test_blocks_do_not_disturb_each_other() -> None:
    x = torch.full((128,), 1e-3)
    x[64:] = 1000.0
    y = INT8.decode(INT8.encode(x), (128,))
    assert torch.allclose(x, y, rtol=1e-3)


def test_gradients_far_below_the_fp16_range_keep_their_precision() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * 1e-9
    y = INT8.decode(INT8.encode(x), (64, 64))
    assert ((x - y).norm() / x.norm()) < 0.01


def test_the_largest_floats_saturate() -> None:
    top = torch.finfo(torch.float32).max
    y = INT8.decode(INT8.encode(torch.tensor([top, -top, top / 2])), (3,))
    assert y[0] == -y[1] and 0.96 * top < y[0] <= top
    assert abs(y[2] / top - 0.5) < 0.01


@pytest.mark.parametrize("shift", [-101, 128, 32_767, -32_768, 110])
def test_a_shift_outside_the_range_is_refused(shift: int) -> None:
    frame = bytearray(INT8.encode(torch.ones(64)))
    frame[HEADER_BYTES : HEADER_BYTES + 2] = struct.pack("<h", shift)
    with pytest.raises(CodecError) as caught:
        INT8.decode(reseal(bytes(frame)), (64,))
    assert caught.value.reason in (Reason.BAD_SCALE, Reason.NOT_FINITE)


@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E00, 0x8001, 0xBC00])  # inf, −inf, NaN, −tiny, −1
def test_a_scale_that_no_encoder_writes_is_refused(scale: int) -> None:
    frame = bytearray(INT8.encode(torch.ones(128)))
    frame[HEADER_BYTES + 4 : HEADER_BYTES + 6] = struct.pack("<H", scale)
    with pytest.raises(CodecError) as caught:
        INT8.decode(reseal(bytes(frame)), (128,))
    assert caught.value.reason is Reason.BAD_SCALE


def test_blocks_that_vanish_beside_the_largest_are_written_as_zeros() -> None:
    x = torch.full((192,), 1e-30)
    x[64:128] = 1e30
    x[128:] = 0.0
    assert quantised(x) == [0] * 64 + [127] * 64 + [0] * 64
