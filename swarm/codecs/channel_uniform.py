"""Evenly spaced levels, one scale a channel for the whole tensor: for tokens of few coefficients.

A channel is an index of the last dimension. With 16 coefficients a token, scales of blocks cost a quarter of a bit a
value, and those of rows a whole one; a scale for each of 16 channels over 512 tokens costs 0.03. It also lets a
channel with outliers alone bear them. The price: one large token makes the steps of a channel coarse for all tokens.

    step = fp16(absmax / levels / 2^shift) · 2^shift        q = round_half_even(x / step)        x ≈ q · step

Head: shift i16 | scales fp16 × channels. Codes: q in two's complement, channel after channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.blocks import LARGEST, Scales
from swarm.codecs.codec import require_finite
from swarm.codecs.levels import Levels, transposed


class ChannelUniform(Levels):
    """Error of a value: at most 0.51 steps, that is 0.51/levels of the largest magnitude in its channel.

    Values beyond ±3.3e38 saturate there; a channel 2^29 times smaller than the largest becomes zero.
    """

    version = 1

    def __init__(self, name: str, codec_id: int, bits: int) -> None:
        """`bits`: 8, 6, 5 or 4 a value."""
        self.name = name
        self.codec_id = codec_id
        self.bits = bits

    @property
    def levels(self) -> int:
        """On either side of zero."""
        return (1 << self.bits - 1) - 1

    def head_bytes(self, shape: Sequence[int]) -> int:
        return Scales.nbytes(transposed(shape)[0])

    def codes(self, tensor: Tensor) -> tuple[Sequence[Buffer], Tensor]:
        require_finite(tensor, "values")
        channels, rows = transposed(tensor.shape)
        values = tensor.view(rows, channels).t().contiguous()  # (channel, row)
        peaks = torch.maximum(values.amax(dim=1, keepdim=True), -values.amin(dim=1, keepdim=True))
        scales = Scales.of(peaks.clamp_(max=LARGEST).div_(self.levels))
        steps = scales.steps()
        steps.masked_fill_(steps == 0, math.inf)  # x / inf = 0: an all-zero (or vanishing) channel
        codes = (values / steps).round_().clamp_(-self.levels, self.levels).to(torch.int8)
        return scales.parts, codes.view(torch.uint8).bitwise_and_((1 << self.bits) - 1).view(-1)

    def restore(self, head: memoryview, codes: Tensor, shape: tuple[int, ...]) -> Tensor:
        channels, rows = transposed(shape)
        steps = Scales.parse(head, channels, self.levels).steps()
        if self.bits < 8:
            sign = 1 << self.bits - 1
            codes = codes.bitwise_xor_(sign).view(torch.int8).sub_(sign)
        # no encoder writes the one code below −levels, and it could leave the fp32 range
        signed = codes.view(torch.int8).clamp_(min=-self.levels).view(channels, rows)
        return signed.to(torch.float32).mul_(steps).t().contiguous().view(shape)
