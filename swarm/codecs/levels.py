"""The base of codecs that map each value to one of a few levels: their payload is scales and one small code per value.

Codes are written with a fixed number of bits (here), or with Huffman codes (huffman.py).

Payload: head (scales) | codes in `bits` bits × values; below 8 bits whole blocks of 64 (blocks.py).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.blocks import BLOCK, code_bytes, pack_bits, unpack_bits
from swarm.codecs.codec import Codec, CodecError, Reason, copied, raw_bytes


class Levels(Codec):
    """The base class. A subclass defines `bits` and the first four methods.

    Its methods get heads of the right length, and codes below 2^bits.
    """

    bits: int

    @abc.abstractmethod
    def head_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of the scales of a tensor of `shape`."""

    @abc.abstractmethod
    def codes(self, tensor: Tensor) -> tuple[Sequence[Buffer], Tensor]:
        """Return (the head in parts; a code for each value, uint8 (values,), in an order that the codec chooses)."""

    @abc.abstractmethod
    def restore(self, head: memoryview, codes: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A new tensor from head and codes. codes: uint8 (values,), may be overwritten. Raises CodecError."""

    @abc.abstractmethod
    def check_head(self, head: memoryview, shape: tuple[int, ...]) -> None:
        """Raise CodecError if `restore` would raise it for this head, whatever the codes."""

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return self.head_bytes(shape) + code_bytes(math.prod(shape), self.bits)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        head, codes = self.codes(tensor)
        return *head, self.packed(codes)

    def packed(self, codes: Tensor) -> Buffer:
        """Pack codes, uint8 (values,), with `bits` bits each."""
        if self.bits == 8:
            return raw_bytes(codes)
        if len(codes) % BLOCK:
            codes = torch.nn.functional.pad(codes, (0, -len(codes) % BLOCK))
        return raw_bytes(pack_bits(codes.view(-1, BLOCK), self.bits))

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        self._check_length(payload, shape)
        count, head = math.prod(shape), self.head_bytes(shape)
        codes = copied(payload, torch.uint8, head, code_bytes(count, self.bits))
        if self.bits < 8:
            codes = unpack_bits(codes.view(-1, BLOCK * self.bits // 8), self.bits).view(-1)[:count]
        return self.restore(payload[:head], codes, shape)

    def check_payload(self, payload: memoryview, shape: tuple[int, ...]) -> None:
        self._check_length(payload, shape)
        self.check_head(payload[: self.head_bytes(shape)], shape)

    def _check_length(self, payload: memoryview, shape: tuple[int, ...]) -> None:
        if len(payload) != self.payload_bytes(shape):
            raise CodecError(
                Reason.WRONG_LENGTH,
                f"the payload has {len(payload)} bytes, the wrong number for {math.prod(shape)} values",
            )


def transposed(shape: Sequence[int]) -> tuple[int, int]:
    """The tensor as (channels, rows), where its last dimension is the channels."""
    channels = shape[-1] if shape else 1
    return channels, math.prod(shape) // channels
