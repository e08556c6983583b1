"""What a stage adds to what it received, and the anchor on its own: they begin as nothing and break no promise."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from whole_model import build, parameters, run

from swarm.manifest import ModelSection
from swarm.models.kinds import parameter_shapes
from swarm.models.stage_module import StageModule
from swarm.models.subspace import anchor, fold

K = 8
TABLE = dict(vocab_size=61, dim=32, layers=4, heads=4, kv_heads=2, ffn_dim=48, context=16, cuts=(1, 3))
MODULES = {"token_table_dim": 3, "receiver_hidden": 20}
SUBSPACE = {"residual": "subspace", "subspace_dim": K, "tail_layers": 1}
BASES: dict[str, dict[str, object]] = {
    "dense": {},
    "anchored": {"anchor": "frozen"},
    "subspace": SUBSPACE,
    **{kind: {"boundary": kind, "boundary_dim": K} for kind in ("bottleneck", "projector", "maxout")},
}
NEAR = 1e-4


WITH_TOKENS = tuple(base for base in BASES if base != "maxout")
"""Those that tell tokens apart behind a cut without a table; the others' tables begin at random."""


def section(base: str, **changes: object) -> ModelSection:
    return ModelSection(**{**TABLE, **BASES[base], **changes})


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(seed))


def stirred(modules: list[StageModule]) -> list[StageModule]:
    """Modules in the midst of training: nothing is zero any more."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in parameters(modules).values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return modules


@pytest.mark.parametrize("base", WITH_TOKENS)
def test_receivers_begin_by_adding_nothing(base: str) -> None:
    plain, rich = build(section(base)), build(section(base, **MODULES))
    tokens = draw(2, 9)
    assert torch.equal(run(plain, tokens)[0], run(rich, tokens)[0])
    added = set(parameters(rich)) - set(parameters(plain))
    assert added == {
        f"model.boundaries.{part}"
        for cut in (1, 3)
        for part in (
            *(f"tables.{cut}.{name}" for name in ("embed", "up")),
            *(f"refinements.{cut}.{name}" for name in ("norm.weight", "up", "out")),
        )
    }
    assert "model.boundaries.tables.1.embed" in parameter_shapes(section(base, **MODULES), 1), "it belongs to stage 1"
    logits, crossed = run(stirred(rich), tokens)
    assert not torch.equal(run(stirred(plain), tokens)[0], logits), "they have their say"
    assert [z.shape[-1] for z in crossed] == [section(base).widest_boundary] * 2, "and nothing more crosses for them"


@pytest.mark.parametrize("base", BASES)
def test_all_of_them_learn(base: str) -> None:
    modules = stirred(build(section(base, **MODULES)))
    modules[-1].loss_sum(run(modules, draw(3, 12))[0], draw(3, 12, seed=1)).backward()
    for name, parameter in parameters(modules).items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("base", WITH_TOKENS)
def test_at_the_start_a_gradient_already_moves_them(base: str) -> None:
    modules = build(section(base, **MODULES))
    modules[-1].loss_sum(run(modules, draw(3, 12))[0], draw(3, 12, seed=1)).backward()
    for name, parameter in parameters(modules).items():
        if name.endswith((".embed", ".out")):
            assert not parameter.any() and parameter.grad.abs().max() > 0, name


def test_a_table_adds_a_row_for_each_token_and_an_mlp_refines_the_sum() -> None:
    model = section("bottleneck", **MODULES)
    first, second, _ = stirred(build(model))
    tokens = draw(2, 9)
    sent = first(tokens, tokens)
    entered = []
    second.model.layers["1"].register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    second(sent, tokens)
    value = {name.removeprefix("model.boundaries."): p for name, p in second.named_parameters()}
    x = anchor(tokens, model) + sent @ value["receivers.1.up"].T
    x = x + value["tables.1.embed"][tokens] @ value["tables.1.up"].T
    normed = x / (x.square().mean(-1, keepdim=True) + model.norm_eps).sqrt() * value["refinements.1.norm.weight"]
    x = x + torch.nn.functional.silu(normed @ value["refinements.1.up"].T) @ value["refinements.1.out"].T
    torch.testing.assert_close(entered[0], x, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_in_a_subspace_they_leave_nothing_that_the_boundary_cannot_carry() -> None:
    """Beside a full residual: what the layers and the receivers write stays in S; the tables are read, never sent."""
    model = section("subspace", **MODULES)
    ours = stirred(build(model))
    dense = build(section("dense"))
    folded = fold({name: p.detach() for name, p in parameters(ours).items()}, model)
    for name, parameter in parameters(dense).items():
        parameter.copy_(folded[name])
    tokens = draw(3, 12)
    frozen = anchor(tokens, model)
    logits, crossed = run(ours, tokens)
    x = dense[0].model.embed_tokens(tokens)
    for stage, (mine, plain) in enumerate(zip(ours, dense, strict=True)):
        rows = torch.zeros_like(x)
        for table in mine.model.boundaries.tables.values():
            rows = table(tokens)
        x = x + rows
        for refinement in mine.model.boundaries.refinements.values():
            x = x + torch.nn.functional.pad(refinement(x), (0, 32 - K))
        for layer in plain.model.layers.values():
            x = layer(x, None, *plain.rotary(12))
        if stage < 2:
            x = x - rows
            assert rows.abs().max() > 0.05 or stage == 0, "or nothing was put to the test"
            assert (x - frozen)[..., K:].abs().max() < NEAR
            torch.testing.assert_close(crossed[stage], (x - frozen)[..., :K], atol=NEAR, rtol=0)
    torch.testing.assert_close(logits, dense[2].lm_head(dense[2].model.norm(x)), atol=NEAR, rtol=0)


@pytest.mark.parametrize("base", ["bottleneck", "dense"])
def test_a_name_has_one_initial_value_whatever_the_other_cuts(base: str) -> None:
    values = [parameters(build(section(base, **MODULES, cuts=cuts))) for cuts in ((1, 3), (1, 2, 3), (3,))]
    shared = set(values[0]) & set(values[1]) & set(values[2])
    assert {"model.boundaries.tables.3.up", "model.boundaries.refinements.3.up"} <= shared
    for name in shared:
        assert torch.equal(values[0][name], values[1][name]) and torch.equal(values[0][name], values[2][name]), name


# ------------------------------------------------ the anchor


def test_an_anchored_dense_model_starts_at_the_anchor_and_folds_into_a_plain_one() -> None:
    model = section("anchored")
    modules = stirred(build(model))
    began = []
    modules[0].model.layers["0"].register_forward_pre_hook(lambda _, arguments: began.append(arguments[0]))
    tokens = draw(2, 9)
    logits, crossed = run(modules, tokens)
    assert torch.equal(began[0], anchor(tokens, model) + modules[0].model.embed_tokens(tokens))
    assert [x.shape[-1] for x in crossed] == [32, 32]
    plain = build(section("dense"))
    folded = fold({name: p.detach() for name, p in parameters(modules).items()}, model)
    with torch.no_grad():
        for name, parameter in parameters(plain).items():
            parameter.copy_(folded[name])
    assert torch.equal(run(plain, tokens)[0], logits)


def test_a_bottleneck_without_an_anchor_sends_the_residual_itself() -> None:
    model = section("bottleneck", anchor="none", **MODULES)
    first, second, _ = build(model)
    tokens = draw(2, 9)
    left = []
    first.model.layers["0"].register_forward_hook(lambda *call: left.append(call[-1]))
    sent = first(tokens)
    torch.testing.assert_close(sent, left[0][..., :K], atol=1e-6, rtol=0)
    assert dict(second.named_parameters())["model.boundaries.tables.1.embed"].any(), "else all tokens look alike"
    assert torch.isfinite(second(sent, tokens)).all()


def test_the_id_names_an_anchor_that_is_not_the_usual_one() -> None:
    models = [section(base) for base in BASES if base != "dense"]
    models += [section("bottleneck", anchor="none"), section("projector", anchor="none")]
    assert len({model.subspace_id for model in models}) == len(models)
    assert section("dense", anchor="none").subspace_id == section("dense").subspace_id == ""
    assert section("bottleneck", anchor="frozen").subspace_id == section("bottleneck").subspace_id
    assert section("subspace", anchor="frozen").subspace_id == section("subspace").subspace_id


# ------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("base", "changes", "reason"),
    [
        (
            "dense",
            {"cuts": (), "receiver_hidden": 8},
            "model.receiver_hidden = 8 has no effect in a model of one stage",
        ),
        (
            "dense",
            {"cuts": (), "token_table_dim": 2},
            "model.token_table_dim = 2 has no effect in a model of one stage",
        ),
        ("dense", {"cuts": (), "token_means": True}, "model.token_means = true has no effect in a model of one stage"),
        ("dense", {"token_table_dim": 33}, "model.token_table_dim = 33 is more than model.dim = 32"),
        ("dense", {"receiver_hidden": -1}, "receiver_hidden"),
        ("subspace", {"anchor": "none"}, 'with model.anchor = "none", model.residual = "subspace" has no component'),
        ("maxout", {"anchor": "frozen"}, 'model.anchor = "frozen" does not fit model.boundary = "maxout"'),
        ("dense", {"anchor": "learned"}, "anchor"),
    ],
)
def test_keys_that_do_not_fit_are_named(base: str, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        section(base, **changes)
    assert reason in str(caught.value)


def test_the_model_says_what_acts_at_its_cuts() -> None:
    assert section("dense").acts_at_cuts == section("anchored").acts_at_cuts == section("subspace").acts_at_cuts == ()
    assert section("maxout", **MODULES).acts_at_cuts == (
        'model.boundary = "maxout"',
        "model.receiver_hidden = 20",
        "model.token_table_dim = 3",
    )
