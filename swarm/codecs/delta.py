"""Codecs `delta` and `ef21`: send only the change of an activation since an earlier one.

`delta`: since the last visit of the same samples (AQ-SGD, arXiv 2206.01299). `ef21`: since the same microbatch of the
previous step, with other samples (EF21, as in arXiv 2401.07788: later frames correct the errors of earlier ones).

    first visit      x̂ = fp16(x)                   a key frame
    later visits     x̂ = fp16(m + Q⁻¹(Q(x − m)))   m: x̂ of the visit before, at both ends; Q: a codec without state

The receiver computes with x̂. The change in the next visit is relative to x̂, so it corrects the error of this visit.
As the model converges, the changes shrink, and so do their errors. The protocol (swarm/protocol/lineage.py) tracks the
visits and ensures that both ends have the same m. A frame has one of two forms:

    Delta            whole: fp16 values, at most ±65,504. A key frame of x; lossless for x̂. Also evaluation, generation
    Delta.against    the change from m: the payload of Q

Values beyond fp16's range saturate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import Codec, CodecError, Reason, copied, raw_bytes, require_finite
from swarm.codecs.remembering import Remembering, to_float16


class Delta(Remembering):
    """Encodes a whole activation as the nearest fp16 numbers. Relative error at most 2^-11; below 2^-14, absolute error
    at most 2^-25.
    """

    families = ("delta", "ef21")
    codec_id = 10
    version = 1

    def __init__(self, family: str, change: str, quantiser: Codec) -> None:
        """`change`: the name of the codec of changes in manifests; `quantiser`: that codec."""
        assert family in self.families
        self._quantiser = quantiser
        self.name = f"{family}:{change}"

    def against(self, base: Tensor) -> Change:
        """The codec of a change. base: the decoded frame of the previous visit, fp16, of the activation's shape."""
        return Change(self.name, self._quantiser, base)

    def left(self, base: Tensor | None, hidden: Tensor, crossed: Tensor) -> Tensor:
        return crossed.half()

    def check_change(self, frame: Buffer, shape: Sequence[int]) -> None:
        """Raise CodecError unless a frame is a change of some base of `shape`."""
        Change(self.name, self._quantiser, torch.zeros(())).check(frame, shape)

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return 2 * math.prod(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        return (raw_bytes(to_float16(tensor)),)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        count = math.prod(shape)
        values = copied(payload, torch.float16, 0, count)
        if len(payload) != count * values.element_size():
            raise CodecError(
                Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, the wrong number for {count} values"
            )
        require_finite(values, "values")
        return values.view(shape).float()


class Change(Codec):
    """Encodes the change from one base. `decode` returns the reconstruction x̂ in fp32; all its values are fp16
    numbers.
    """

    codec_id = 11
    version = 1

    def __init__(self, name: str, quantiser: Codec, base: Tensor) -> None:
        self.name = name
        self._quantiser = quantiser
        self._base = base

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return self._quantiser.payload_bytes(shape)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        self._check_base(tensor.shape)
        return self._quantiser.pack(tensor - self._base)

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        self._check_base(shape)
        change = self._quantiser.unpack(payload, shape).float()  # a sum in bf16 is inexact and may overflow fp16
        return to_float16(change.add_(self._base)).float()

    def check(self, buffer: Buffer, shape: Sequence[int]) -> None:
        """Check a frame as far as this is possible without the base."""
        payload = self._checked(memoryview(buffer).cast("B"), tuple(shape))
        if math.prod(shape):
            self._quantiser.unpack(payload, tuple(shape))

    def _check_base(self, shape: Sequence[int]) -> None:
        if self._base.shape != torch.Size(shape):
            raise CodecError(
                Reason.WRONG_SHAPE, f"the change has shape {tuple(shape)}, its base {tuple(self._base.shape)}"
            )
