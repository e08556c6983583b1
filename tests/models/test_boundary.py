"""Boundaries that narrow the residual: few values cross, both sides learn, and a name means the same cut everywhere."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from whole_model import build, parameters, run

from swarm.manifest import ModelSection
from swarm.models.boundary import is_projector
from swarm.models.cuts import flop_costs, measure_costs
from swarm.models.kinds import count_parameters, parameter_shapes
from swarm.models.subspace import anchor

K = 8
KINDS = ("bottleneck", "maxout", "projector")
TABLE = dict(vocab_size=61, dim=32, layers=4, heads=4, kv_heads=2, ffn_dim=48, context=16)
DENSE = ModelSection(**TABLE, cuts=(1, 3))


def narrow(kind: str, cuts: tuple[int, ...] = (1, 3), **changes: object) -> ModelSection:
    return ModelSection(**{**TABLE, "cuts": cuts, "boundary": kind, "boundary_dim": K, **changes})


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_few_values_cross_and_sender_and_receiver_lie_on_their_sides(kind: str) -> None:
    model = narrow(kind)
    assert set(model.boundary_widths) == {K} and model.residual_width(0) == 32
    logits, crossed = run(build(model), draw(2, 9))
    assert logits.shape == (2, 9, 61)
    assert [tuple(z.shape) for z in crossed] == [(2, 9, K)] * 2
    assert all(z.dtype == torch.float32 for z in crossed)
    places = [[name for name in parameter_shapes(model, stage) if "boundaries" in name] for stage in range(3)]
    sides = [{name.split(".")[2] + name.split(".")[3] for name in names} for names in places]
    assert sides == [{"senders1"}, {"receivers1", "senders3"}, {"receivers3"}]
    dense = {name for stage in range(3) for name in parameter_shapes(DENSE, stage)}
    assert set(parameters(build(model))) - dense == {name for names in places for name in names}
    assert count_parameters(model) > count_parameters(DENSE)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_both_sides_of_every_boundary(kind: str) -> None:
    modules = build(narrow(kind))
    logits, _ = run(modules, draw(3, 12))
    modules[-1].loss_sum(logits, draw(3, 12, seed=1)).backward()
    for name, parameter in parameters(modules).items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("kind", ["bottleneck", "projector"])
def test_a_boundary_with_an_anchor_begins_with_the_first_channels(kind: str) -> None:
    """So the sender sends E[t] and what layer 0 wrote, and the receiver stands on the anchor again."""
    first, second, _ = build(narrow(kind))
    tokens = draw(2, 9)
    frozen = anchor(tokens, narrow(kind))
    entered = []
    second.model.layers["1"].register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    left, began = [], []
    first.model.layers["0"].register_forward_pre_hook(lambda _, arguments: began.append(arguments[0]))
    first.model.layers["0"].register_forward_hook(lambda *call: left.append(call[-1]))
    sent = first(tokens, tokens)
    second(sent, tokens)
    assert torch.equal(began[0], frozen + first.model.embed_tokens(tokens))
    torch.testing.assert_close(sent, (left[0] - frozen)[..., :K], atol=1e-6, rtol=0)
    torch.testing.assert_close(entered[0][..., :K], left[0][..., :K], atol=1e-6, rtol=0)
    assert torch.equal(entered[0][..., K:], frozen[..., K:])


def test_maxout_takes_the_largest_of_neighbours_between_two_norms() -> None:
    first, second, _ = build(narrow("maxout"))
    left, entered = [], []
    first.model.layers["0"].register_forward_hook(lambda *call: left.append(call[-1]))
    second.model.layers["1"].register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    tokens = draw(2, 9)
    sent = first(tokens, tokens)
    second(sent, tokens)
    normed = left[0] / (left[0].square().mean(-1, keepdim=True) + 1e-5).sqrt()
    largest = torch.stack([normed[..., 4 * i : 4 * i + 4].max(-1).values for i in range(K)], -1)
    expected = largest / (largest.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(sent, expected, atol=1e-5, rtol=1e-5)
    up = dict(second.named_parameters())["model.boundaries.receivers.1.up"]
    torch.testing.assert_close(entered[0], sent @ up.T, atol=1e-6, rtol=1e-5)
    assert not narrow("maxout").anchored
    assert up.std().item() == pytest.approx(K**-0.5, rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_has_one_initial_value_whatever_the_other_cuts(kind: str) -> None:
    values = [parameters(build(narrow(kind, cuts))) for cuts in ((1, 3), (1, 2, 3), (3,))]
    shared = set(values[0]) & set(values[1]) & set(values[2])
    assert any("senders.3" in name for name in shared) and any("receivers.3" in name for name in shared)
    for name in shared:
        assert torch.equal(values[0][name], values[1][name]) and torch.equal(values[0][name], values[2][name]), name
    again = parameters(build(narrow(kind)))
    assert all(torch.equal(value, again[name]) for name, value in values[0].items())


@pytest.mark.parametrize("kind", KINDS)
def test_boundaries_compute_in_fp32_under_autocast(kind: str) -> None:
    """As on a GPU: bf16 products here would round what every stage behind lives on."""
    first, second, _ = build(narrow(kind))
    entered = []
    second.model.layers["1"].register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    tokens = draw(2, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sent = first(tokens, tokens)
        second(sent, tokens)
    assert sent.dtype == entered[0].dtype == torch.float32


def test_only_projectors_are_retracted() -> None:
    found = {kind: [name for name in parameters(build(narrow(kind))) if is_projector(name)] for kind in KINDS}
    assert found["bottleneck"] == found["maxout"] == []
    assert [name.removeprefix("model.boundaries.") for name in found["projector"]] == [
        "senders.1.projector",
        "receivers.1.projector",
        "senders.3.projector",
        "receivers.3.projector",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"boundary": "none"}, 'model.boundary_dim = 8 has no effect with model.boundary = "none"'),
        ({"boundary": "maxmin"}, "boundary"),
        ({"boundary_dim": 0}, "model.boundary_dim = 0 must be from 1 to model.dim − 1 = 31"),
        ({"boundary_dim": 32}, "model.boundary_dim = 32 must be from 1"),
        ({"boundary": "maxout", "boundary_dim": 5}, "model.boundary_dim = 5 does not divide model.dim = 32"),
        ({"cuts": ()}, 'model.boundary = "bottleneck" has no effect without a cut'),
        ({"residual": "subspace", "subspace_dim": 4}, 'model.residual = "subspace" is already narrow'),
    ],
)
def test_keys_that_do_not_fit_are_named(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSection(**{**narrow("bottleneck").model_dump(), **changes})
    assert reason in str(caught.value)


def test_the_id_names_kind_and_widths() -> None:
    models = [narrow(kind) for kind in KINDS]
    models += [narrow("bottleneck", boundary_dim=4), narrow("bottleneck", dim=64), narrow("bottleneck", vocab_size=62)]
    assert len({model.subspace_id for model in models}) == 6
    assert narrow("bottleneck", (2,)).subspace_id == models[0].subspace_id, "cuts do not matter"
    assert DENSE.subspace_id == ""


def test_a_narrow_boundary_costs_layers_nothing() -> None:
    assert flop_costs(narrow("bottleneck"), 16) == flop_costs(DENSE, 16)
    assert measure_costs(narrow("maxout"), 1, 8, repeats=1).layer > 0
