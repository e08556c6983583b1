"""Evenly spaced levels, one scale per channel for the whole tensor: for tokens of few coefficients.

A channel is an index of the last dimension. With 16 coefficients per token, a scale per block costs 0.25 bits per value
and a scale per row 1 bit; a scale for each of 16 channels over 512 tokens costs 0.03 bits. Outliers in one channel
affect only that channel. The disadvantage: one large token makes the steps of a channel coarse for all tokens.

    step = fp16(absmax / levels / 2^shift) · 2^shift        q = round_half_even(x / step)        x ≈ q · step

Head: shift i16 | scales fp16 × channels. Codes: q in two's complement, channel after channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.blocks import BLOCK, LARGEST, Scales, pack_bits, unpack_bits
from swarm.codecs.codec import bytes_on, require_finite
from swarm.codecs.levels import Levels, transposed


class ChannelUniform(Levels):
    """Rounds to the nearest level. Error of a value: at most 0.51 steps, that is 0.51/levels of the largest magnitude
    in its channel.

    Values beyond ±3.3e38 saturate there; a channel 2^29 times smaller than the largest becomes zero.
    """

    version = 1

    def __init__(self, name: str, codec_id: int, bits: int) -> None:
        """`bits`: 8, 6, 5 or 4 per value."""
        self.name = name
        self.codec_id = codec_id
        self.bits = bits

    @property
    def levels(self) -> int:
        """Number of levels on either side of zero."""
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
        steps.masked_fill_(steps == 0, math.inf)  # x / inf = 0, for channels that are zero or vanishing
        codes = (values / steps).round_().clamp_(-self.levels, self.levels).to(torch.int8)
        return scales.parts, codes.view(torch.uint8).bitwise_and_((1 << self.bits) - 1).view(-1)

    def check_head(self, head: memoryview, shape: tuple[int, ...]) -> None:
        Scales.parse(head, transposed(shape)[0], self.levels)

    def restore(self, head: memoryview, codes: Tensor, shape: tuple[int, ...]) -> Tensor:
        channels, rows = transposed(shape)
        steps = Scales.parse(head, channels, self.levels).steps()
        if self.bits < 8:
            sign = 1 << self.bits - 1
            codes = codes.bitwise_xor_(sign).view(torch.int8).sub_(sign)
        # the code below −levels, which no encoder writes, could exceed the fp32 range
        signed = codes.view(torch.int8).clamp_(min=-self.levels).view(channels, rows)
        return signed.to(torch.float32).mul_(steps).t().contiguous().view(shape)

    def pack_on_device(self, tensor: Tensor) -> Tensor:
        channels, rows = transposed(tensor.shape)
        values = tensor.view(rows, channels).t().contiguous()
        peaks = torch.maximum(values.amax(dim=1, keepdim=True), -values.amin(dim=1, keepdim=True))
        broken = ~torch.isfinite(peaks).all()
        # divide by a tensor: dividing by a number, a device may multiply by its inverse instead
        wanted = peaks.clamp(max=LARGEST).div_(torch.full_like(peaks, self.levels))
        scales, steps = Scales.of_on_device(wanted)
        codes = (values / steps.masked_fill(steps == 0, math.inf)).round_().clamp_(-self.levels, self.levels)
        packed = codes.to(torch.int8).view(torch.uint8).view(-1)
        if self.bits < 8:
            packed = torch.nn.functional.pad(packed.bitwise_and_((1 << self.bits) - 1), (0, -len(packed) % BLOCK))
            packed = pack_bits(packed.view(-1, BLOCK), self.bits).view(-1)
        return torch.cat((broken.view(1).to(torch.uint8), scales, packed))

    def unpack_on_device(self, payload: memoryview, shape: tuple[int, ...], device: torch.device) -> Tensor:
        channels, rows = transposed(shape)
        packed = bytes_on(device, payload)
        steps = Scales.steps_on_device(packed, channels)
        codes = packed[Scales.nbytes(channels) :]
        if self.bits == 8:
            signed = codes.view(torch.int8)
        else:
            sign = 1 << self.bits - 1
            codes = unpack_bits(codes.view(-1, BLOCK * self.bits // 8), self.bits)
            signed = codes.bitwise_xor_(sign).view(torch.int8).sub_(sign).view(-1)[: channels * rows]
        signed = signed.clamp(min=-self.levels).view(channels, rows)
        return signed.to(torch.float32).mul_(steps).t().contiguous().view(shape)
