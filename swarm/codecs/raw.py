"""Codecs that keep floating-point numbers: `none` (fp32, lossless) and `bf16` (half the bytes)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from swarm.buffer import Buffer
from swarm.codecs.codec import Codec, CodecError, Reason, copied, raw_bytes, require_finite, to_bfloat16


class Raw(Codec):
    """fp32 as it is: 4 bytes a value."""

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


class BFloat16(Codec):
    """Rounded to the nearest bf16, ties to even: 2 bytes a value, relative error at most 2^-8.

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


def _values(payload: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    values = copied(payload, dtype, 0, count)
    if len(payload) != count * values.element_size():
        raise CodecError(Reason.WRONG_LENGTH, f"payload of {len(payload)} bytes for {count} values")
    require_finite(values, "values")
    return values.view(shape)
