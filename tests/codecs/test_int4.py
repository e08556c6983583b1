"""What only the int4 codec promises: its grid, its ties, its size, its packing."""

import pytest
import torch

from swarm import codecs
from swarm.codecs.blocks import pack_bits, unpack_bits
from swarm.codecs.codec import HEADER_BYTES

INT4 = codecs.get("int4")


def test_ties_round_to_even() -> None:
    x = torch.tensor([7.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 6.5, -7.0])
    assert INT4.decode(INT4.encode(x), (9,)).tolist() == [7, 0, 2, 2, 0, -2, -2, 6, -7]


def test_half_a_byte_a_value_and_two_a_block() -> None:
    assert len(INT4.encode(torch.ones(4, 256, 64))) == HEADER_BYTES + 2 + 4 * 256 * (2 + 32)


def test_the_error_on_gaussian_values() -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    error = (INT4.decode(INT4.encode(x), x.shape) - x).norm() / x.norm()
    assert 0.08 < error < 0.12


def test_the_largest_floats_saturate() -> None:
    top = torch.finfo(torch.float32).max
    y = INT4.decode(INT4.encode(torch.tensor([top, -top])), (2,))
    assert y[0] == -y[1] and 0.96 * top < y[0] <= top


@pytest.mark.parametrize("bits", [1, 2, 4, 5, 6])
def test_every_code_survives_packing(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (50, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    packed = pack_bits(codes, bits)
    assert packed.shape == (50, 8 * bits)
    assert torch.equal(unpack_bits(packed, bits), codes)
