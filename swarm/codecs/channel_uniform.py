"""Evenly spaced levels, one scale a channel for the whole tensor: for tokens of few coefficients.

A channel is an index of the last dimension. With 16 coefficients a token, scales of blocks cost a quarter of a bit a
value, and those of rows a whole one; a scale for each of 16 channels over 512 tokens costs 0.03. It also lets a
channel with outliers alone bear them. The price: one large token makes the steps of a channel coarse for all tokens.

    step = fp16(absmax / levels / 2^shift) · 2^shift        q = round_half_even(x / step)        x ≈ q · step

Payload: shift i16 | scales fp16 × channels | q in `bits` bits × values, channel after channel (below 8 bits: whole
blocks of 64, see blocks.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from swarm.codecs.blocks import BLOCK, LARGEST, Scales, block_count, pack_bits, unpack_bits
from swarm.codecs.codec import Buffer, Codec, CodecError, Reason, copied, raw_bytes, require_finite


class ChannelUniform(Codec):
    """Error of a value: at most 0.51 steps, that is 0.51/levels of the largest magnitude in its channel.

    Values beyond ±3.3e38 saturate there; a channel 2^29 times smaller than the largest becomes zero.
    """

    bits: ClassVar[int]
    """8, 6 or 5."""

    @property
    def levels(self) -> int:
        """On either side of zero."""
        return (1 << self.bits - 1) - 1

    def payload_bytes(self, shape: Sequence[int]) -> int:
        _, channels = _table(shape)
        return Scales.nbytes(channels) + self._code_bytes(math.prod(shape))

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        count, (rows, channels) = tensor.numel(), _table(tensor.shape)
        values = tensor.view(rows, channels).t().contiguous()  # (channel, row)
        peaks = torch.maximum(values.amax(dim=1, keepdim=True), -values.amin(dim=1, keepdim=True))
        scales = Scales.of(peaks.clamp_(max=LARGEST).div_(self.levels))
        steps = scales.steps()
        steps.masked_fill_(steps == 0, math.inf)  # x / inf = 0: an all-zero (or vanishing) channel
        codes = torch.zeros(self._places(count), dtype=torch.int8)
        codes[:count].view(channels, rows).copy_((values / steps).round_().clamp_(-self.levels, self.levels))
        if self.bits == 8:
            return *scales.parts, raw_bytes(codes)
        unsigned = codes.view(torch.uint8).bitwise_and_((1 << self.bits) - 1).view(-1, BLOCK)
        return *scales.parts, raw_bytes(pack_bits(unsigned, self.bits))

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        count, (rows, channels) = math.prod(shape), _table(shape)
        if len(payload) != self.payload_bytes(shape):
            raise CodecError(Reason.WRONG_LENGTH, f"payload of {len(payload)} bytes for {count} values")
        steps = Scales.parse(payload, channels, self.levels).steps()
        packed = copied(payload, torch.int8, Scales.nbytes(channels), self._code_bytes(count))
        if self.bits < 8:
            sign = 1 << self.bits - 1
            unsigned = unpack_bits(packed.view(torch.uint8).view(-1, BLOCK * self.bits // 8), self.bits)
            packed = unsigned.bitwise_xor_(sign).view(torch.int8).sub_(sign).view(-1)
        # no encoder writes the one code below −levels, and it could leave the fp32 range
        codes = packed[:count].clamp(min=-self.levels).view(channels, rows)
        return codes.to(torch.float32).mul_(steps).t().contiguous().view(shape)

    def _places(self, count: int) -> int:
        """Codes with what fills up the last block."""
        return count if self.bits == 8 else block_count(count) * BLOCK

    def _code_bytes(self, count: int) -> int:
        return self._places(count) * self.bits // 8


def _table(shape: Sequence[int]) -> tuple[int, int]:
    """(rows, channels)."""
    channels = shape[-1] if shape else 1
    return math.prod(shape) // channels, channels
