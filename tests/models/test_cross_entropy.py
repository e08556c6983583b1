"""The loss of a large vocabulary, made in parts, is the one that torch makes at once."""

import pytest
import torch
import torch.nn.functional as F

from swarm.models import cross_entropy
from swarm.models.cross_entropy import summed_cross_entropy


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 16, generator=generator, requires_grad=True)
    weight = torch.randn(50, 16, generator=generator, requires_grad=True)
    return x, weight, torch.randint(0, 50, (2, 9), generator=generator)


def loss_of(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return summed_cross_entropy(x, lambda each: F.linear(each, weight), weight, labels)


def parts_of(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr(cross_entropy, "AT_ONCE", 50 * tokens)


@pytest.mark.parametrize("tokens", (1, 4, 17))
def test_parts_give_the_loss_and_gradients_of_the_whole(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    x, weight, labels = inputs()
    wanted = F.cross_entropy(F.linear(x, weight).flatten(0, 1), labels.flatten(), reduction="sum")
    gradients = torch.autograd.grad(3 * wanted, (x, weight))
    parts_of(monkeypatch, tokens)
    found = loss_of(x, weight, labels)
    torch.testing.assert_close(found, wanted)
    for mine, theirs in zip(torch.autograd.grad(3 * found, (x, weight)), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_what_fits_is_made_at_once_bit_for_bit() -> None:
    x, weight, labels = inputs()
    wanted = F.cross_entropy(F.linear(x.flatten(0, 1), weight), labels.flatten(), reduction="sum")
    assert torch.equal(loss_of(x, weight, labels), wanted)


def test_products_are_in_the_precision_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, labels = inputs()
    parts_of(monkeypatch, 4)
    half = weight.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        of_master, of_copy = (loss_of(x, each, labels) for each in (weight, half))
    assert torch.equal(of_master, of_copy)
    assert not torch.equal(of_master, loss_of(x, weight, labels))
    (a,), (b,) = torch.autograd.grad(of_master, (weight,)), torch.autograd.grad(of_copy, (half,))
    assert torch.equal(a.bfloat16(), b)
