"""The body of a frame: the format of the payload of a `Frame`.

Forward over boundary 0: token ids. Forward over boundary b > 0: the same token ids (the last stage needs them as
labels, a subspace model for its anchor), then the encoded activation or its coefficients, model.boundary_width(b)
values per token. Backward: the encoded gradient of these values. Every body starts with a header, little-endian:

    16 · kind + bytes per token id u8 | of a prompt: token columns u32

Some codecs need the activation of the same boundary and microbatch to encode or decode a gradient: `pack_backward` and
`unpack_backward` then need the forward body (`needs_forward`).

If an earlier attempt at the step was not finite (`nonfinite`), NOT_FINITE replaces an encoded activation or gradient
that contains NaN or infinity. The receiver then computes with a tensor of NaNs; the other replicas and the reference do
the same.

The shape of a body follows from the manifest. A received body is checked against it.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarm import codecs
from swarm.buffer import Buffer
from swarm.codecs import ladder
from swarm.manifest import RunManifest
from swarm.protocol.ids import Direction, PassKind
from swarm.protocol.messages import CodecPair

HEADER_BYTES = 1
"""Bytes of the header, except that of a prompt."""
NOT_FINITE = b"not finite"
"""Marks a tensor that is not finite. It is shorter than the header of any codec's frame."""
_COLUMNS = struct.Struct("<I")


_CPU = torch.device("cpu")
_MUCH = 1 << 20
"""Bytes from which on a copy must not block other threads."""

Packing = Callable[[], Buffer]
"""Returns a body that the device is still packing; call it after the device has finished. Raises codecs.CodecError."""


class FrameError(ValueError):
    """A received body cannot be used; the message gives the reason to people."""


class BodyKind(enum.IntEnum):
    BATCH = 1
    """For training and evaluation: token ids (sequences, sequence_length + 1), which are inputs and labels."""
    PROMPT = 2
    """For generation: token ids (1, T), T up to model.context."""
    GRADIENT = 3
    """A gradient, without token ids."""


@dataclass(frozen=True)
class ForwardBody:
    kind: BodyKind
    tokens: Tensor
    """(rows, columns) int64."""
    hidden: Tensor | None
    """(rows, T, width of the boundary) fp32, freshly allocated; None at boundary 0."""

    @property
    def inputs(self) -> Tensor:
        """The input token ids, (rows, T)."""
        return self.tokens if self.kind is BodyKind.PROMPT else self.tokens[:, :-1]

    @property
    def labels(self) -> Tensor:
        """The labels, (rows, T) int64; only for training and evaluation."""
        return self.tokens[:, 1:]


class BodyFormat:
    """Packs and unpacks the bodies of one run, or of one pass if codecs are chosen during the run. Thread-safe."""

    def __init__(self, manifest: RunManifest, chosen: Sequence[CodecPair] = (), nonfinite: bool = False) -> None:
        """`chosen`: the codecs of boundaries 1, 2, …, as in Open. If the manifest leaves the choice open and `chosen`
        is empty, only tokens can be packed. Raises codecs.UnknownCodec for codecs that this run cannot choose.

        `nonfinite`: whether NOT_FINITE is packed and accepted.
        """
        self._nonfinite = nonfinite
        self._manifest = manifest
        self._model = manifest.model
        self._batch = manifest.batch
        self._ids = np.dtype(f"<u{manifest.model.token_id_bytes}")
        self._candidates = _candidates(manifest)
        self._chosen = _chosen(manifest, chosen)
        forward, backward = self._candidates[0]
        self.remembers = isinstance(forward, codecs.Remembering)
        """Whether packing an activation may use a base from an earlier one."""
        self.mutual = manifest.codec.mutual
        """Whether unpacking such an activation needs the base too."""
        self.needs_forward = backward.needs_forward
        """Whether packing and unpacking a gradient needs the forward body of its boundary and microbatch."""

    def of_pass(self, chosen: Sequence[CodecPair], nonfinite: bool = False) -> BodyFormat:
        """The format of a pass with these codecs. Raises codecs.UnknownCodec."""
        return BodyFormat(self._manifest, chosen, nonfinite)

    def codecs_at(self, boundary: int) -> tuple[codecs.Codec, codecs.Codec]:
        """The codecs of activations and gradients at `boundary`. Raises FrameError if they are not chosen yet."""
        if not self._manifest.codec.auto:
            return self._candidates[0]
        if not 0 < boundary <= len(self._chosen):
            raise FrameError(f"no codec is chosen for boundary {boundary}; {len(self._chosen)} boundaries have one")
        return self._chosen[boundary - 1]

    def pack_tokens(self, kind: PassKind, tokens: np.ndarray | Tensor) -> bytes:
        """The body of boundary 0. tokens: (sequences, sequence_length + 1), for GENERATE (1, T). Raises FrameError."""
        ids = np.asarray(tokens)
        body = self._kind(kind)
        self._check_shape(body, *_two(ids.shape))
        self._check_range(ids)
        return bytes(self._pack(body, ids, b""))

    def pack_forward(
        self, boundary: int, kind: BodyKind, tokens: Tensor, hidden: Tensor, base: Tensor | None = None
    ) -> Buffer:
        """The body at boundary > 0. tokens: as received; hidden: (rows, T, width) fp32. Raises codecs.CodecError.

        `base`: (rows, T, width) fp16; if given, only the change from it is packed.
        """
        return self.begin_forward(boundary, kind, tokens, hidden, base)()

    def begin_forward(
        self, boundary: int, kind: BodyKind, tokens: Tensor, hidden: Tensor, base: Tensor | None = None
    ) -> Packing:
        """Like `pack_forward`, for an activation on any device, without waiting for the device."""
        encoding = self._begin(self._changing(boundary, base), hidden)
        return lambda: self._pack(kind, tokens.numpy(), *encoding())

    def pack_encoded(self, kind: BodyKind, tokens: Tensor, encoded: bytes) -> Buffer:
        """The body at boundary > 0 for an activation that is already encoded."""
        return self._pack(kind, tokens.numpy(), encoded)

    def pack_backward(self, boundary: int, gradient: Tensor, forward: Buffer | None = None) -> Buffer:
        """gradient: (sequences, sequence_length, width) fp32. Raises codecs.CodecError."""
        return self.begin_backward(boundary, gradient, forward)()

    def begin_backward(self, boundary: int, gradient: Tensor, forward: Buffer | None = None) -> Packing:
        """Like `pack_backward`, for a gradient on any device, without waiting for the device."""
        encoding = self._begin(self._beside(boundary, forward), gradient)
        return lambda: self._pack(BodyKind.GRADIENT, None, *encoding())

    def unpack_forward(
        self,
        boundary: int,
        buffer: Buffer,
        kind: PassKind | None,
        base: Tensor | None = None,
        device: torch.device = _CPU,
    ) -> ForwardBody:
        """Unpack a forward body, with `base` if it is a change. `kind` None: accept any pass. Raises FrameError.

        The activation is put on `device`; if this is not a CPU, `buffer` must have passed `check` before.
        """
        found, tokens, encoded = self._opened(boundary, buffer, kind)
        if boundary == 0:
            return ForwardBody(found, tokens, None)
        hidden = self._decode(self._changing(boundary, base), encoded, self._shape(boundary, found, tokens), device)
        return ForwardBody(found, tokens, hidden)

    def check_change(self, boundary: int, buffer: Buffer, kind: PassKind | None) -> None:
        """Raise FrameError unless `buffer` is a forward body that a stage with the right base can use."""
        found, tokens, encoded = self._opened(boundary, buffer, kind)
        codec, _ = self._candidates[0]
        if not isinstance(codec, codecs.Delta) or found is not BodyKind.BATCH or boundary == 0:
            raise FrameError(f"a body of kind {found.name} at boundary {boundary} cannot code a change")
        if self._is_finite(encoded):
            with _refusing(codec):
                codec.check_change(encoded, self._shape(boundary, found, tokens))

    def _opened(self, boundary: int, buffer: Buffer, kind: PassKind | None) -> tuple[BodyKind, Tensor, memoryview]:
        """(kind, token ids, encoded activation) of a forward body."""
        view = memoryview(buffer).cast("B")
        found, rows, columns, start = self._header(view)
        if found is BodyKind.GRADIENT or (kind is not None and found is not self._kind(kind)):
            raise FrameError(f"a forward frame of a {kind.value if kind else ''} pass has a body of kind {found.name}")
        self._check_shape(found, rows, columns)
        end = start + rows * columns * self._ids.itemsize
        if len(view) < end:
            raise FrameError(f"the body has {len(view)} bytes, but its {rows} × {columns} token ids end at byte {end}")
        ids = np.frombuffer(view[start:end], dtype=self._ids).reshape(rows, columns)
        self._check_range(ids)
        tokens = torch.from_numpy(ids.astype(np.int64))
        if boundary == 0 and len(view) > end:
            raise FrameError(f"{len(view) - end} bytes follow the token ids at boundary 0, where no activation is sent")
        return found, tokens, view[end:]

    def _shape(self, boundary: int, kind: BodyKind, tokens: Tensor) -> tuple[int, int, int]:
        """The shape of the activation that belongs to these token ids."""
        rows, columns = tokens.shape
        return rows, columns if kind is BodyKind.PROMPT else columns - 1, self._model.boundary_width(boundary)

    def unpack_backward(
        self, boundary: int, buffer: Buffer, forward: Buffer | None = None, device: torch.device = _CPU
    ) -> Tensor:
        """The gradient, (sequences, sequence_length, width) fp32, newly allocated. Raises FrameError.

        It is put on `device`; if this is not a CPU, `buffer` must have passed `check` before.
        """
        return self._decode(
            self._beside(boundary, forward), self._gradient(buffer), self._batch_shape(boundary), device
        )

    def check(
        self,
        boundary: int,
        direction: Direction,
        buffer: object,
        kind: PassKind | None,
        forward: Buffer | None = None,
    ) -> None:
        """Raise FrameError unless `buffer` is a body that a stage can use.

        If a gradient needs `forward` and it is not given, only those checks are made that do not need it.
        """
        if not isinstance(buffer, Buffer):
            raise FrameError(f"the body is of type {type(buffer).__name__}, expected bytes")
        if not 0 <= boundary < self._model.stages:
            raise FrameError(f"there is no boundary {boundary}: the run has {self._model.stages} stages")
        if direction is Direction.FORWARD:
            found, tokens, encoded = self._opened(boundary, buffer, kind)
            if boundary == 0:
                return
            codec, shape = self._changing(boundary, None), self._shape(boundary, found, tokens)
        else:
            codec, encoded, shape = self._beside(boundary, forward), self._gradient(buffer), self._batch_shape(boundary)
        if self._is_finite(encoded):
            with _refusing(codec):
                codec.check(encoded, shape)

    def max_bytes(self, boundary: int, direction: Direction) -> int:
        """Size of the largest body at a boundary in any pass with any choice of codecs: the limit for a receiver."""
        forward = {codec for codec, _ in self._candidates}
        if direction is Direction.BACKWARD:
            if boundary == 0:
                return HEADER_BYTES  # no gradient crosses it
            return HEADER_BYTES + max(codec.max_bytes(self._batch_shape(boundary)) for _, codec in self._candidates)
        prompts = HEADER_BYTES + _COLUMNS.size + self._model.context * self._ids.itemsize
        batches = HEADER_BYTES + math.prod(self._batch_columns) * self._ids.itemsize
        if boundary > 0:
            prompts += max(c.max_bytes((1, self._model.context, self._model.boundary_width(boundary))) for c in forward)
            batches += max(c.max_bytes(self._batch_shape(boundary)) for c in forward)
        return max(prompts, batches)

    @property
    def _batch_columns(self) -> tuple[int, int]:
        """Rows and columns of the token ids of a microbatch."""
        return self._batch.sequences, self._batch.sequence_length + 1

    def _batch_shape(self, boundary: int) -> tuple[int, int, int]:
        """The shape of a microbatch's activations and gradients at a boundary."""
        return self._batch.sequences, self._batch.sequence_length, self._model.boundary_width(boundary)

    def left(self, base: Tensor | None, hidden: Tensor, crossed: Tensor) -> Tensor:
        """The base for the next visit, fp16. hidden: the activation packed with `base`; crossed: its reconstruction."""
        codec, _ = self._candidates[0]
        assert isinstance(codec, codecs.Remembering), "only such a codec makes bases"
        return codec.left(base, hidden.cpu(), crossed)

    def _changing(self, boundary: int, base: Tensor | None) -> codecs.Codec:
        """The codec of an activation that is packed with `base`."""
        codec, _ = self.codecs_at(boundary)
        if base is None:
            return codec
        assert isinstance(codec, codecs.Remembering), "only such a codec uses bases"
        return codec.against(base)

    def _beside(self, boundary: int, forward: Buffer | None) -> codecs.Codec:
        """The codec of a gradient; `forward`: the body with its activation."""
        _, codec = self.codecs_at(boundary)
        if forward is None or not self.needs_forward:
            return codec
        ids = HEADER_BYTES + math.prod(self._batch_columns) * self._ids.itemsize
        return codec.beside(memoryview(forward).cast("B")[ids:])

    def _begin(self, codec: codecs.Codec, tensor: Tensor) -> Callable[[], Sequence[Buffer]]:
        try:
            encoding = codec.begin(tensor)
        except codecs.CodecError as error:
            return self._unsent(error)

        def finish() -> Sequence[Buffer]:
            try:
                return encoding()
            except codecs.CodecError as error:
                return self._unsent(error)()

        return finish

    def _unsent(self, error: codecs.CodecError) -> Callable[[], Sequence[Buffer]]:
        """NOT_FINITE in place of a tensor that cannot be encoded, if the pass allows this; otherwise raise `error`."""
        if self._nonfinite and error.reason is codecs.Reason.NOT_FINITE:
            return lambda: (NOT_FINITE,)
        raise error

    def _decode(self, codec: codecs.Codec, encoded: memoryview, shape: tuple[int, ...], device: torch.device) -> Tensor:
        if not self._is_finite(encoded):
            return torch.full(shape, math.nan, device=device)
        with _refusing(codec):
            return codec.decode_on(device, encoded, shape)

    def _is_finite(self, encoded: memoryview) -> bool:
        return not (self._nonfinite and encoded == NOT_FINITE)

    def _kind(self, kind: PassKind) -> BodyKind:
        return BodyKind.PROMPT if kind is PassKind.GENERATE else BodyKind.BATCH

    def _pack(self, kind: BodyKind, ids: np.ndarray | None, *encoded: Buffer) -> Buffer:
        header = bytes((kind << 4 | self._ids.itemsize,))
        columns = _COLUMNS.pack(ids.shape[1]) if kind is BodyKind.PROMPT and ids is not None else b""
        return _joined((header, columns, b"" if ids is None else ids.astype(self._ids).tobytes(), *encoded))

    def _gradient(self, buffer: Buffer) -> memoryview:
        """The encoded gradient in a body. Raises FrameError."""
        view = memoryview(buffer).cast("B")
        found, _, _, start = self._header(view)
        if found is not BodyKind.GRADIENT:
            raise FrameError(f"a backward frame has a body of kind {found.name}")
        return view[start:]

    def _header(self, view: memoryview) -> tuple[BodyKind, int, int, int]:
        """(kind, rows and columns of token ids, bytes of the header)."""
        if len(view) < HEADER_BYTES:
            raise FrameError(f"the body has {len(view)} bytes, but its header needs {HEADER_BYTES}")
        kind, width = divmod(view[0], 16)
        if kind not in BodyKind._value2member_map_:
            raise FrameError(f"the body is of unknown kind {kind}")
        if width != self._ids.itemsize:
            raise FrameError(f"the token ids have {width} bytes; those of this vocabulary have {self._ids.itemsize}")
        if kind == BodyKind.GRADIENT:
            return BodyKind.GRADIENT, 0, 0, HEADER_BYTES
        if kind == BodyKind.BATCH:
            return BodyKind.BATCH, *self._batch_columns, HEADER_BYTES
        if len(view) < HEADER_BYTES + _COLUMNS.size:
            raise FrameError(
                f"the body has {len(view)} bytes, but the header of a prompt needs {HEADER_BYTES + _COLUMNS.size}"
            )
        (columns,) = _COLUMNS.unpack_from(view, HEADER_BYTES)
        return BodyKind.PROMPT, 1, columns, HEADER_BYTES + _COLUMNS.size

    def _check_shape(self, kind: BodyKind, rows: int, columns: int) -> None:
        if kind is BodyKind.PROMPT:
            if rows != 1 or not 1 <= columns <= self._model.context:
                raise FrameError(
                    f"the prompt has {rows} × {columns} token ids, expected one row of 1 to {self._model.context}"
                )
        elif (rows, columns) != (self._batch.sequences, self._batch.sequence_length + 1):
            raise FrameError(
                f"the body has {rows} × {columns} token ids, expected {self._batch.sequences} × "
                f"{self._batch.sequence_length + 1}"
            )

    def _check_range(self, ids: np.ndarray) -> None:
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._model.vocab_size:
            raise FrameError(
                f"token id {high if low >= 0 else low} is out of range: model.vocab_size = {self._model.vocab_size}"
            )


def _joined(parts: Sequence[Buffer]) -> Buffer:
    """Concatenate parts. Unlike `bytes.join`, a large copy does not block other threads."""
    sizes = [memoryview(part).nbytes for part in parts]
    if sum(sizes) < _MUCH:
        return b"".join(parts)
    whole, start = np.empty(sum(sizes), dtype=np.uint8), 0
    for part, size in zip(parts, sizes, strict=True):
        whole[start : start + size] = np.frombuffer(part, dtype=np.uint8) if size else 0
        start += size
    return whole.data.toreadonly()


def _candidates(manifest: RunManifest) -> tuple[tuple[codecs.Codec, codecs.Codec], ...]:
    """All pairs of codecs that a boundary of the run may use. Raises codecs.UnknownCodec."""
    return tuple(codecs.pair(*names) for names in itertools.product(*ladder.names(manifest)))


def _chosen(manifest: RunManifest, chosen: Sequence[CodecPair]) -> tuple[tuple[codecs.Codec, codecs.Codec], ...]:
    """The chosen codecs of each boundary; empty if none are chosen. Raises codecs.UnknownCodec."""
    if not chosen:
        return ()
    forward, backward = ladder.names(manifest)
    if not manifest.codec.auto or len(chosen) != manifest.model.stages - 1:
        raise codecs.UnknownCodec(
            f"codecs were chosen for {len(chosen)} boundaries; the run has {manifest.model.stages - 1}, with "
            f"codec.forward = {manifest.codec.forward!r} and codec.backward = {manifest.codec.backward!r}"
        )
    for pair in chosen:
        if pair.forward not in forward or pair.backward not in backward:
            raise codecs.UnknownCodec(
                f"the codecs {pair.forward!r} forward and {pair.backward!r} backward cannot be chosen in this run, "
                f"which has {', '.join(forward)} forward and {', '.join(backward)} backward. Peers and coordinator "
                "need the same release"
            )
    return tuple(codecs.pair(pair.forward, pair.backward) for pair in chosen)


@contextlib.contextmanager
def _refusing(codec: codecs.Codec) -> Iterator[None]:
    """Turn the errors of a codec into FrameError."""
    try:
        yield
    except codecs.CodecError as error:
        raise FrameError(f"codec {codec.name}: {error}") from None


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2 or not math.prod(shape):
        raise FrameError(f"the token ids have the shape {shape}, expected rows × columns")
    return shape[0], shape[1]
