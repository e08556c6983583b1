import math

import pytest
import torch
import torch.nn.functional as F

from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage, count_parameters
from swarm.models.rms_norm import RMSNorm

MODEL = ModelSection(
    vocab_size=61, dim=32, layers=4, heads=4, kv_heads=2, ffn_dim=48, context=16, cuts=(1, 3), rope_theta=100.0
)
WHOLE = MODEL.model_copy(update={"cuts": ()})


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, MODEL.vocab_size, shape, generator=torch.Generator().manual_seed(0))


def run(model: ModelSection, x: torch.Tensor) -> torch.Tensor:
    for stage in range(model.stages):
        x = build_stage(model, stage, seed=3)(x)
    return x


def test_stages_together_are_the_whole_model():
    whole = dict(build_stage(WHOLE, 0, seed=3).named_parameters())
    parts = [dict(build_stage(MODEL, stage, seed=3).named_parameters()) for stage in range(3)]
    names = [name for part in parts for name in part]
    assert names == list(whole)
    for part in parts:
        assert all(torch.equal(value, whole[name]) for name, value in part.items())
    assert torch.equal(run(MODEL, tokens(2, 16)), run(WHOLE, tokens(2, 16)))


def test_names_are_those_of_hugging_face():
    names = set(dict(build_stage(WHOLE, 0, device="meta", seed=None).named_parameters()))
    layer = {
        "input_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    }
    expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert names == expected | {f"model.layers.{i}.{name}" for i in range(4) for name in layer}


def test_logits_equal_a_model_written_out_by_hand():
    """An independent Llama in fp64, head by head, with the rotation as complex numbers."""
    w = {name: p.double() for name, p in build_stage(WHOLE, 0, seed=3).named_parameters()}
    x = tokens(1, 9)
    head = MODEL.dim // MODEL.heads
    angle = torch.outer(torch.arange(9.0), 100.0 ** -(torch.arange(0, head, 2).double() / head))
    turn = torch.polar(torch.ones_like(angle), angle)

    def norm(h, name):
        return h / (h.square().mean(-1, keepdim=True) + MODEL.norm_eps).sqrt() * w[name]

    def rotate(v):  # (time, head): pairs (i, i + head / 2)
        z = torch.complex(v[:, : head // 2], v[:, head // 2 :]) * turn
        return torch.cat((z.real, z.imag), -1)

    h = w["model.embed_tokens.weight"][x[0]]
    for i in range(MODEL.layers):
        at = f"model.layers.{i}."
        n = norm(h, at + "input_layernorm.weight")
        q, k, v = (n @ w[f"{at}self_attn.{p}_proj.weight"].T for p in "qkv")
        heads = []
        for a in range(MODEL.heads):
            mine, shared = slice(a * head, (a + 1) * head), slice(a // 2 * head, (a // 2 + 1) * head)
            score = rotate(q[:, mine]) @ rotate(k[:, shared]).T / math.sqrt(head)
            score = score.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
            heads.append(score.softmax(-1) @ v[:, shared])
        h = h + torch.cat(heads, -1) @ w[at + "self_attn.o_proj.weight"].T
        n = norm(h, at + "post_attention_layernorm.weight")
        gate, up = n @ w[at + "mlp.gate_proj.weight"].T, n @ w[at + "mlp.up_proj.weight"].T
        h = h + (gate * gate.sigmoid() * up) @ w[at + "mlp.down_proj.weight"].T
    expected = norm(h, "model.norm.weight") @ w["lm_head.weight"].T
    torch.testing.assert_close(run(WHOLE, x)[0].double(), expected, atol=1e-6, rtol=1e-4)


def test_rotary_tables_are_as_long_as_the_sequences_not_as_the_context():
    """All positions of a long context would take a gigabyte in each stage, which no plan of memory counted."""
    model = WHOLE.model_copy(update={"context": 1 << 20})
    module = build_stage(model, 0, seed=3)
    assert not any(buffer.numel() for buffer in module.buffers())
    with torch.inference_mode():
        short = module(tokens(1, 5))
        assert [buffer.shape[0] for buffer in module.buffers()] == [5, 5]
        for length in range(6, 11):  # as a text is generated
            module(tokens(1, length))
        assert [buffer.shape[0] for buffer in module.buffers()] == [10, 10], "not anew for each token"
        assert torch.equal(module(tokens(1, 5)), short)
    module.make_room(100)
    assert [buffer.shape[0] for buffer in module.buffers()] == [100, 100]
    assert not any("_cos" in name or "_sin" in name for name in module.state_dict())
    limited = build_stage(WHOLE, 0, seed=3)
    limited.make_room(1 << 40)
    assert [buffer.shape[0] for buffer in limited.buffers()] == [WHOLE.context] * 2


@pytest.mark.parametrize("head_dim", [2, 6, 10, 64, 128])
def test_a_position_has_the_same_bits_in_a_table_of_any_length(head_dim: int):
    """Or the digests of runs with other contexts, or after a longer prompt, would differ."""
    model = WHOLE.model_copy(update={"dim": head_dim, "heads": 1, "kv_heads": 1, "context": 4099})
    pairs = 100.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(4099, dtype=torch.float32), pairs).repeat(1, 2)
    for length in (*range(1, 20), 127, 128, 129, 1000, 4096, 4099):
        cos, sin = build_stage(model, 0, seed=None).rotary(length)
        assert torch.equal(cos, angle.cos()[:length]) and torch.equal(sin, angle.sin()[:length])


def test_tables_that_a_prompt_has_extended_serve_training():
    """A prompt is computed in inference mode, whose tensors autograd refuses to keep."""
    module = build_stage(WHOLE, 0, seed=3)
    with torch.inference_mode():
        module(tokens(1, 16))
    module.train_loss(tokens(1, 16), None, tokens(1, 16)).backward()
    plain = build_stage(WHOLE, 0, seed=3)
    plain.train_loss(tokens(1, 16), None, tokens(1, 16)).backward()
    pairs = zip(module.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(mine.grad, other.grad) for mine, other in pairs)


def test_a_token_does_not_see_the_ones_after_it():
    x = tokens(1, 16)
    changed = x.clone()
    changed[0, 10] = (changed[0, 10] + 1) % MODEL.vocab_size
    a, b = run(MODEL, x), run(MODEL, changed)
    assert torch.equal(a[:, :10], b[:, :10])
    assert not torch.equal(a[:, 10:], b[:, 10:])


def test_initial_values_follow_seed_and_name_alone():
    a, b = build_stage(MODEL, 1, seed=3).state_dict(), build_stage(MODEL, 1, seed=4).state_dict()
    q, k = "model.layers.1.self_attn.q_proj.weight", "model.layers.2.self_attn.q_proj.weight"
    assert not torch.equal(a[q], b[q])
    assert not torch.equal(a[q], a[k])
    deep = MODEL.model_copy(update={"ffn_dim": 96})
    assert torch.equal(build_stage(deep, 1, seed=3).state_dict()[q], a[q])
    assert a[q].std() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(a["model.layers.1.input_layernorm.weight"], torch.ones(32))


def test_loss_is_the_sum_in_fp32():
    logits, labels = torch.randn(2, 3, 61).to(torch.bfloat16), tokens(2, 3)
    loss = build_stage(MODEL, 1, seed=3).loss_sum(logits, labels)
    assert loss.dtype == torch.float32
    picked = F.log_softmax(logits.double(), -1).gather(-1, labels[..., None])
    assert loss.item() == pytest.approx(-picked.sum().item(), rel=1e-6)


def test_counting_allocates_nothing_and_adds_up():
    assert count_parameters(MODEL) == sum(count_parameters(MODEL, stage) for stage in range(3))
    assert count_parameters(MODEL) == sum(p.numel() for p in build_stage(WHOLE, 0, seed=0).parameters())


def test_a_stage_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match=r"stage 3 does not exist: model\.cuts = \[1, 3\] gives 3 stages"):
        build_stage(MODEL, 3, seed=0)


TIED = MODEL.model_copy(update={"tie_embeddings": True})
EMBEDDING = "model.embed_tokens.weight"


def test_both_ends_of_a_tied_model_hold_the_embedding_and_nothing_else_twice():
    whole = build_stage(TIED.model_copy(update={"cuts": ()}), 0, seed=3)
    parts = [build_stage(TIED, stage, seed=3) for stage in range(3)]
    assert [part.shared for part in parts] == [1, 0, 1] and whole.shared == 0
    names = [list(dict(part.named_parameters())) for part in parts]
    assert names[0][0] == names[2][0] == EMBEDDING and EMBEDDING not in names[1]
    assert sorted([n for part in names for n in part]) == sorted([*dict(whole.named_parameters()), EMBEDDING])
    assert "lm_head.weight" not in dict(whole.named_parameters())
    assert torch.equal(run(TIED, tokens(2, 16)), whole(tokens(2, 16)))
    assert count_parameters(TIED) == sum(p.numel() for p in whole.parameters()) == count_parameters(MODEL) - 61 * 32
    assert count_parameters(TIED, 2) == sum(p.numel() for p in parts[2].parameters())


def test_a_tied_head_is_an_untied_one_of_the_same_values():
    untied, tied = (build_stage(model, 2, seed=3) for model in (MODEL, TIED))
    values = dict(tied.named_parameters())
    head = values.pop(EMBEDDING)
    untied.load_state_dict(values | {"lm_head.weight": head})
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(untied(x), tied(x))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"residual": "subspace", "subspace_dim": 4},
            'model.tie_embeddings = true does not fit model.residual = "subspace"',
        ),
        ({"boundary": "bottleneck", "boundary_dim": 8}, 'does not fit model.boundary = "bottleneck"'),
        ({"anchor": "frozen"}, 'does not fit model.anchor = "frozen", .*: set model.tie_embeddings = false'),
        (
            {"kind": "resnet", "classes": 10, "heads": 6, "kv_heads": 2, "ffn_dim": 512, "rope_theta": 10_000.0},
            'model.tie_embeddings = True has no effect with model.kind = "resnet"',
        ),
    ],
)
def test_what_cannot_be_tied_is_refused(keys: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        ModelSection(**{**TIED.model_dump(), **keys})


def test_what_stands_at_the_cuts_without_an_anchor_may_be_tied():
    assert ModelSection(**{**TIED.model_dump(), "boundary": "maxout", "boundary_dim": 8}).shares_embedding
    assert not ModelSection(**{**TIED.model_dump(), "cuts": ()}).shares_embedding


def test_with_the_least_norm_eps_activations_of_0_have_a_finite_gradient():
    norm = RMSNorm(MODEL.dim, MODEL.model_validate({**MODEL.model_dump(), "norm_eps": 1e-20}).norm_eps)
    torch.nn.init.ones_(norm.weight)
    x = torch.zeros(2, MODEL.dim, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
