"""The Triton kernel of the norm: it adds the squares of each lane in order, and all lanes in parallel.

Importing this module needs Triton. norm.py defines the result bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 128
"""Number of lanes that one program adds."""


@torch.no_grad()
def lanes(values: Tensor, block: int) -> Tensor:
    """(min(count, block),) fp64: for each place in a block, the sum of squares. values: (count,) int64 or float."""
    found = torch.empty(min(len(values), block), dtype=torch.float64, device=values.device)
    if len(found):
        grid = (triton.cdiv(len(found), _LANES),)
        with torch.cuda.device_of(values):
            _lanes[grid](  # a fused multiply-add would round once, but the definition rounds twice
                values, found, len(values), block, LANES=_LANES, enable_fp_fusion=False
            )
    return found


@triton.jit
def _lanes(values, found, count, block, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    total = tl.zeros((LANES,), dtype=tl.float64)
    for start in range(0, count, block):
        place = start + lane
        inside = (lane < block) & (place < count)
        value = tl.load(values + place, mask=inside, other=0)
        number = value.to(tl.float64)
        if value.dtype == tl.int64:
            number = tl.where(value == -4611686018427387904, float("nan"), number)
        square = number * number
        total = total + square
    tl.store(found + lane, total, mask=(lane < block) & (lane < count))
