"""Codecs `ef` and `ef-mixed`: the error of one frame is added to the next (seed study: Rudakov et al., arXiv
2401.07788).

    ef          x̂ = C(x + e)                e ← x + e − x̂
    ef-mixed    x̂ = C(x) + C(e)             e ← x + e − x̂; with topk, each C keeps half of the values

Only the sender keeps the residual e, one for each microbatch number of a step, so the errors of different samples are
mixed, as in the study. Every receiver can decode every frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import Codec, require_finite
from swarm.codecs.entropy import Entropy
from swarm.codecs.huffman import Huffman
from swarm.codecs.remembering import Remembering, to_float16
from swarm.codecs.topk import TopK


class ErrorFeedback(Remembering):
    """The codec `ef`. Its frames are those of `inner`."""

    family = "ef"

    def __init__(self, inner: Codec, residual: Tensor | None = None) -> None:
        self.inner = inner
        self.codec_id = inner.codec_id
        self.version = inner.version
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
    """The codec `ef-mixed`. A frame contains two frames of `inner`, one of the values and one of the residual."""

    family = "ef-mixed"
    codec_id = 12
    version = 1

    def __init__(self, inner: Codec, residual: Tensor | None = None) -> None:
        """`inner`: the codec of both frames. Raises ValueError, with an empty text, if its frames have no fixed
        length.
        """
        if isinstance(inner, Huffman | Entropy):
            raise ValueError
        super().__init__(inner, residual)
        self.codec_id = type(self).codec_id  # not the id of `inner`, which the base class has set
        self.version = type(self).version
        self._part = TopK(inner.fraction / 2) if isinstance(inner, TopK) else inner

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return 2 * self._part.payload_bytes(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        residual = torch.zeros_like(tensor) if self._residual is None else self._residual.float()
        return (*self._part.pack(tensor), *self._part.pack(residual))

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        half = self._part.payload_bytes(shape)
        values, residual = (self._part.unpack(part, shape).float() for part in (payload[:half], payload[half:]))
        both = values + residual
        require_finite(both, "values")  # the sum of two finite values may overflow
        return both
