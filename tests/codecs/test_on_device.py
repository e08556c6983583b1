"""What codecs compute on a GPU is written in torch's own operations: here they run on the CPU, against what CPUs do."""

import math

import pytest
import torch

from swarm import codecs
from swarm.codecs.codec import HEADER_BYTES

CPU = torch.device("cpu")
NAMES = ("none", "bf16", *(f"int{bits}{kind}" for bits in (8, 6, 5, 4) for kind in ("", "-channel")))
SHAPES = ((4, 33, 16), (3, 65), (1,), (2, 128, 64))


def values(shape: tuple[int, ...], scale: float) -> torch.Tensor:
    found = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    return found.clamp(-1, 1) * scale if scale > 1 else found * scale


@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_values_are_those_of_the_cpu(name: str) -> None:
    codec = codecs.get(name)
    for shape in SHAPES:
        for scale in (1.0, 1e-3, 1e-30, 3e38):
            x = values(shape, scale)
            frame, packed = codec.encode(x), codec.pack_on_device(x)
            assert packed is not None and packed[0] == 0, (shape, scale)
            assert bytes(packed[1:].numpy()) == frame[HEADER_BYTES:], (shape, scale)
            restored = codec.unpack_on_device(memoryview(frame)[HEADER_BYTES:], shape, CPU)
            assert restored is not None
            assert torch.equal(restored.float(), codec.decode(frame, shape)), (shape, scale)


@pytest.mark.parametrize("name", NAMES)
def test_what_vanishes_is_zero(name: str) -> None:
    codec = codecs.get(name)
    frame = codec.encode(torch.zeros(4, 64))
    restored = codec.unpack_on_device(memoryview(frame)[HEADER_BYTES:], (4, 64), CPU)
    assert restored is not None and not restored.any()
    packed = codec.pack_on_device(torch.zeros(4, 64))
    assert packed is not None and len(packed) == 1 + len(frame) - HEADER_BYTES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", (math.nan, math.inf, -math.inf))
def test_what_is_not_finite_is_flagged(name: str, wrong: float) -> None:
    x = values((3, 64), 1.0)
    x[1, 7] = wrong
    packed = codecs.get(name).pack_on_device(x)
    assert packed is not None and packed[0] == 1
