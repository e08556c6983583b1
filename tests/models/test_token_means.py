"""Token means: the model's result does not change, and a table follows what its tokens have in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from swarm.manifest import ManifestError, ModelSection, RunFile, read_run_tree
from swarm.models.kinds import build_stage
from swarm.models.token_means import SentMeans, follow, is_token_means, sent_means

V, K = 32, 3


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def section(**keys: Any) -> ModelSection:
    shape = {"vocab_size": V, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 48, "context": 128}
    return ModelSection(**shape, cuts=(1,), token_means=True, **keys)


def test_what_one_end_subtracts_the_other_adds_again() -> None:
    tokens = torch.randint(0, V, (2, 9), generator=torch.Generator().manual_seed(1))
    stages = [build_stage(section(), stage, seed=5) for stage in range(2)]
    first = stages[0](tokens)
    logits = stages[1](first, tokens)
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if is_token_means(name):
                parameter.data.copy_(drawn(*parameter.shape))
    sent = stages[0](tokens)
    assert not torch.allclose(sent, first)
    torch.testing.assert_close(stages[1](sent, tokens), logits, atol=1e-5, rtol=1e-5)


def test_the_gradient_of_a_table_is_the_exact_sum_of_what_crossed() -> None:
    means = SentMeans(V, K)
    means.token_means.data.zero_()
    tokens = torch.tensor([[3, 7, 3]])
    out = means(drawn(1, 3, K).requires_grad_(), tokens)
    means.crossed = torch.tensor([[[1.0, 0.5, -2.0], [4.0, 0.0, 0.0], [0.25, 0.5, 0.0]]])
    gradient, table = torch.autograd.grad(out.sum() * 2, [out, means.token_means], retain_graph=True)
    assert table[3].mul(64).tolist() == [1.25, 1.0, -2.0, 2.0], "the last number counts occurrences"
    assert table[7].mul(64).tolist() == [4.0, 0.0, 0.0, 1.0]
    assert table.count_nonzero() == 6
    assert gradient.unique().tolist() == [2.0]
    with pytest.raises(RuntimeError, match="needs the activation that crossed the boundary"):
        torch.autograd.grad(out.sum(), [means.token_means])


def test_a_table_moves_to_the_average_of_frequent_tokens_and_towards_that_of_rare_ones() -> None:
    table, sums = torch.zeros(3, 2), torch.tensor([[60.0, 99.0], [2.0, 1.0], [0.0, 0.0]]) / 64
    follow(table, sums)
    assert table[0].tolist() == pytest.approx([0.6, 4.0])
    assert table[1].tolist() == pytest.approx([1.0, 1.0]), "its first occurrence counts half"
    assert table[2].tolist() == [0.0, 0.0]
    for _ in range(3):
        follow(table, torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]) / 64)
    before = table[1, 0].item()
    follow(table, torch.tensor([[0.0, 0.0], [5.0, 1.0], [0.0, 0.0]]) / 64)
    assert table[1, 0].item() == pytest.approx(before + 1.0), "one of the last four, and the mean itself"


def test_values_that_no_sum_can_hold_are_cut_off_and_nan_counts_as_zero() -> None:
    means = SentMeans(V, 1)
    out = means(torch.zeros(1, 2, 1, requires_grad=True), torch.tensor([[1, 2]]))
    means.crossed = torch.tensor([[[1e30], [float("nan")]]])
    (table,) = torch.autograd.grad(out.sum(), [means.token_means])
    assert torch.isfinite(table).all() and table[1, 0] > 1e4 and table[2, 0] == 0


def test_only_a_stage_that_sends_has_a_table_for_what_it_sent() -> None:
    first, last = (build_stage(section(), stage, seed=None) for stage in range(2))
    assert sent_means(first, 1.0) is not None and sent_means(last, 1.0) is None
    assert sent_means(build_stage(section().model_copy(update={"token_means": False}), 0, seed=None), 1.0) is None


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ({"sums": {"averaging": "int8"}}, 'sums.averaging = "int8" does not fit model.token_means = true'),
        ({"sums": {"mode": "fp32"}}, 'sums.mode = "fp32" does not fit model.token_means = true'),
        ({"sums": {"grid_bits": 12}}, "sums.grid_bits = 12 is too coarse for model.token_means = true: set it to 16"),
        ({"codec": {"forward": "ef:int4"}}, 'codec.forward = "ef:int4" does not fit model.token_means = true'),
    ],
)
def test_what_token_means_cannot_be_combined_with_is_named(sets: dict[str, dict[str, object]], reason: str) -> None:
    tree: dict[str, Any] = RunFile(model=section(), data=RunFile.Data(directory="data")).model_dump(mode="json")
    for table, keys in sets.items():
        tree[table] |= keys
    with pytest.raises((ManifestError, ValidationError)) as caught:
        read_run_tree(tree, "RUN.toml")
    assert reason in str(caught.value)
