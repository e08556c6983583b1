"""Initial values: near to normal, a function of seed and name, made of whole numbers."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from swarm.models.initial import seeded_normal

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def written_out(name: str, seed: int, i: int) -> float:
    start = int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:8], "little")
    total = 0
    for number in (3 * i + 1, 3 * i + 2, 3 * i + 3):
        word = splitmix64(start + number * 0x9E3779B97F4A7C15 & MASK)
        total += sum(struct.unpack("<4h", word.to_bytes(8, "little")))
    return (2 * total + 12) / 2**17


@pytest.mark.parametrize("i", [0, 1, 16383, 16384, 40000])
def test_each_value_is_as_the_docstring_says(i: int) -> None:
    values = seeded_normal("model.layer.weight", torch.Size((40001,)), 3)
    assert values.dtype == torch.float32
    assert values[i].item() == written_out("model.layer.weight", 3, i)


def test_they_are_near_to_normal() -> None:
    values = seeded_normal("x", torch.Size((1000, 1000)), 0).double()
    assert abs(values.mean()) < 0.004
    assert abs(values.std() - 1) < 0.003
    assert abs((values**4).mean() - 2.9) < 0.02  # of a normal one 3
    assert values.abs().max() < 6
    normal = 0.5 * (1 + torch.erf(torch.tensor([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]) / 2**0.5))
    shares = torch.stack([(values < bound).double().mean() for bound in range(-3, 4)])
    torch.testing.assert_close(shares.float(), normal, atol=3e-3, rtol=0)


def test_seed_name_and_nothing_else_decide() -> None:
    first = seeded_normal("a", torch.Size((6, 4)), 1)
    assert torch.equal(first, seeded_normal("a", torch.Size((24,)), 1).view(6, 4))
    assert not torch.equal(first, seeded_normal("b", torch.Size((6, 4)), 1))
    assert not torch.equal(first, seeded_normal("a", torch.Size((6, 4)), 2))
    assert seeded_normal("a", torch.Size(()), 1).shape == ()
    assert seeded_normal("a", torch.Size((0, 3)), 1).shape == (0, 3)
