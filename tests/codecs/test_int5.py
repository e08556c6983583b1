"""What only the codecs of 5 and 6 bits promise: their grid and their size."""

import pytest
import torch

from swarm import codecs
from swarm.codecs.codec import HEADER_BYTES


@pytest.mark.parametrize(("name", "levels"), [("int5", 15), ("int6", 31)])
def test_every_level_survives(name: str, levels: int) -> None:
    x = torch.arange(-levels, levels + 1, dtype=torch.float32)
    codec = codecs.get(name)
    assert torch.equal(codec.decode(codec.encode(x), x.shape), x)
    halves = torch.tensor([float(levels), 0.5, 1.5, -2.5])
    assert codec.decode(codec.encode(halves), (4,)).tolist() == [levels, 0, 2, -2], "ties to even"


@pytest.mark.parametrize(("name", "bits"), [("int5", 5), ("int6", 6)])
def test_so_many_bits_a_value_and_two_bytes_a_block(name: str, bits: int) -> None:
    assert len(codecs.get(name).encode(torch.ones(4, 256, 64))) == HEADER_BYTES + 2 + 4 * 256 * (2 + 8 * bits)


@pytest.mark.parametrize(("name", "low", "high"), [("int5", 0.037, 0.055), ("int6", 0.018, 0.027)])
def test_the_error_on_gaussian_values(name: str, low: float, high: float) -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    codec = codecs.get(name)
    assert low < (codec.decode(codec.encode(x), x.shape) - x).norm() / x.norm() < high
