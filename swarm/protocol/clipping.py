"""The scale of a decided step: the factor by which every peer multiplies its gradient sum."""

from __future__ import annotations

import math
from collections.abc import Iterable


def step_scale(squared_norms: Iterable[float], tokens: int, clip_norm: float) -> tuple[float, float]:
    """Return (scale, gradient norm) of a step.

    `squared_norms`: those of the gradient *sums*, one per stage in stage order, fp64. The gradient norm is that of the
    token-mean gradient; `scale` = min(1, clip_norm / norm) / tokens. A non-finite norm gives scale 0: SKIP.
    """
    total = 0.0
    for squared in squared_norms:  # in stage order: fp64 addition is not associative
        total += squared
    if not math.isfinite(total):
        return 0.0, math.inf
    norm = math.sqrt(total) / tokens
    clip = 1.0 if norm <= clip_norm else clip_norm / norm
    return clip / tokens, norm
