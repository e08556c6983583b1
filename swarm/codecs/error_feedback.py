"""Codecs `ef` and `ef-mixed`: what one frame loses is added to the next (seed study: Rudakov et al., arXiv 2401.07788).

    ef          x̂ = C(x + e)                e ← x + e − x̂
    ef-mixed    x̂ = TopK(x) + TopK(e)       e ← x + e − x̂, half of the kept values each

The residual e is the sender's alone, one for each place of a microbatch in a step: the errors of different samples are
mixed, as in the study. Any receiver can decode any frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.codecs.codec import Buffer, Codec
from swarm.codecs.remembering import Remembering, to_float16
from swarm.codecs.topk import TopK


class ErrorFeedback(Remembering):
    """Its frames are those of `inner`."""

    family = "ef"

    def __init__(self, inner: Codec, residual: Tensor | None = None) -> None:
        self.inner = inner
        self.codec_id = inner.codec_id  # type: ignore[misc]
        self.version = inner.version  # type: ignore[misc]
        self.name = f"{self.family}:{inner.name}"
        self._residual = residual

    def against(self, base: Tensor) -> Codec:
        return type(self)(self.inner, base)

    def left(self, base: Tensor | None, hidden: Tensor, crossed: Tensor) -> Tensor:
        lost = hidden - crossed if base is None else hidden + base - crossed
        return to_float16(lost).contiguous()  # `hidden` may be strided

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return self.inner.payload_bytes(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        return self.inner.pack(tensor if self._residual is None else tensor + self._residual)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        return self.inner.unpack(payload, shape)


class MixedErrorFeedback(ErrorFeedback):
    """`half`: of what is kept, for the values and for the residual each."""

    family = "ef-mixed"
    codec_id = 12
    version = 1

    def __init__(self, half: TopK, residual: Tensor | None = None) -> None:
        super().__init__(half, residual)
        self.codec_id = type(self).codec_id  # not that of the halves
        self.version = type(self).version
        self.name = f"{self.family}:topk:{2 * half.fraction!r}"

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return 2 * self.inner.payload_bytes(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        residual = torch.zeros_like(tensor) if self._residual is None else self._residual.float()
        return (*self.inner.pack(tensor), *self.inner.pack(residual))

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        half = self.inner.payload_bytes(shape)
        return self.inner.unpack(payload[:half], shape) + self.inner.unpack(payload[half:], shape)
