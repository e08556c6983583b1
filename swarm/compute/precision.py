"""The precision of matrix products on a device. Parameters, sums and boundary tensors are always fp32 or exact."""

from __future__ import annotations

import contextlib
import enum

import torch

_BF16_CAPABILITY = (8, 0)
"""CUDA compute capability from which on NVIDIA cards have tensor cores for bf16 (Ampere)."""
_FP16_SCALE = 2.0**4


class Precision(enum.Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @classmethod
    def usual(cls, device: torch.device) -> Precision:
        """The default: fp32 on a CPU; on a GPU bf16, or fp16 on cards older than Ampere, for the tensor cores."""
        if device.type == "cpu":
            return cls.FP32
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _BF16_CAPABILITY:
            return cls.FP16
        return cls.BF16

    @property
    def dtype(self) -> torch.dtype:
        return {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}[self]

    @property
    def gradient_scale(self) -> float:
        """Factor on gradients during the backward, because fp16 has no numbers below 6e-8.

        It is a constant power of two, so that results do not depend on earlier steps. Losses are sums over a
        microbatch, not means, so their gradients are already large.
        """
        return _FP16_SCALE if self is Precision.FP16 else 1.0

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Inside this context, matrix products are computed in this precision."""
        if self is Precision.FP32:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)
