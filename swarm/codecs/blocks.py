"""Common parts of the block codecs: blocks of 64 values, one fp16 scale per block, one power of two per tensor, packed
bits.

`shift` puts the largest scale of a tensor into [2^14, 2^15). So no finite input overflows fp16, and small gradients
keep full precision. A block loses precision only when it is 2^29 times smaller than the largest one, or below about
1e-33.

Codes of fewer than 8 bits are packed block by block in planes. A block of 64 codes has 8·bits bytes; a plane of 8·bits
consecutive codes fills the same bits of all these bytes. So packing and unpacking process whole rows, not every second
value. Codes of 5 and 6 bits are packed as their low four bits, followed by their high bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import CodecError, Reason, copied, raw_bytes

BLOCK = 64
LARGEST = 3.3e38
"""Larger magnitudes saturate at this value, so that all levels stay below the largest fp32 number."""

_SPAN = 4096  # blocks: 1 MiB of fp32 stays in the cache from the first operation to the last
_SHIFT = struct.Struct("<h")
_LOWEST_SHIFT = -100  # keeps every step a normal fp32 number, so that no denormal arithmetic decides a bit
_TOP_EXPONENT = 15
_SMALLEST_NORMAL = torch.finfo(torch.float16).smallest_normal


def block_count(count: int) -> int:
    """Number of blocks of `count` values; the last block may be incomplete."""
    return -(-count // BLOCK)


def code_bytes(count: int, bits: int) -> int:
    """Bytes of `count` codes of `bits` bits; codes below 8 bits are padded to whole blocks."""
    return count if bits == 8 else block_count(count) * BLOCK * bits // 8


def cut(tensor: Tensor) -> Tensor:
    """The values of a contiguous tensor as (blocks, 64), padded with zeros."""
    flat = tensor.view(-1)
    if len(flat) % BLOCK:
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK))
    return flat.view(-1, BLOCK)


def spans(blocks: int) -> Iterator[slice]:
    """Slices over all blocks, each so small that it fits into the cache."""
    return (slice(start, min(start + _SPAN, blocks)) for start in range(0, blocks, _SPAN))


def scratch(blocks: int) -> Tensor:
    """fp32 memory for one span of `blocks` blocks."""
    return torch.empty(min(_SPAN, blocks), BLOCK)


def peaks_of(blocks: Tensor) -> Tensor:
    """The largest magnitude of each block, (blocks, 1). Raises CodecError if a value is not finite."""
    peaks = torch.empty(len(blocks), 1)
    held = scratch(len(blocks))
    for span in spans(len(blocks)):
        part = blocks[span]
        torch.amax(torch.abs(part, out=held[: len(part)]), dim=1, keepdim=True, out=peaks[span])
    if not math.isfinite(peaks.amax().item()):  # amax is NaN if there is a NaN, so this detects all non-finite values
        raise CodecError(Reason.NOT_FINITE, "some values are NaN or infinite")
    return peaks


@dataclass(frozen=True)
class Scales:
    """The scales of a tensor's blocks. A scale is its entry in `values`, fp16 (blocks, 1), times 2^`shift`."""

    shift: int
    values: Tensor

    @classmethod
    def of(cls, wanted: Tensor) -> Scales:
        """The scales nearest to `wanted`: fp32 (blocks, 1), each from 0 to LARGEST."""
        shift = shift_for(wanted.amax().item())
        return cls(shift, (wanted * 2.0**-shift).to(torch.float16))

    @classmethod
    def parse(cls, payload: memoryview, blocks: int, largest_level: float, negative: float = 0.0) -> Scales:
        """The scales at the start of `payload`. Raises CodecError unless every level is a finite fp32 number.

        `largest_level`: the largest level in units of the scale. `negative`: the same for negative scales; 0: they are
        not allowed.
        """
        (shift,) = _SHIFT.unpack_from(payload)
        values = copied(payload, torch.float16, _SHIFT.size, blocks).view(blocks, 1)
        low, high = values.amin().item(), values.amax().item()
        if not math.isfinite(high - low) or (low < 0 and not negative) or not _LOWEST_SHIFT <= shift <= 127:
            raise CodecError(Reason.BAD_SCALE, f"invalid scales: they range from {low} to {high}, with shift {shift}")
        if max(high * largest_level, -low * negative) * 2.0**shift > torch.finfo(torch.float32).max:
            raise CodecError(
                Reason.NOT_FINITE, f"scales from {low} to {high}, times 2^{shift}, give levels beyond the fp32 range"
            )
        return cls(shift, values)

    @classmethod
    def of_on_device(cls, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Like `of`, on the device of `wanted`: (`parts` as uint8, `steps`). Does not wait for the device."""
        largest = wanted.amax()
        exponent = torch.frexp(largest).exponent.to(torch.int32)
        shift = torch.where(largest > 0, (exponent - _TOP_EXPONENT).clamp(min=_LOWEST_SHIFT), 0)
        values = (wanted * _power_of_two(-shift)).to(torch.float16)
        parts = torch.cat((shift.to(torch.int16).view(1).view(torch.uint8), values.view(-1).view(torch.uint8)))
        return parts, values.to(torch.float32) * _power_of_two(shift)

    @staticmethod
    def steps_on_device(payload: Tensor, blocks: int) -> Tensor:
        """Like `parse(payload).steps()`, computed on the device; `parse` must have accepted the bytes before."""
        shift = payload[: _SHIFT.size].view(torch.int16).to(torch.int32)
        values = payload[_SHIFT.size : Scales.nbytes(blocks)].view(torch.float16).view(blocks, 1)
        return values.to(torch.float32) * _power_of_two(shift)

    @staticmethod
    def nbytes(blocks: int) -> int:
        return _SHIFT.size + 2 * blocks

    @property
    def parts(self) -> Sequence[Buffer]:
        return _SHIFT.pack(self.shift), raw_bytes(self.values)

    @property
    def exact(self) -> bool:
        """True if every scale is zero or has full fp16 precision."""
        return not bool(((self.values > 0) & (self.values < _SMALLEST_NORMAL)).any())

    def steps(self) -> Tensor:
        """The scales as fp32 (blocks, 1)."""
        return self.values.to(torch.float32) * 2.0**self.shift


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, exact, for int32 exponents from −126 to 127."""
    return (exponent + 127 << 23).view(torch.float32)


def shift_for(largest: float) -> int:
    """The power of two that puts the scale `largest` into [2^14, 2^15)."""
    return max(math.frexp(largest)[1] - _TOP_EXPONENT, _LOWEST_SHIFT) if largest else 0


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 (blocks, 64), each below 2^bits, as uint8 (blocks, 8·bits). `bits`: 1, 2, 4, 5 or 6."""
    if bits > 4:
        return torch.cat((pack_bits(codes & 15, 4), pack_bits(codes >> 4, bits - 4)), dim=1)
    width = BLOCK * bits // 8
    packed = codes[:, :width].clone()
    for plane in range(1, 8 // bits):
        packed |= codes[:, plane * width : (plane + 1) * width] << (plane * bits)
    return packed


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `pack_bits`."""
    if bits > 4:
        low, high = packed.split((BLOCK // 2, BLOCK * (bits - 4) // 8), dim=1)
        return unpack_bits(low, 4).bitwise_or_(unpack_bits(high, bits - 4) << 4)
    width = BLOCK * bits // 8
    codes = torch.empty(len(packed), BLOCK, dtype=torch.uint8, device=packed.device)
    for plane in range(8 // bits):
        torch.bitwise_right_shift(packed, plane * bits, out=codes[:, plane * width : (plane + 1) * width])
    return codes.bitwise_and_((1 << bits) - 1)
