"""The codecs `int8`, `int6`, `int5` and `int4`: evenly spaced levels in blocks of 64 values.

In each block of the flattened tensor

    step = fp16(absmax / levels / 2^shift) · 2^shift        q = round_half_even(x / step)        x ≈ q · step

Payload: shift i16 | scales fp16 × blocks | q in `bits` bits × values (below 8 bits: whole blocks, see blocks.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from swarm.buffer import Buffer
from swarm.codecs.blocks import (
    BLOCK,
    LARGEST,
    Scales,
    block_count,
    code_bytes,
    cut,
    pack_bits,
    peaks_of,
    scratch,
    spans,
    unpack_bits,
)
from swarm.codecs.codec import Codec, CodecError, Reason, bytes_on, raw_bytes


class Uniform(Codec):
    """Rounds to the nearest level. Error of a value: at most 0.51 steps, that is 0.51/levels of the largest magnitude
    in its block.

    Values beyond ±3.3e38 saturate there.
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

    def payload_bytes(self, shape: Sequence[int]) -> int:
        count = math.prod(shape)
        return Scales.nbytes(block_count(count)) + code_bytes(count, self.bits)

    def pack(self, tensor: torch.Tensor) -> Sequence[Buffer]:
        blocks = cut(tensor)
        peaks = peaks_of(blocks)
        saturated = peaks.amax().item() > LARGEST
        scales = Scales.of(peaks.clamp_(max=LARGEST).div_(self.levels))
        steps = scales.steps()
        steps.masked_fill_(steps == 0, math.inf)  # x / inf = 0, for blocks that are zero or vanishing
        clamped = saturated or not scales.exact  # otherwise no quotient rounds beyond the last level
        held, packed = scratch(len(blocks)), torch.empty(len(blocks), BLOCK * self.bits // 8, dtype=torch.int8)
        for span in spans(len(blocks)):
            part = blocks[span]
            ratios = torch.div(part, steps[span], out=held[: len(part)]).round_()
            if clamped:
                ratios.clamp_(-self.levels, self.levels)
            if self.bits == 8:
                packed[span] = ratios
            else:
                codes = ratios.to(torch.int8).view(torch.uint8).bitwise_and_((1 << self.bits) - 1)
                packed.view(torch.uint8)[span] = pack_bits(codes, self.bits)
        return *scales.parts, raw_bytes(packed)[: code_bytes(tensor.numel(), self.bits)]

    def check_payload(self, payload: memoryview, shape: tuple[int, ...]) -> None:
        self._scales(payload, shape)  # any code is valid

    def pack_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        blocks = cut(tensor)
        peaks = blocks.abs().amax(dim=1, keepdim=True)
        broken = ~torch.isfinite(peaks).all()
        # divide by a tensor: dividing by a number, a device may multiply by its inverse instead
        wanted = peaks.clamp(max=LARGEST).div_(torch.full_like(peaks, self.levels))
        scales, steps = Scales.of_on_device(wanted)
        codes = (blocks / steps.masked_fill(steps == 0, math.inf)).round_().clamp_(-self.levels, self.levels)
        packed = codes.to(torch.int8).view(torch.uint8)
        if self.bits < 8:
            packed = pack_bits(packed.bitwise_and_((1 << self.bits) - 1), self.bits)
        packed = packed.view(-1)[: code_bytes(tensor.numel(), self.bits)]
        return torch.cat((broken.view(1).to(torch.uint8), scales, packed))

    def unpack_on_device(self, payload: memoryview, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        count = math.prod(shape)
        blocks = block_count(count)
        packed = bytes_on(device, payload)
        steps = Scales.steps_on_device(packed, blocks)
        codes = packed[Scales.nbytes(blocks) :]
        if self.bits == 8:
            codes = torch.nn.functional.pad(codes, (0, -len(codes) % BLOCK))
            signed = codes.view(torch.int8).view(blocks, BLOCK)
        else:
            sign = 1 << self.bits - 1
            codes = unpack_bits(codes.view(blocks, BLOCK * self.bits // 8), self.bits)
            signed = codes.bitwise_xor_(sign).view(torch.int8).sub_(sign)
        huge = steps.amax().double() * (self.levels + 1) > torch.finfo(torch.float32).max
        lowest = torch.where(huge, -self.levels, -self.levels - 1)
        values = torch.maximum(signed.to(torch.float32), lowest).mul_(steps)
        return values.view(-1)[:count].view(shape)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> torch.Tensor:
        count = math.prod(shape)
        blocks = block_count(count)
        steps = self._scales(payload, shape).steps()
        huge = steps.amax().item() * (self.levels + 1) > torch.finfo(torch.float32).max
        packed = torch.empty(blocks, BLOCK * self.bits // 8, dtype=torch.int8)
        raw_bytes(packed)[: code_bytes(count, self.bits)] = payload[Scales.nbytes(blocks) :]
        values = torch.empty(blocks, BLOCK)
        for span in spans(blocks):
            codes = packed[span]
            if self.bits < 8:
                sign = 1 << self.bits - 1
                codes = unpack_bits(codes.view(torch.uint8), self.bits).bitwise_xor_(sign).view(torch.int8).sub_(sign)
            if huge:  # the code below −levels, which no encoder writes, could exceed the fp32 range
                codes = codes.clamp(min=-self.levels)
            values[span].copy_(codes).mul_(steps[span])
        return values.view(-1)[:count].view(shape)

    def _scales(self, payload: memoryview, shape: tuple[int, ...]) -> Scales:
        """The scales in a payload of the right length. Raises CodecError."""
        if len(payload) != self.payload_bytes(shape):
            raise CodecError(
                Reason.WRONG_LENGTH,
                f"the payload has {len(payload)} bytes, the wrong number for {math.prod(shape)} values",
            )
        return Scales.parse(payload, block_count(math.prod(shape)), self.levels)
