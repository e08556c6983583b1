"""Codecs `huffman:CODEC`: the same values as with `CODEC`, in fewer bytes, because frequent levels get short codes.

Levels that are evenly spaced up to the largest magnitude of a channel are not equally frequent: most Gaussian values
are near zero. 5 bits per value become 4.25, 4 bits become 3.2, and those of `log4` 3.6. Huffman codes are within 0.05
bits of the entropy here, and zlib implements them: DEFLATE (RFC 1951) without its search for repetitions.

The decoded values are those of CODEC, so a run has the same digests with and without Huffman coding. The size of a
frame depends on its values; estimates, such as those of `--dry-run`, use the largest size, which is that of CODEC.

Payload: head of CODEC | a raw deflate stream of its codes, a byte each. If that would not be shorter, the payload of
CODEC; its length tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import Codec, CodecError, Reason, raw_bytes
from swarm.codecs.huffman_code import restored, shortened
from swarm.codecs.levels import Levels

_FIRST_ID = 64


class Huffman(Codec):
    """Error of a value: as with `inner`."""

    family = "huffman"

    def __init__(self, inner: Codec) -> None:
        """`inner`: the codec whose codes are shortened. Raises ValueError, with an empty text, if it does not write a
        level for each value.
        """
        if not isinstance(inner, Levels):
            raise ValueError
        self._inner = inner
        self.codec_id = _FIRST_ID + inner.codec_id
        self.version = inner.version
        self.name = f"{self.family}:{inner.name}"

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return self._inner.payload_bytes(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        head, codes = self._inner.codes(tensor)
        stream = shortened(raw_bytes(codes))
        if self._inner.head_bytes(tensor.shape) + len(stream) < self._inner.payload_bytes(tensor.shape):
            return *head, stream
        return *head, self._inner.packed(codes)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        if len(payload) == self._inner.payload_bytes(shape):
            return self._inner.unpack(payload, shape)
        head, count = self._inner.head_bytes(shape), math.prod(shape)
        if len(payload) < head:
            raise CodecError(Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, its head needs {head}")
        codes = torch.from_numpy(np.frombuffer(restored(payload[head:], count, "codes"), dtype=np.uint8).copy())
        if int(codes.amax()) >> self._inner.bits:
            raise CodecError(
                Reason.BAD_CODES, f"code {int(codes.amax())} exceeds the {self._inner.bits} bits of {self._inner.name}"
            )
        return self._inner.restore(payload[:head], codes, shape)
