import dataclasses
import math

import pytest
import torch

from swarm.compute.optimizer import StageOptimizer, StateError, learning_rate
from swarm.compute.sums import Layout
from swarm.manifest import OptimizerSection

SECTION = OptimizerSection(learning_rate=0.1, warmup_steps=2, min_ratio=0.2, weight_decay=0.5)
CHAIN = "ab" * 32


def make(section: OptimizerSection = SECTION):
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (4, 3), "layer.weight": (3, 2), "model.norm.weight": (3,)}
    parameters = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    layout = Layout.of(parameters, with_loss=True)
    return parameters, StageOptimizer(parameters, layout, section, 10, CHAIN)


def reduced(seed: int) -> torch.Tensor:
    return torch.randn(22, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_steps_follow_adamw_written_out():
    parameters, optimizer = make()
    name = "layer.weight"
    p = parameters[name].detach().double().clone()
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step in range(3):
        flat = reduced(step)
        optimizer.apply(flat, 0.25)
        g = flat[12:18].view(3, 2) * 0.25
        rate = learning_rate(SECTION, step, 10)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        corrected = (v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
        p = p * (1 - rate * 0.5) - rate * m / (1 - 0.9 ** (step + 1)) / corrected
        torch.testing.assert_close(parameters[name].detach().double(), p, rtol=1e-5, atol=1e-6)
    assert (optimizer.version, optimizer.updates) == (3, 3)


def test_only_matrices_other_than_the_embedding_decay():
    parameters, optimizer = make()
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer.apply(torch.zeros(22, dtype=torch.float64), 1.0)
    moved = {name for name, p in parameters.items() if not torch.equal(p, before[name])}
    assert moved == {"layer.weight"}


def test_a_projector_is_orthonormal_after_a_step_and_does_not_decay():
    name = "model.boundaries.senders.1.projector"
    parameters = {name: torch.nn.Parameter(torch.eye(3, 7))}
    layout = Layout.of(parameters, with_loss=False)
    optimizer = StageOptimizer(parameters, layout, SECTION, 10, CHAIN)
    optimizer.apply(torch.zeros(21, dtype=torch.float64), 1.0)
    assert torch.equal(parameters[name], torch.eye(3, 7))
    optimizer.apply(reduced(0)[:21], 1.0)
    found = parameters[name].detach()
    other = {name: torch.nn.Parameter(torch.eye(3, 7))}
    without = StageOptimizer(other, layout, SECTION.model_copy(update={"weight_decay": 0.0}), 10, CHAIN)
    without.apply(torch.zeros(21, dtype=torch.float64), 1.0)
    without.apply(reduced(0)[:21], 1.0)
    assert torch.equal(other[name], found)
    assert (found - torch.eye(3, 7)).abs().max() > 0.01
    torch.testing.assert_close(found @ found.T, torch.eye(3), atol=1e-5, rtol=0)
    before = optimizer.digest()
    again = StageOptimizer(parameters, layout, SECTION, 10, CHAIN)
    again.load(optimizer.state())
    assert again.digest() == before


def test_scale_zero_moves_only_version_and_chain():
    parameters, optimizer = make()
    optimizer.apply(reduced(0), 1.0)
    before = optimizer.state()
    optimizer.apply(torch.full((22,), math.nan, dtype=torch.float64), 0.0)
    after = optimizer.state()
    assert (after.version, after.updates) == (2, 1)
    assert after.chain != before.chain
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert all(p.grad is None for p in parameters.values())


def test_a_loaded_state_continues_to_the_bit():
    _, first = make()
    first.apply(reduced(0), 0.5)
    saved = first.state()
    first.apply(reduced(1), 0.5)
    _, second = make()
    second.load(saved)
    assert second.digest() == saved.digest()
    second.apply(reduced(1), 0.5)
    assert second.digest() == first.digest() == first.state().digest()
    assert second.chain == first.chain
    assert saved.version == 1  # the copy did not move along


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("param/layer.weight"), "lacks 1 tensors, the first is 'param/layer.weight'"),
        (lambda t: t.update(extra=torch.zeros(1)), "1 unknown tensors, the first is 'extra'"),
        (lambda t: t.update({"exp_avg/layer.weight": torch.zeros(2, 3)}), r"expected torch.float32 \[3, 2\]"),
        (lambda t: t.update({"exp_avg/layer.weight": torch.zeros(3, 2).double()}), "is torch.float64"),
        (lambda t: t.update({"param/layer.weight": torch.full((3, 2), math.nan)}), "holds NaN or infinity"),
        (lambda t: t.update({"exp_avg_sq/layer.weight": torch.full((3, 2), -1.0)}), "negative second moments"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, reason):
    _, optimizer = make()
    before = optimizer.digest()
    _, other = make()
    other.apply(reduced(3), 1.0)
    state = other.state()
    change(state.tensors)
    with pytest.raises(StateError, match=reason):
        optimizer.load(state)
    assert optimizer.digest() == before


@pytest.mark.parametrize("change", [{"version": -1}, {"updates": 2}, {"chain": "xyz"}, {"chain": "AB" * 32}])
def test_counts_and_chain_are_checked(change):
    _, other = make()
    other.apply(reduced(3), 1.0)
    with pytest.raises(StateError):
        make()[1].load(dataclasses.replace(other.state(), **change))


def test_the_rate_warms_up_then_falls_to_its_floor():
    rates = [learning_rate(SECTION, step, 10) for step in range(12)]
    assert rates[:3] == [0.05, 0.1, 0.1]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[10] == rates[11] == pytest.approx(0.02)
    assert learning_rate(OptimizerSection(learning_rate=1.0, warmup_steps=0), 0, 1) == 1.0


def test_a_rate_multiplies_the_schedule_in_one_step_and_is_in_the_chain():
    (of_plain, plain), (of_half, half) = make(), make()
    before = {name: p.detach().clone() for name, p in of_plain.items()}
    plain.apply(reduced(0), 1.0)
    half.apply(reduced(0), 1.0, 0.5)
    for name, start in before.items():
        whole, part = of_plain[name].detach() - start, of_half[name].detach() - start
        torch.testing.assert_close(part, whole / 2, rtol=1e-4, atol=1e-8)
    assert plain.chain != half.chain and (half.version, half.updates) == (1, 1)
    assert plain.state().tensors["exp_avg/layer.weight"].equal(half.state().tensors["exp_avg/layer.weight"])


def test_beyond_its_steps_the_schedule_stays_at_its_minimum():
    least = SECTION.learning_rate * SECTION.min_ratio
    assert [learning_rate(SECTION, step, 10) for step in (10, 11, 1000)] == [pytest.approx(least)] * 3
