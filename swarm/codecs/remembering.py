"""The base of codecs that use state from an earlier visit to a microbatch."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from swarm.codecs.codec import Codec

_LARGEST = torch.finfo(torch.float16).max


class Remembering(Codec):
    """A codec whose frames may depend on a base. The codec itself encodes a visit without a base: a key frame."""

    @abc.abstractmethod
    def against(self, base: Tensor) -> Codec:
        """The codec for a visit whose base is known. `base`: fp16, of the activation's shape."""

    @abc.abstractmethod
    def left(self, base: Tensor | None, hidden: Tensor, crossed: Tensor) -> Tensor:
        """The base for the next visit, fp16. hidden: the encoded tensor; crossed: the tensor that the receiver decodes,
        both fp32.
        """


def to_float16(values: Tensor) -> Tensor:
    """The nearest fp16; values beyond its range saturate."""
    return values.clamp(-_LARGEST, _LARGEST).to(torch.float16)
