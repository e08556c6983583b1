"""What only the codecs with a scale for each channel promise: few bytes for few coefficients, and channels apart."""

import pytest
import torch

from swarm import codecs
from swarm.codecs.codec import HEADER_BYTES

UNIFORM = {"int8-channel": 8, "int6-channel": 6, "int5-channel": 5, "int4-channel": 4}


def round_trip(name: str, x: torch.Tensor) -> torch.Tensor:
    return codecs.get(name).decode(codecs.get(name).encode(x), x.shape)


@pytest.mark.parametrize("name", UNIFORM)
def test_scales_cost_two_bytes_a_channel_whatever_the_tokens(name: str) -> None:
    frame = codecs.get(name).encode(torch.ones(4, 128, 16))
    assert len(frame) == HEADER_BYTES + 2 + 2 * 16 + 4 * 128 * 16 * UNIFORM[name] // 8
    gradient = codecs.get("log4-channel").encode(torch.ones(4, 128, 16))
    assert len(gradient) == HEADER_BYTES + 2 * 16 + 4 * 128 * 16 // 2


@pytest.mark.parametrize("name", [*UNIFORM, "log4-channel"])
def test_a_large_channel_does_not_coarsen_the_others(name: str) -> None:
    x = torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(0))
    alone = round_trip(name, x)
    x[..., 2] *= 1024
    beside = round_trip(name, x)
    apart = [0, 1, 3, 4]
    if name == "log4-channel":  # its noise depends on the whole tensor
        assert ((beside - x)[..., apart].abs() <= x[..., apart].abs().clamp(min=4 / 60)).all()
    else:
        assert torch.equal(beside[..., apart], alone[..., apart])


@pytest.mark.parametrize("name", UNIFORM)
def test_every_level_of_a_channel_survives(name: str) -> None:
    levels = 2 ** (UNIFORM[name] - 1) - 1
    x = torch.stack([torch.arange(-levels, levels + 1) * scale for scale in (1.0, 0.25, 3.0)], dim=-1)
    assert torch.equal(round_trip(name, x), x)


def test_log4_channel_is_log4_of_the_transposed_table() -> None:
    x = torch.randn(6, 10, 3, generator=torch.Generator().manual_seed(1))
    table = x.view(60, 3).t().contiguous()
    assert torch.equal(round_trip("log4-channel", x).view(60, 3).t(), round_trip("log4", table))


@pytest.mark.parametrize("name", [*UNIFORM, "log4-channel"])
@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (7,)])
def test_encoding_leaves_the_tensor_as_it_is(name: str, shape: tuple[int, ...]) -> None:
    """A transposed row shares its memory."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    before = x.clone()
    codecs.get(name).encode(x)
    assert torch.equal(x, before)
