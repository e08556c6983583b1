"""The Triton kernel of the norm: a lane's squares are added one after another, all lanes beside each other.

Importing this needs Triton. norm.py defines the result bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 128
"""That one program adds up."""


@torch.no_grad()
def lanes(values: Tensor, block: int) -> Tensor:
    """values: (count,) int64 or float. (min(count, block),) fp64: the sum of the squares at each place of a block."""
    found = torch.empty(min(len(values), block), dtype=torch.float64, device=values.device)
    if len(found):
        grid = (triton.cdiv(len(found), _LANES),)
        with torch.cuda.device_of(values):
            _lanes[grid](  # a fused operation would round once where the definition rounds twice
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
