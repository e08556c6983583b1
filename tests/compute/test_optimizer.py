import dataclasses
import math

import pytest
import torch

from swarm.compute.layout import Layout
from swarm.compute.optimizer import MOST_USABLE, OptimizerError, StageOptimizer
from swarm.manifest import OptimizerSection
from swarm.protocol.update import update_of

SECTION = OptimizerSection(learning_rate=0.1, warmup_steps=2, min_ratio=0.2, weight_decay=0.5)
CHAIN = "ab" * 32


def make(section: OptimizerSection = SECTION):
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (4, 3), "layer.weight": (3, 2), "model.norm.weight": (3,)}
    parameters = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    layout = Layout.of(parameters, with_loss=True)
    return parameters, StageOptimizer(parameters, layout, section, CHAIN)


def reduced(seed: int) -> torch.Tensor:
    return torch.randn(22, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def apply(optimizer: StageOptimizer, flat: torch.Tensor, scale: float) -> None:
    optimizer.apply(flat, scale, update_of(SECTION, optimizer.version, 10))


def test_steps_follow_adamw_written_out():
    parameters, optimizer = make()
    name = "layer.weight"
    p = parameters[name].detach().double().clone()
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step in range(3):
        flat = reduced(step)
        apply(optimizer, flat, 0.25)
        g = flat[12:18].view(3, 2) * 0.25
        rate = update_of(SECTION, step, 10).learning_rate
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        corrected = (v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
        p = p * (1 - rate * 0.5) - rate * m / (1 - 0.9 ** (step + 1)) / corrected
        torch.testing.assert_close(parameters[name].detach().double(), p, rtol=1e-5, atol=1e-6)
    assert (optimizer.version, optimizer.updates) == (3, 3)


def test_only_matrices_other_than_the_embedding_decay():
    parameters, optimizer = make()
    before = {name: p.detach().clone() for name, p in parameters.items()}
    apply(optimizer, torch.zeros(22, dtype=torch.float64), 1.0)
    moved = {name for name, p in parameters.items() if not torch.equal(p, before[name])}
    assert moved == {"layer.weight"}


def test_a_projector_is_orthonormal_after_a_step_and_does_not_decay():
    name = "model.boundaries.senders.1.projector"
    parameters = {name: torch.nn.Parameter(torch.eye(3, 7))}
    layout = Layout.of(parameters, with_loss=False)
    optimizer = StageOptimizer(parameters, layout, SECTION, CHAIN)
    apply(optimizer, torch.zeros(21, dtype=torch.float64), 1.0)
    assert torch.equal(parameters[name], torch.eye(3, 7))
    apply(optimizer, reduced(0)[:21], 1.0)
    found = parameters[name].detach()
    other = {name: torch.nn.Parameter(torch.eye(3, 7))}
    without = StageOptimizer(other, layout, SECTION.model_copy(update={"weight_decay": 0.0}), CHAIN)
    apply(without, torch.zeros(21, dtype=torch.float64), 1.0)
    apply(without, reduced(0)[:21], 1.0)
    assert torch.equal(other[name], found)
    assert (found - torch.eye(3, 7)).abs().max() > 0.01
    torch.testing.assert_close(found @ found.T, torch.eye(3), atol=1e-5, rtol=0)
    before = optimizer.digest()
    again = StageOptimizer(parameters, layout, SECTION, CHAIN)
    again.load(optimizer.state())
    assert again.digest() == before


def test_scale_zero_moves_only_version_and_chain():
    parameters, optimizer = make()
    apply(optimizer, reduced(0), 1.0)
    before = optimizer.state()
    apply(optimizer, torch.full((22,), math.nan, dtype=torch.float64), 0.0)
    after = optimizer.state()
    assert (after.version, after.updates) == (2, 1)
    assert after.chain != before.chain
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert all(p.grad is None for p in parameters.values())


def test_a_loaded_state_continues_to_the_bit():
    _, first = make()
    apply(first, reduced(0), 0.5)
    saved = first.state()
    apply(first, reduced(1), 0.5)
    _, second = make()
    second.load(saved)
    assert second.digest() == saved.digest()
    apply(second, reduced(1), 0.5)
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
        (lambda t: t.update({"param/layer.weight": torch.full((3, 2), math.nan)}), "contains NaN or infinity"),
        (lambda t: t.update({"exp_avg_sq/layer.weight": torch.full((3, 2), -1.0)}), "negative second moments"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, reason):
    _, optimizer = make()
    before = optimizer.digest()
    _, other = make()
    apply(other, reduced(3), 1.0)
    state = other.state()
    change(state.tensors)
    with pytest.raises(OptimizerError, match=reason):
        optimizer.load(state)
    assert optimizer.digest() == before


@pytest.mark.parametrize("change", [{"version": -1}, {"updates": 2}, {"chain": "xyz"}, {"chain": "AB" * 32}])
def test_counts_and_chain_are_checked(change):
    _, other = make()
    apply(other, reduced(3), 1.0)
    with pytest.raises(OptimizerError):
        make()[1].load(dataclasses.replace(other.state(), **change))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("param", MOST_USABLE, (False, True)),
        ("param", -MOST_USABLE, (False, True)),
        ("param", math.nextafter(MOST_USABLE, 0.0), (False, False)),
        ("param", math.inf, (True, True)),
        ("param", math.nan, (True, True)),
        ("exp_avg", 2 * MOST_USABLE, (False, False)),
        ("exp_avg_sq", math.inf, (True, True)),
    ],
)
def test_the_condition_of_parameters_and_moments(kind: str, value: float, expected: tuple[bool, bool]):
    _, optimizer = make()
    assert optimizer.condition() == (False, False)
    fp32 = torch.nextafter(torch.tensor(MOST_USABLE), torch.tensor(0.0)) if 0.0 < value < MOST_USABLE else value
    optimizer._live()[f"{kind}/layer.weight"][1, 1] = fp32
    assert optimizer.condition() == expected
