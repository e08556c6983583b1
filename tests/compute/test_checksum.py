"""The checksum of a state: the same for the same bits, another one for any other."""

from __future__ import annotations

import pytest
import torch

from swarm.compute.checksum import checksum

SIZES = (1, 1000, 65536, 65537, 200_000)


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for size in SIZES]


def test_it_is_written_out() -> None:
    """By hand for one short tensor: bits times odd numbers from splitmix64, modulo 2^32, and once more."""
    mask = (1 << 64) - 1

    def odd(number: int) -> int:
        x = 0x62697473 + number * 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31 | 1

    bits = [0x3F800000, 0xC0000000, 0x00000001]
    total = sum(b * odd(i + 1) for i, b in enumerate(bits)) % (1 << 32)
    signed = total - (1 << 32) if total >> 31 else total
    values = torch.tensor([1.0, -2.0, 2.0**-149])
    assert checksum([values]) == signed * odd(1) % (1 << 63)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_it_depends_on_bits_alone(threads: int) -> None:
    expected, before = checksum(tensors()), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert checksum(tensors()) == expected
    finally:
        torch.set_num_threads(before)
    assert checksum(t.view(1, -1) for t in tensors()) == expected
    assert 0 <= expected < 1 << 63


@pytest.mark.parametrize("which", range(len(SIZES)))
@pytest.mark.parametrize("bit", [0, 1, 22, 23, 30, 31])
def test_one_flipped_bit_changes_it(which: int, bit: int) -> None:
    found = tensors()
    place = (7919 * bit + 65530) % SIZES[which]
    found[which].view(torch.int32)[place] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert checksum(found) != checksum(tensors())


def test_order_and_zeros_count() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    assert len({checksum([a, b]), checksum([b, a]), checksum([a, a]), checksum([torch.cat((a, b))])}) == 4
    assert checksum([torch.tensor([0.0])]) != checksum([torch.tensor([-0.0])])
    assert checksum([]) == checksum([torch.zeros(0)])


def test_a_key_makes_another_one_that_nobody_can_tell_from_that_without_it() -> None:
    keys = (1, 2, 3, 1 << 62, (1 << 63) - 1)
    found = {checksum(tensors(), key) for key in (0, *keys)}
    assert len(found) == len(keys) + 1 and all(0 <= each < 1 << 63 for each in found)
    base, (other, *rest) = tensors(), tensors()
    other += 1.0
    differences = {(checksum(base, key) - checksum([other, *rest], key)) % (1 << 63) for key in (0, *keys)}
    assert len(differences) == len(keys) + 1, "else an old answer could be corrected for what has changed since"


@pytest.mark.parametrize("which", range(len(SIZES)))
def test_one_flipped_bit_changes_it_under_a_key(which: int) -> None:
    found = tensors()
    found[which].view(torch.int32)[SIZES[which] - 1] ^= 1
    assert checksum(found, 12345) != checksum(tensors(), 12345)
