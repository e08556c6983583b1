"""Token means: what a boundary's values have in common whenever a token occurs, which need not be sent.

Most of an activation's energy is the same at each occurrence of a token (docs/compression.md). So both ends of a
boundary keep a mean for each vocabulary entry, with `model.token_means`. The sender subtracts it, and the receiver adds
it again:

    sent = x - mean[t]        received = crossed + mean[t]        crossed: `sent` after the codec

Both ends have one table each, with equal numbers: it is a parameter of their stages, and so part of their states. Its
"gradient" is, for each entry, the sum of what crossed, and the number of its occurrences. These are added exactly, like
all gradients. Once per step, both ends compute the same new means from them (`follow`). So kills, joins, rollbacks and
the reference need no rules of their own.

A mean moves to the average of its occurrences in the step; if there were few, only part of the way, as if it was one of
the last `_REMEMBERED` occurrences.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarm.manifest import TOKEN_MEANS_GRID_BITS

_REMEMBERED = 4.0
"""The mean follows about this many occurrences. In training, quick means leave less to send than slow ones."""
_UNITS = 2.0**10
"""Values are added as multiples of 1/_UNITS."""
_MOST = 2.0**31
"""Largest value that is added, in units."""
_WEIGHT = 2.0**-TOKEN_MEANS_GRID_BITS * _UNITS
"""The sums are multiplied by this number, so that they weigh little beside gradients when contributions are compared
(swarm/compute/sketching.py).
"""


def is_token_means(name: str) -> bool:
    """Whether a parameter, by its name, is a table of token means, which no optimizer changes."""
    return name.endswith(".token_means")


class TokenMeans(nn.Module):
    """The table of one end of a boundary: (vocabulary, width + 1) fp32. Each row is a token's mean and its number of
    remembered occurrences.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.token_means = nn.Parameter(torch.empty(vocabulary, width + 1))
        self.scale = 1.0
        """The gradients of a backward are multiplied by this number."""


class ReceivedMeans(TokenMeans):
    def forward(self, crossed: Tensor, tokens: Tensor) -> Tensor:
        """Compute x, (batch, time, width) fp32, from the received difference. tokens: (batch, time) int64."""
        out: Tensor = _Added.apply(crossed, self.token_means, tokens, self)  # type: ignore[no-untyped-call]
        return out


class SentMeans(TokenMeans):
    """The means at the end that sends. Set `crossed` before a backward."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        self.crossed: Tensor | None = None
        """What arrived of the microbatch: (batch, time, width) fp32."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The part of x that is sent, (batch, time, width). tokens: (batch, time) int64."""
        out: Tensor = _Subtracted.apply(x, self.token_means, tokens, self)  # type: ignore[no-untyped-call]
        return out


def sent_means(module: nn.Module, scale: float) -> SentMeans | None:
    """The table of the boundary to which a stage sends; None if it has none. Sets the `scale` of the stage's tables."""
    sent = None
    for means in module.modules():
        if isinstance(means, TokenMeans):
            means.scale = scale
            sent = means if isinstance(means, SentMeans) else sent
    return sent


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossed: Tensor, table: Tensor, tokens: Tensor, means: TokenMeans) -> Tensor:
        ctx.save_for_backward(crossed, tokens)
        ctx.means = means
        return crossed + table[tokens, :-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        crossed, tokens = ctx.saved_tensors
        return gradients[0], _sums(crossed, tokens, ctx.means), None, None


class _Subtracted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, tokens: Tensor, means: SentMeans) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.means = means
        return x.float() - table[tokens, :-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (tokens,) = ctx.saved_tensors
        means: SentMeans = ctx.means
        crossed = torch.empty_like(gradients[0]) if gradients[0].is_meta else means.crossed
        if crossed is None:
            raise RuntimeError("a backward through token means needs the activation that crossed the boundary")
        means.crossed = None
        return gradients[0], _sums(crossed, tokens, means), None, None


def _sums(crossed: Tensor, tokens: Tensor, means: TokenMeans) -> Tensor:
    """For each entry: the sum of what crossed, and the number of occurrences, times _WEIGHT; as the table, fp32.

    It adds whole numbers, because a GPU adds in any order.
    """
    flat = crossed.reshape(-1, crossed.shape[-1]).float().nan_to_num()  # a step with NaN is skipped
    told = F.pad((flat * _UNITS).round_().clamp_(-_MOST, _MOST).to(torch.int64), (0, 1), value=int(_UNITS))
    whole = torch.zeros_like(means.token_means, dtype=torch.int64).index_add_(0, tokens.reshape(-1), told)
    return whole.to(torch.float32).mul_(means.scale * _WEIGHT / _UNITS)


@torch.no_grad()
def follow(table: Tensor, sums: Tensor) -> None:
    """Change a table, (vocabulary, width + 1) fp32, in place by the "gradient" of a step.

    sums: the same shape, fp32. Each operation rounds once, so the result has the same bits on every machine.
    """
    sums = sums / _WEIGHT
    times, seen = sums[:, -1:], table[:, -1:]
    seen.add_(times).clamp_(max=_REMEMBERED)
    table[:, :-1] += sums[:, :-1] / (torch.maximum(times, seen) + 1.0)
