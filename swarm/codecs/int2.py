"""Codec `int2`: 2 bits per value in blocks of 64; 2.25 bits with the scales. Each block takes the better of two rules.

    absmax       levels −s, 0, s                        s = largest magnitude: right when few values are large
    Lloyd-Max    levels ±0.4528·s, ±1.51·s              s = root mean square: optimal for Gaussian values (Max, 1960)

The rule with the smaller squared error is used; absmax on a tie. The sign bit of the fp16 scale tells the rule. For the
choice, magnitudes are rounded to 1/512 of the block's largest magnitude.

Payload: shift i16 | ±scales fp16 × blocks | codes, bit 0 the outer level, bit 1 minus, whole blocks (blocks.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.blocks import (
    BLOCK,
    LARGEST,
    Scales,
    block_count,
    cut,
    pack_bits,
    peaks_of,
    scratch,
    shift_for,
    spans,
    unpack_bits,
)
from swarm.codecs.codec import Codec, CodecError, Reason, copied, raw_bytes

_INNER, _OUTER = 0.4528, 1.51
_THRESHOLD = 0.9816  # half-way between the two
_UNITS = 512  # to the largest magnitude of a block


class Int2(Codec):
    """Encodes each block with the better rule, so its squared error is that of this rule. Error of a value: at most the
    block's largest magnitude.
    """

    name = "int2"
    codec_id = 5
    version = 1

    def payload_bytes(self, shape: Sequence[int]) -> int:
        blocks = block_count(math.prod(shape))
        return Scales.nbytes(blocks) + blocks * BLOCK // 4

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        blocks = cut(tensor)
        peaks = peaks_of(blocks)
        saturated = peaks.amax().item() > LARGEST
        peaks.clamp_(max=LARGEST)
        shift = shift_for(peaks.amax().item())
        units = (peaks / _UNITS).masked_fill_(peaks == 0, math.inf)
        scales = torch.empty(len(blocks), 1, dtype=torch.float16)
        packed = torch.empty(len(blocks), BLOCK // 4, dtype=torch.uint8)
        size, mask, product = scratch(len(blocks)), scratch(len(blocks)), scratch(len(blocks))
        for span in spans(len(blocks)):
            part, peak = blocks[span], peaks[span]
            held = slice(0, len(part))
            rounded = torch.div(part, units[span], out=size[held]).abs_().round_()
            if saturated:
                rounded.clamp_(max=_UNITS)
            gauss, root = _choose(rounded, mask[held], product[held])
            gauss &= root * peak < LARGEST / _OUTER  # otherwise the outer level would exceed the fp32 range
            wanted = peak * torch.where(gauss, -root, 1.0) * 2.0**-shift
            scales[span] = wanted
            outer = torch.gt(rounded, torch.where(gauss, root * (_THRESHOLD * _UNITS), _UNITS / 2), out=mask[held])
            signs = (part.view(torch.int32) >> 31).to(torch.uint8)
            packed[span] = pack_bits(signs.bitwise_and_(2).bitwise_or_(outer.to(torch.uint8)), 2)
        return *Scales(shift, scales).parts, raw_bytes(packed)

    def check_payload(self, payload: memoryview, shape: tuple[int, ...]) -> None:
        _scales(payload, block_count(math.prod(shape)))  # any code is valid

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        count = math.prod(shape)
        blocks = block_count(count)
        scales = _scales(payload, blocks)
        gauss, steps = torch.signbit(scales.values), scales.steps().abs_()
        inner = torch.where(gauss, _INNER * steps, 0.0)
        rise = torch.where(gauss, _OUTER * steps, steps) - inner
        packed = copied(payload, torch.uint8, Scales.nbytes(blocks), blocks * BLOCK // 4).view(blocks, -1)
        values, signs = torch.empty(blocks, BLOCK), scratch(blocks)
        for span in spans(blocks):
            codes, part = unpack_bits(packed[span], 2), values[span]
            sign = signs[: len(part)].copy_((codes & 2).view(torch.int8).neg_().add_(1))
            part.copy_(codes.bitwise_and_(1)).mul_(rise[span]).add_(inner[span]).mul_(sign)
        return values.view(-1)[:count].view(shape)


def _scales(payload: memoryview, blocks: int) -> Scales:
    """The scales in a payload of the right length. Raises CodecError."""
    wanted = Scales.nbytes(blocks) + blocks * BLOCK // 4
    if len(payload) != wanted:
        raise CodecError(Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, expected {wanted}")
    return Scales.parse(payload, blocks, largest_level=1.0, negative=_OUTER)


def _choose(size: Tensor, mask: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """Decide for blocks of magnitudes, (n, 64) in integer units, which rule is better.

    Returns (whether Lloyd-Max is better, bool (n, 1); the root mean square relative to the block's largest magnitude,
    fp32 (n, 1)). All sums are of integers below 2^24, so they are exact and do not depend on the order of addition.
    """

    def row_sums(values: Tensor) -> Tensor:
        return values.sum(dim=1, keepdim=True).double()

    def error(threshold: float | Tensor, inner: float | Tensor, outer: float | Tensor) -> Tensor:
        """The squared error of a block if magnitudes up to `threshold` become the level `inner`, and larger ones
        `outer`.
        """
        above = torch.gt(size, threshold, out=mask)
        count, part = row_sums(above), row_sums(torch.mul(above, size, out=product))
        return squares + (BLOCK - count) * inner**2 - 2 * inner * (total - part) + count * outer**2 - 2 * outer * part

    squares, total = row_sums(torch.mul(size, size, out=product)), row_sums(size)
    root = (squares / BLOCK).sqrt_()
    absmax = error(_UNITS / 2, 0.0, _UNITS)
    gauss = error((_THRESHOLD * root).float(), _INNER * root, _OUTER * root) < absmax
    return gauss, (root / _UNITS).float()
