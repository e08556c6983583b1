"""The step of AdamW against the same arithmetic in whole numbers and fractions, rounded to fp32 by hand."""

from __future__ import annotations

import math
from dataclasses import astuple
from fractions import Fraction

import pytest
import torch

from swarm.compute.adamw import Factors, step
from swarm.manifest import OptimizerSection
from swarm.protocol.update import update_of

SECTION = OptimizerSection(learning_rate=0.01, warmup_steps=2, weight_decay=0.3)
DIGITS = 24
LOWEST = -126


class Fp32:
    """A number of which every operation is exact, and then rounded once: to the nearest, of two to the even one."""

    def __init__(self, value: Fraction | float) -> None:
        self.value = rounded(Fraction(value))

    def __add__(self, other: Fp32) -> Fp32:
        return Fp32(self.value + other.value)

    def __sub__(self, other: Fp32) -> Fp32:
        return Fp32(self.value - other.value)

    def __mul__(self, other: Fp32) -> Fp32:
        return Fp32(self.value * other.value)

    def __truediv__(self, other: Fp32) -> Fp32:
        return Fp32(self.value / other.value)

    def root(self) -> Fp32:
        wide = self.value * 4**200  # its whole root has more than twice the digits; a bit more says that it goes on
        whole = math.isqrt(math.floor(wide))
        more = Fraction(1, 2) if whole * whole != wide else 0
        return Fp32((whole + more) / Fraction(2**200))


def rounded(value: Fraction) -> Fraction:
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value)))
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, LOWEST) - DIGITS + 1)
    return round(value / unit) * unit  # Python rounds halves to even


def stepped(p: Fp32, g: Fp32, m: Fp32, v: Fp32, factors: Factors) -> tuple[Fp32, Fp32, Fp32]:
    shrink, beta1, rest1, beta2, rest2, inverse_root, eps, rate = (Fp32(x) for x in astuple(factors))
    m = m * beta1 + g * rest1
    v = v * beta2 + g * g * rest2
    return p * shrink - m / (v.root() * inverse_root + eps) * rate, m, v


def test_the_factors_are_fp32_numbers() -> None:
    factors = astuple(Factors.of(SECTION, update_of(SECTION, 5, 9), 0.3))
    assert all(rounded(Fraction(factor)) == factor for factor in factors)


@pytest.mark.parametrize("seed", range(2))
def test_it_equals_exact_arithmetic_rounded_once_an_operation(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(30, 40, generator=generator) * 1e-3  # less than a step: the last bit of every operation shows
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    exact = [(Fp32(x), Fp32(0), Fp32(0)) for x in p.flatten().tolist()]
    for number in range(3):
        g = torch.randn(p.shape, generator=generator) * 10.0 ** torch.randint(-20, 6, p.shape, generator=generator)
        g[0, 0] = 0.0
        factors = Factors.of(SECTION, update_of(SECTION, number, 9), 0.3)
        step(p, g, m, v, factors)
        of_each = zip(exact, g.flatten().tolist(), strict=True)
        exact = [stepped(x[0], Fp32(grad), x[1], x[2], factors) for x, grad in of_each]
    for place, tensor in enumerate((p, m, v)):
        assert tensor.flatten().tolist() == [float(x[place].value) for x in exact]


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[torch.Tensor]:
        tensors = [torch.randn(3, 101, generator=torch.Generator().manual_seed(n)) for n in range(3)]
        tensors.append(tensors[2].square())
        step(*tensors, Factors.of(SECTION, update_of(SECTION, 3, 9), 0.1))
        return tensors

    whole = found()
    monkeypatch.setattr("swarm.compute.adamw._BLOCK", 10)
    assert all(torch.equal(one, other) for one, other in zip(whole, found(), strict=True))


def test_with_the_least_eps_no_gradient_moves_a_parameter_by_more_than_the_learning_rate() -> None:
    """In fp32, the squares of the small ones are 0, so that eps alone divides them."""
    section = OptimizerSection(learning_rate=0.01, warmup_steps=0, eps=1e-20)
    gradient = torch.tensor([0.0, *(10.0**power for power in range(-44, 18))])
    parameter, first, second = (torch.zeros_like(gradient) for _ in range(3))
    step(parameter, gradient, first, second, Factors.of(section, update_of(section, 0, 10), 0.0))
    assert (second == 0).sum() > 20 and parameter[0] == 0
    assert parameter.abs().max() < 0.01001
