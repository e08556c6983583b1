"""Cross entropy with a large vocabulary, without all logits in memory at the same time.

For 8,192 tokens and 128,000 ids the logits take 4.2 GB in fp32, and their gradient takes as much. Here both are
computed for some tokens at a time. The gradient of the logits is softmax − one-hot; its products with the weight and
with the input give the other gradients. If there are at most AT_ONCE logits, all of them are computed at once, as in
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

AT_ONCE = 1 << 25
"""Largest number of logits that are computed at once: 128 MiB in fp32. The result depends on it in the last bits,
because it determines where sums are split.
"""


def summed_cross_entropy(x: Tensor, project: Callable[[Tensor], Tensor], weight: Tensor, labels: Tensor) -> Tensor:
    """Σ −log softmax(x·weightᵀ)[label], fp32, nats. x (B, T, dim), weight (V, dim), labels (B, T) int64.

    `project`: computes x·weightᵀ if all logits are computed at once. Products are in autocast's precision if autocast
    is on; everything else is fp32.
    """
    tokens = x.flatten(0, 1)
    if len(tokens) * len(weight) <= AT_ONCE:
        return F.cross_entropy(project(tokens).float(), labels.flatten(), reduction="sum")
    return _in_parts(tokens, weight, labels.flatten())


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        kind = tokens.device.type
        half = tokens.device.type != "meta" and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if half else torch.float32
        matrix = weight.to(dtype)
        loss = torch.zeros((), device=tokens.device)
        of_tokens = torch.empty_like(tokens)
        of_weight = torch.zeros(weight.shape, device=weight.device)
        for part in range(0, len(tokens), rows := max(1, AT_ONCE // len(weight))):
            where = slice(part, part + rows)
            x, chosen = tokens[where].to(dtype), labels[where, None]
            logits = (x @ matrix.t()).float()
            total = logits.logsumexp(dim=1, keepdim=True)
            loss += (total - logits.gather(1, chosen)).sum()
            gradient = logits.sub_(total).exp_()
            gradient.scatter_add_(1, chosen, torch.full_like(total, -1.0))
            gradient = gradient.to(dtype)
            of_tokens[where] = gradient @ matrix
            of_weight += gradient.t() @ x
        ctx.save_for_backward(of_tokens, of_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor, Tensor, None]:
        of_tokens, of_weight = ctx.saved_tensors
        return of_tokens * of_loss, of_weight * of_loss.to(of_weight.dtype), None


_in_parts: Callable[[Tensor, Tensor, Tensor], Tensor] = _InParts.apply
