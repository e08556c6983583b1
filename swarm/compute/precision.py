"""What a device multiplies in. Parameters, sums and what crosses a boundary are fp32 or exact everywhere."""

from __future__ import annotations

import contextlib
import enum

import torch

_BF16_CAPABILITY = (8, 0)
"""From here on a card of NVIDIA has tensor cores for bf16 (Ampere)."""
_FP16_SCALE = 2.0**4


class Precision(enum.Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @classmethod
    def usual(cls, device: torch.device) -> Precision:
        """fp32 on a CPU; on a GPU what its tensor cores take: bf16, or fp16 on cards that are older than Ampere."""
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
        """Gradients are this many times larger while they go backward: fp16 has no numbers below 6e-8.

        A power of two, the same in every step, so that nothing of the result depends on what came before. Losses are
        sums over a microbatch, not means: their gradients are large already.
        """
        return _FP16_SCALE if self is Precision.FP16 else 1.0

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Inside, matrix products are made in this precision."""
        if self is Precision.FP32:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)
