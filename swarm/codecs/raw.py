"""Codecs that keep floating-point numbers: `none` (fp32, lossless) and `bf16` (half the bytes)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from swarm.buffer import Buffer
from swarm.codecs.codec import Codec, CodecError, Reason, bytes_on, copied, raw_bytes, require_finite, to_bfloat16


class Raw(Codec):
    """Sends fp32 values unchanged: 4 bytes per value."""

    name = "none"
    codec_id = 1
    version = 1

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return 4 * math.prod(shape)

    def pack(self, tensor: torch.Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        return (raw_bytes(tensor),)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> torch.Tensor:
        return _values(payload, torch.float32, shape)

    def pack_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return _flagged(tensor)

    def unpack_on_device(self, payload: memoryview, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return bytes_on(device, payload).view(torch.float32).view(shape)


class BFloat16(Codec):
    """Rounds to the nearest bf16, ties to even: 2 bytes per value, relative error at most 2^-8.

    Finite values beyond the bf16 range saturate at its largest finite value.
    """

    name = "bf16"
    codec_id = 2
    version = 1

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return 2 * math.prod(shape)

    def pack(self, tensor: torch.Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        return (raw_bytes(to_bfloat16(tensor)),)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> torch.Tensor:
        return _values(payload, torch.bfloat16, shape)

    def pack_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        limit = torch.finfo(torch.bfloat16).max
        return _flagged(torch.where(tensor.isfinite(), tensor.clamp(-limit, limit), tensor).to(torch.bfloat16))

    def unpack_on_device(self, payload: memoryview, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return bytes_on(device, payload).view(torch.bfloat16).view(shape)


def _flagged(values: torch.Tensor) -> torch.Tensor:
    """The result of `pack_on_device` for values that are sent unchanged."""
    broken = ~torch.isfinite(values).all()
    return torch.cat((broken.view(1).to(torch.uint8), values.view(-1).view(torch.uint8)))


def _values(payload: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    values = copied(payload, dtype, 0, count)
    if len(payload) != count * values.element_size():
        raise CodecError(
            Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, the wrong number for {count} values"
        )
    require_finite(values, "values")
    return values.view(shape)
