"""Codecs `residual:CODEC+CODEC`: what the first loses is coded by the second, in the same frame.

    x̂ = C₁(x) + C₂(x − C₁(x))

Residual quantisation in the manner of scalar codecs; learned code books (residual vector quantisation) would be the
state of a boundary. It keeps nothing: unlike `ef`, what both lose is lost.

Payload: that of the first | that of the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.codecs.codec import Buffer, Codec
from swarm.codecs.huffman import Huffman
from swarm.codecs.topk import TopK

_LARGEST = torch.finfo(torch.float32).max


class Residual(Codec):
    """Error of a value: that of the second codec on what the first one lost, and the rounding of one sum in fp32."""

    family = "residual"
    codec_id = 13
    version = 1

    def __init__(self, first: Codec, second: Codec) -> None:
        """Raises ValueError, without a text, for codecs that leave values out or whose frames have no length."""
        if any(isinstance(codec, Huffman | TopK) for codec in (first, second)):
            raise ValueError
        self._first, self._second = first, second
        self.name = f"{self.family}:{first.name}+{second.name}"

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return self._first.payload_bytes(shape) + self._second.payload_bytes(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        coarse = b"".join(memoryview(part).cast("B") for part in self._first.pack(tensor))
        lost = tensor - self._first.unpack(memoryview(coarse), tuple(tensor.shape)).float()
        return coarse, *self._second.pack(lost)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        split = self._first.payload_bytes(shape)
        coarse = self._first.unpack(payload[:split], shape).float()
        return coarse.add_(self._second.unpack(payload[split:], shape)).clamp_(-_LARGEST, _LARGEST)
