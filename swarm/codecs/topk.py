"""Codecs `topk`: send only the K largest magnitudes of each sample, as bf16, with their positions.

    topk:0.1               activations: a tenth of the values of each sample (an index of the first dimension)
    topk-shared            their gradients: the values at the positions that the activation kept, without positions
    topk-independent:0.1   independent positions, in either direction; for experiments

The gradient of a dropped activation is zero. So with the shared mask, the whole gradient is sent, while an independent
mask drops most of it, and training diverges (Rudakov et al., arXiv 2401.07788). Both ends have the forward frame, so
the positions are not sent again, but only their checksum, which prevents decoding with the positions of another frame.

Positions are a bitmap for each sample, or ascending indices (u16, or u32 above 65,536 values), whichever is smaller;
this follows from the shape. Payload: positions | bf16 values in order of position. Shared: crc32 u32 | bf16 values.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import Codec, CodecError, Reason, copied, raw_bytes, require_finite, to_bfloat16

_CHECKSUM = struct.Struct("<I")


class TopK(Codec):
    """Keeps `fraction` of the values of each sample, at least one; among equal magnitudes the first ones.

    Kept values have a relative error of at most 2^-8, and saturate like bf16. All other values become zero.
    """

    family = "topk"
    codec_id = 7
    version = 1
    needed_afterwards = True  # Rudakov et al., arXiv 2401.07788, table 1; docs/compression.md: 5.7 nats, 6.3 without it

    def __init__(self, fraction: float) -> None:
        if not 1e-6 <= fraction <= 1.0:
            raise ValueError(f"{fraction:g} of the values cannot be kept; give a fraction from 1e-06 to 1, such as 0.1")
        self.fraction = fraction
        self.name = f"{self.family}:{fraction!r}"

    def kept(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """(number of samples, values in a sample, kept values of each sample)."""
        rows = shape[0] if len(shape) > 1 else 1
        width = math.prod(shape) // rows
        return rows, width, max(1, round(self.fraction * width))

    def payload_bytes(self, shape: Sequence[int]) -> int:
        rows, _, keep = self.kept(shape)
        return self._position_bytes(shape) + 2 * rows * keep

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        rows, width, keep = self.kept(tensor.shape)
        flat = tensor.view(rows, width)
        mask = _largest(flat, keep)
        if _index_bytes(width, keep) is None:
            positions = np.packbits(mask.numpy(), axis=1, bitorder="little")
        else:
            positions = mask.nonzero()[:, 1].numpy().astype(f"<u{_index_bytes(width, keep)}")
        return positions.data.cast("B"), raw_bytes(to_bfloat16(flat[mask]))

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        if len(payload) != self.payload_bytes(shape):
            raise CodecError(
                Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, the wrong number for shape {shape}"
            )
        rows, _, keep = self.kept(shape)
        split = self._position_bytes(shape)
        return _placed(self._mask(payload[:split], shape), _values(payload, split, rows * keep), shape)

    def positions(self, frame: Buffer, shape: tuple[int, ...]) -> tuple[Tensor, int]:
        """The positions kept in a frame of this codec, bool (samples, values in a sample), and their crc32."""
        payload = self._checked(memoryview(frame).cast("B"), shape)[: self._position_bytes(shape)]
        return self._mask(payload, shape), zlib.crc32(payload)

    def _position_bytes(self, shape: Sequence[int]) -> int:
        rows, width, keep = self.kept(shape)
        size = _index_bytes(width, keep)
        return rows * (-(-width // 8) if size is None else keep * size)

    def _mask(self, positions: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The kept positions, bool (samples, values in a sample).

        Raises CodecError unless each sample has exactly K.
        """
        rows, width, keep = self.kept(shape)
        size = _index_bytes(width, keep)
        if size is None:
            packed = np.frombuffer(positions, dtype=np.uint8)
            if len(packed) != rows * -(-width // 8):
                raise CodecError(
                    Reason.WRONG_LENGTH, f"the positions have {len(packed)} bytes, the wrong number for {shape}"
                )
            bits = np.unpackbits(packed.reshape(rows, -1), axis=1, bitorder="little")
            if bits[:, width:].any() or (bits[:, :width].sum(axis=1, dtype=np.int64) != keep).any():
                raise CodecError(Reason.BAD_MASK, f"the bitmap does not select {keep} of {width} values")
            return torch.from_numpy(np.ascontiguousarray(bits[:, :width])).view(torch.bool)
        if len(positions) != rows * keep * size:
            raise CodecError(
                Reason.WRONG_LENGTH, f"the positions have {len(positions)} bytes, the wrong number for {shape}"
            )
        indices = np.frombuffer(positions, dtype=f"<u{size}").astype(np.int64).reshape(rows, keep)
        if indices[:, -1].max() >= width or (np.diff(indices, axis=1) <= 0).any():
            raise CodecError(Reason.BAD_MASK, f"the indices do not ascend within {width} values")
        mask = torch.zeros(rows, width, dtype=torch.bool)
        return mask.scatter_(1, torch.from_numpy(indices), True)


def fraction_of(text: str) -> float:
    """The fraction in a manifest. Raises ValueError, with an empty text, if it is not a number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError from None


class TopKIndependent(TopK):
    """`topk` under another name, which may be used in both directions, with independent masks."""

    family = "topk-independent"
    codec_id = 8


class TopKShared(Codec):
    """Encodes a gradient at the positions of a `topk` activation: relative error at most 2^-8 there, zero elsewhere.

    `of`: the forward codec. Gradients are encoded and decoded by `beside(forward frame)`.
    """

    name = "topk-shared"
    codec_id = 9
    version = 1
    needs_forward = True

    def __init__(self, of: TopK, forward: Buffer | None = None) -> None:
        self._of = of
        self._forward = forward

    def beside(self, forward: Buffer) -> TopKShared:
        return TopKShared(self._of, forward)

    def check(self, buffer: Buffer, shape: Sequence[int]) -> None:
        if self._forward is not None:
            super().check(buffer, shape)
            return
        payload = self._checked(memoryview(buffer).cast("B"), tuple(shape))
        if math.prod(shape):
            self._gradient(payload, tuple(shape))

    def payload_bytes(self, shape: Sequence[int]) -> int:
        rows, _, keep = self._of.kept(shape)
        return _CHECKSUM.size + 2 * rows * keep

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        mask, checksum = self._positions(tuple(tensor.shape))
        return _CHECKSUM.pack(checksum), raw_bytes(to_bfloat16(tensor.view(mask.shape)[mask]))

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        values = self._gradient(payload, shape)
        mask, checksum = self._positions(shape)
        (claimed,) = _CHECKSUM.unpack_from(payload)
        if claimed != checksum:
            raise CodecError(
                Reason.WRONG_FORWARD,
                f"the values are for positions with checksum {claimed:08x}, but the forward frame has {checksum:08x}",
            )
        return _placed(mask, values, shape)

    def _gradient(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        if len(payload) != self.payload_bytes(shape):
            raise CodecError(
                Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, the wrong number for shape {shape}"
            )
        return _values(payload, _CHECKSUM.size, (len(payload) - _CHECKSUM.size) // 2)

    def _positions(self, shape: tuple[int, ...]) -> tuple[Tensor, int]:
        if self._forward is None:
            raise CodecError(Reason.WRONG_FORWARD, f"{self.name} needs the forward frame: use beside(frame)")
        try:
            return self._of.positions(self._forward, shape)
        except CodecError as error:
            raise CodecError(Reason.WRONG_FORWARD, f"the forward frame cannot be decoded ({error})") from None


def _largest(flat: Tensor, keep: int) -> Tensor:
    """The positions of the `keep` largest magnitudes in each row, bool, of the shape of `flat`. Of equal magnitudes,
    the first count.
    """
    size = flat.abs().numpy()
    place = size.shape[1] - keep
    # Nonnegative floats have the same order as their bits, and selecting integers is faster.
    least = np.partition(size.view(np.int32), place, axis=1)[:, place].view(np.float32)
    mask = size >= least[:, None]
    for row in range(len(mask)):
        excess = np.count_nonzero(mask[row]) - keep
        if excess:
            mask[row, np.flatnonzero(size[row] == least[row])[-excess:]] = False
    return torch.from_numpy(mask)


def _index_bytes(width: int, keep: int) -> int | None:
    """Bytes of one index. None: use a bitmap, which is not larger than the indices."""
    size = 2 if width <= 1 << 16 else 4 if width <= 1 << 32 else 8
    return size if keep * size < -(-width // 8) else None


def _values(payload: memoryview, offset: int, count: int) -> Tensor:
    values = copied(payload, torch.bfloat16, offset, count)
    require_finite(values, "values")
    return values.to(torch.float32)


def _placed(mask: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(mask.shape).masked_scatter_(mask, values).view(shape)
