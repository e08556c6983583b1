"""The scale that a decision carries: the factor for every gradient sum."""

from __future__ import annotations

import math
from collections.abc import Iterable


def step_scale(squared_norms: Iterable[float], tokens: int, clip_norm: float) -> tuple[float, float]:
    """(scale, gradient norm) of a step.

    `squared_norms`: of the gradient *sums*, one per stage in stage order, fp64. The gradient norm is that of the
    token-mean gradient; `scale` = min(1, clip_norm / norm) / tokens. A norm that is not finite gives scale 0: SKIP.
    """
    total = 0.0
    for squared in squared_norms:  # stage order: fp64 addition does not commute with regrouping
        total += squared
    if not math.isfinite(total):
        return 0.0, math.inf
    norm = math.sqrt(total) / tokens
    clip = 1.0 if norm <= clip_norm else clip_norm / norm
    return clip / tokens, norm
