"""Layers whose backward is split give the same bits as those of torch, whole or in two halves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from swarm.compute.due_weights import Due
from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage
from swarm.models.split_backward import Embedding, Linear, SplitBackward
from swarm.models.stage_module import StageModule

SHAPE = {"vocab_size": 101, "dim": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn_dim": 96, "context": 32}
THREE = ModelSection(**SHAPE, cuts=(1, 2))
TIED = ModelSection(**SHAPE, cuts=(), tie_embeddings=True)
SUBSPACE = ModelSection(**SHAPE, cuts=(1, 2), residual="subspace", subspace_dim=8, tail_layers=1)
STAGES = [
    *(pytest.param(THREE, stage, id=name) for stage, name in enumerate(("first", "middle", "last"))),
    pytest.param(TIED, 0, id="tied"),
    pytest.param(SUBSPACE, 1, id="subspace"),
]


class Backward:
    """A microbatch through one stage. `split`: what its layers are attached to; None: those of torch are left alone."""

    def __init__(self, model: ModelSection, stage: int, split: SplitBackward | None, dtype: torch.dtype) -> None:
        self.module: StageModule = build_stage(model, stage, seed=1)
        if split is not None:
            split.attach(self.module)
        draw = torch.Generator().manual_seed(2)
        tokens = torch.randint(0, model.vocab_size, (2, 12), generator=draw)
        source = torch.randn(2, 12, model.widest_boundary, generator=draw).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            self.output = self.module(tokens if self.module.first else source, tokens)
            if self.module.last:
                self.output = self.module.loss_sum(self.output, tokens)
        self.sources = () if self.module.first else (source,)
        self.parameters = tuple(self.module.parameters())
        self._gradient = None if self.module.last else torch.randn(self.output.shape, generator=draw)

    def run(self) -> list[Tensor | None]:
        """Of the input, if there is one, and of each parameter."""
        of = (*self.sources, *self.parameters)
        return list(torch.autograd.grad(self.output, of, self._gradient, allow_unused=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("model", "stage"), STAGES)
def test_halves_are_the_same_bits_as_a_whole(model: ModelSection, stage: int, dtype: torch.dtype) -> None:
    plain = Backward(model, stage, None, dtype).run()
    assert all(gradient is not None for gradient in plain)
    split = SplitBackward()
    whole = Backward(model, stage, split, dtype).run()
    halves = Backward(model, stage, split, dtype)
    with split.splitting() as kept:
        first = halves.run()
    due = Due(first[len(halves.sources) :], kept, None)
    assert sum(gradient is None for gradient in due.at_once) >= 7, "all products of a layer wait"
    second = due.computed(halves.parameters)
    for found in (whole, [*first[: len(halves.sources)], *second]):
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))  # type: ignore[arg-type]
    assert not any(tensor.requires_grad for tensor in second), "no graph is kept behind them"


def test_what_is_due_counts_what_two_layers_read_once() -> None:
    split, draw = SplitBackward(), torch.Generator().manual_seed(0)
    layers = nn.ModuleList([Linear(8, 4), Linear(8, 4)])
    split.attach(layers)
    x = torch.randn(3, 8, generator=draw, requires_grad=True)
    with split.splitting() as kept:
        torch.autograd.grad([layer(x).square().sum() for layer in layers], x)
    assert Due((), kept, None).nbytes == 4 * (3 * 8 + 2 * 3 * 4)


def test_nothing_is_kept_of_a_backward_that_is_not_split() -> None:
    split = SplitBackward()
    table = Embedding(5, 3)
    split.attach(table)
    ids = torch.tensor([1, 1, 4])
    with split.splitting() as kept:
        assert torch.autograd.grad(table(ids).sum(), table.weight, allow_unused=True) == (None,)
    assert len(kept) == 1 and kept[0].computed().sum().item() == 9.0
    (gradient,) = torch.autograd.grad(table(ids).sum(), table.weight)
    assert torch.equal(gradient, kept[0].computed()) and len(kept) == 1
