"""The subspace: generated alike everywhere, exact at every cut, and the same function as a plain Llama."""

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from whole_model import build, parameters, run

from swarm.manifest import ModelSection
from swarm.models.cuts import flop_costs, measure_costs
from swarm.models.kinds import count_parameters
from swarm.models.stage_module import StageModule
from swarm.models.subspace import anchor, fold, lift

K = 4
TABLE = dict(
    vocab_size=61, dim=32, layers=4, heads=4, kv_heads=2, ffn_dim=48, context=16, residual="subspace", subspace_dim=K
)
MODEL = ModelSection(**TABLE, cuts=(1, 3), tail_layers=1, subspace_seed=5)
WHOLE = MODEL.model_copy(update={"cuts": ()})
GROWN = MODEL.model_copy(update={"subspace_growth": 3})
MODELS = [pytest.param(MODEL, id="one width"), pytest.param(GROWN, id="grown")]
DENSE = ModelSection(**{**TABLE, "residual": "dense", "subspace_dim": 0}, cuts=MODEL.cuts)
NEAR = 1e-4


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, MODEL.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def filled(model: ModelSection, values: Mapping[str, Tensor]) -> list[StageModule]:
    modules = build(model)
    with torch.no_grad():
        for name, parameter in parameters(modules).items():
            parameter.copy_(values[name])
    return modules


def train(modules: list[StageModule], steps: int, step_of: Callable[..., torch.optim.Optimizer]) -> list[float]:
    optimizer = step_of(parameters(modules).values(), lr=2e-3)
    losses = []
    for step in range(steps):
        tokens = (draw(4, 1, seed=step) + torch.arange(13) * 7) % MODEL.vocab_size
        loss = modules[-1].loss_sum(run(modules, tokens[:, :-1])[0], tokens[:, 1:]) / 48
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def reconstruction_error(dense: list[StageModule], tokens: Tensor) -> float:
    """Largest |x − (F[t] + U·Uᵀ(x − F[t]))| over the boundaries of a model whose residual is free to be anything."""
    frozen = anchor(tokens, MODEL)
    _, crossed = run(dense, tokens)
    return max((x - lift((x - frozen)[..., :K], frozen)).abs().max().item() for x in crossed)


# ------------------------------------------------ the anchor


def splitmix64(seed: int, number: int) -> int:
    """Output `number` of the generator, as published: Steele, Lea, Flood 2014."""
    word = (1 << 64) - 1
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & word
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & word
    return z ^ z >> 31


@given(
    seed=st.integers(0, 2**63 - 1),
    dim=st.integers(1, 20),
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6),
)
@settings(max_examples=50, deadline=None)
def test_the_anchor_is_splitmix64_to_the_bit(seed: int, dim: int, tokens: list[int]) -> None:
    model = MODEL.model_copy(update={"dim": dim, "subspace_seed": seed})
    found = anchor(torch.tensor(tokens), model)
    assert found.shape == (len(tokens), dim) and found.dtype == torch.float32
    words = -(-dim // 4)
    for row, token in zip(found.tolist(), tokens, strict=True):
        for channel, value in enumerate(row):
            lane = splitmix64(seed, token * words + channel // 4) >> 16 * (channel % 4) & 0xFFFF
            lane -= (lane & 0x8000) << 1
            assert value == (2 * lane + 1) * 111 / 2**22


def test_the_generator_is_the_published_one() -> None:
    assert splitmix64(0, 0) == 0xE220A8397B1DCDAF
    assert splitmix64(1234567, 0) == 6457827717110365317


def test_anchors_are_of_unit_variance_and_unlike_each_other() -> None:
    model = MODEL.model_copy(update={"dim": 512})
    rows = anchor(torch.arange(200), model)
    assert rows.var() == pytest.approx(1.0, abs=0.02)
    cosines = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows).T
    assert (cosines - torch.eye(200)).abs().max() < 0.3
    assert torch.equal(anchor(torch.arange(200).view(2, 100), model).view(200, 512), rows)


# ------------------------------------------------ exact at the cut


def test_after_500_steps_the_boundary_still_carries_everything() -> None:
    torch.set_num_threads(1)
    modules = build(MODEL)
    losses = train(modules, 500, torch.optim.AdamW)
    assert losses[-1] < 0.5 * losses[0], "or nothing was put to the test"
    dense = filled(DENSE, fold(parameters(modules), MODEL))
    tokens = draw(3, 12, seed=-1)
    assert reconstruction_error(dense, tokens) < NEAR
    logits, coefficients = run(modules, tokens)
    expected, activations = run(dense, tokens)
    torch.testing.assert_close(logits, expected, atol=NEAR, rtol=0)
    assert [tuple(z.shape) for z in coefficients] == [(3, 12, K)] * 2
    for z, x in zip(coefficients, activations, strict=True):
        torch.testing.assert_close(lift(z, anchor(tokens, MODEL)), x, atol=NEAR, rtol=0)


def test_an_optimizer_that_leaves_the_subspace_fails_that_check() -> None:
    """Negative control: elementwise AdamW on full matrices, which start inside."""
    dense = filled(DENSE, fold(parameters(build(MODEL)), MODEL))
    tokens = draw(3, 12, seed=-1)
    assert reconstruction_error(dense, tokens) < NEAR
    train(dense, 1, torch.optim.AdamW)
    assert reconstruction_error(dense, tokens) > 10 * NEAR


@pytest.mark.parametrize("uncut", MODELS)
def test_a_cut_changes_no_bit_of_loss_and_gradients(uncut: ModelSection) -> None:
    tokens, labels = draw(3, 12), draw(3, 12, seed=1)
    found = []
    for model in (uncut, uncut.model_copy(update={"cuts": ()})):
        modules = build(model)
        loss = modules[-1].loss_sum(run(modules, tokens)[0], labels)
        loss.backward()
        found.append((loss, {name: p.grad for name, p in parameters(modules).items()}))
    (cut, cut_gradients), (whole, whole_gradients) = found
    assert torch.equal(cut, whole)
    assert cut_gradients.keys() == whole_gradients.keys()
    for name, gradient in cut_gradients.items():
        assert gradient.abs().max() > 0
        assert torch.equal(gradient, whole_gradients[name]), name


@pytest.mark.parametrize("model", MODELS)
def test_loss_and_gradients_are_those_of_the_full_residual(model: ModelSection) -> None:
    """dL/dZ = Uᵀ·dL/dW, and what goes back over a boundary is Uᵀ·g, although only k values of each crossed."""
    tokens, labels = draw(3, 12), draw(3, 12, seed=1)
    ours = build(model)
    theirs = filled(DENSE, fold(parameters(ours), model))
    results = []
    for modules in (ours, theirs):
        logits, crossed = run(modules, tokens)
        loss = modules[-1].loss_sum(logits, labels) / labels.numel()
        names, values = zip(*parameters(modules).items(), strict=True)
        gradients = torch.autograd.grad(loss, (*crossed, *values))
        results.append((loss, gradients[:2], dict(zip(names, gradients[2:], strict=True))))
    (loss, back, gradients), (full_loss, full_back, full_gradients) = results
    torch.testing.assert_close(loss, full_loss, atol=NEAR, rtol=0)
    for g, full, width in zip(back, full_back, model.boundary_widths, strict=True):
        assert g.shape == (3, 12, width)
        torch.testing.assert_close(g, full[..., :width], atol=1e-7, rtol=NEAR)
    for name, gradient in gradients.items():
        full = full_gradients[name]
        if "embed" in name:
            full = full[:, :K]
        torch.testing.assert_close(gradient, full[: len(gradient)], atol=1e-6, rtol=NEAR, msg=name)


def test_the_tail_writes_to_every_channel_and_nothing_else_does() -> None:
    shapes = {name: tuple(p.shape) for name, p in parameters(build(MODEL)).items()}
    assert shapes["model.embed_tokens.weight"] == (61, K)
    for layer in range(4):
        rows = 32 if layer == 3 else K
        assert shapes[f"model.layers.{layer}.self_attn.o_proj.weight"] == (rows, 32)
        assert shapes[f"model.layers.{layer}.mlp.down_proj.weight"] == (rows, 48)
    assert count_parameters(MODEL) < count_parameters(DENSE)
    free = MODEL.model_copy(update={"tail_layers": 0})
    logits, _ = run(build(free), draw(2, 5))
    assert logits.shape == (2, 5, 61)


def test_what_a_writer_writes_is_as_long_in_the_subspace_as_in_the_tail() -> None:
    model = MODEL.model_copy(update={"dim": 256, "ffn_dim": 512, "subspace_dim": 32})
    values = parameters(build(model))
    inside, tail = (values[f"model.layers.{layer}.mlp.down_proj.weight"] for layer in (1, 3))
    assert (inside.shape, tail.shape) == ((32, 512), (256, 512))
    assert inside.square().sum().item() == pytest.approx(tail.square().sum().item(), rel=0.05)
    assert values["model.embed_tokens.weight"].std().item() == pytest.approx(0.5, rel=0.05)


def test_each_layer_of_a_grown_subspace_writes_more_channels_than_the_one_before() -> None:
    shapes = {name: tuple(p.shape) for name, p in parameters(build(GROWN)).items()}
    assert shapes["model.embed_tokens.weight"] == (61, 4)
    for layer, rows in enumerate((4, 7, 10, 32)):
        assert shapes[f"model.layers.{layer}.self_attn.o_proj.weight"] == (rows, 32)
        assert shapes[f"model.layers.{layer}.mlp.down_proj.weight"] == (rows, 48)
    assert GROWN.boundary_widths == (4, 10) and GROWN.widest_boundary == 10
    _, crossed = run(build(GROWN), draw(2, 5))
    assert [z.shape[-1] for z in crossed] == [4, 10]


# ------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"subspace_dim": 0}, "model.subspace_dim = 0 must be from 1 to model.dim − 1 = 31"),
        ({"subspace_dim": 32}, "model.subspace_dim = 32 must be from 1"),
        ({"tail_layers": 2}, "model.tail_layers = 2 must lie in the last stage, which has 1 of the 4 layers"),
        (
            {"subspace_growth": 14},
            "model.subspace_growth = 14 lets the 4 coefficients of model.subspace_dim grow to 32",
        ),
        ({"tail_layers": 0, "subspace_growth": 10}, "grow to 34 after 4 layers, but model.dim = 32 must be larger"),
        ({"subspace_growth": -1}, "greater than or equal to 0"),
        ({"residual": "dense"}, 'model.subspace_dim = 4 has no effect with model.residual = "dense"'),
        ({"residual": "dense", "subspace_dim": 0, "subspace_growth": 1}, "model.subspace_growth = 1 has no effect"),
        ({"residual": "dense", "subspace_dim": 0}, "model.subspace_seed = 5 has no effect"),
        ({"residual": "dense", "subspace_dim": 0, "subspace_seed": 0}, "model.tail_layers = 1 has no effect"),
    ],
)
def test_keys_that_do_not_fit_are_named(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSection(**{**MODEL.model_dump(), **changes})
    assert reason in str(caught.value)


def test_the_id_names_everything_that_fixes_the_subspace() -> None:
    others = [{"subspace_seed": 6}, {"subspace_dim": 5}, {"subspace_growth": 1}, {"dim": 64}, {"vocab_size": 62}]
    ids = {MODEL.model_copy(update=change).subspace_id for change in ({}, *others)}
    assert len(ids) == 6 and all(len(found) == 64 for found in ids)
    assert WHOLE.subspace_id == MODEL.subspace_id, "cuts do not matter"
    assert DENSE.subspace_id == ""


def test_the_id_and_the_anchor_change_together() -> None:
    """Whoever changes the construction must give it another name in swarm/manifest/model.py, then renew these two."""
    assert MODEL.subspace_id.startswith("d4ad890f6aae2e3a")
    assert (anchor(torch.tensor([3]), MODEL)[0, :5] * 2**22 / 111).tolist() == [29127, 36803, -13365, 20451, -59385]


def test_costs_know_that_writers_are_narrow() -> None:
    assert flop_costs(WHOLE, 16).layer < flop_costs(DENSE, 16).layer
    assert measure_costs(WHOLE, 1, 8, repeats=1).layer > 0
