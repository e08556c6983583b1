"""Codec: one tensor as one self-describing frame of bytes, and back.

Peers that have never met exchange these frames, so `decode` is total: for any bytes, it returns a tensor of the
expected shape with finite values, or raises CodecError with a named reason. It allocates nothing before codec, shape,
length and checksum agree.

A frame is a fixed 15-byte header (little-endian) and a payload:

    codec id u8 | codec version u8 | 16 · source dtype + ndim u8 | dims u64 | checksum u32

Each of the n dims has 64 // n bits, the first one the lowest. The transport gives the length of the payload. The
checksum covers header and payload: the first four bytes of their BLAKE3, which is three times as fast as zlib's crc32.
It finds accidents; authenticity is the transport's duty.
"""

from __future__ import annotations

import abc
import enum
import math
import struct
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from blake3 import blake3

from swarm.buffer import Buffer

HEADER_BYTES = 15
MAX_DIMS = 4

_FIELDS = struct.Struct("<BBBQ")
_CHECKSUM_BYTES = 4
_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_MAX_PAYLOAD = 2**32 - 1
_DIMS_BITS = 64


class Reason(enum.Enum):
    """The reason why a frame or tensor is refused: the key under which refusals are counted and shown."""

    TRUNCATED = "truncated"
    OVERSIZED = "oversized"
    WRONG_CODEC = "wrong codec"
    WRONG_VERSION = "wrong version"
    WRONG_DTYPE = "wrong dtype"
    WRONG_SHAPE = "wrong shape"
    WRONG_LENGTH = "wrong length"
    BAD_CHECKSUM = "bad checksum"
    BAD_SCALE = "bad scale"
    BAD_MASK = "bad mask"
    BAD_CODES = "bad codes"
    WRONG_FORWARD = "wrong forward frame"
    NOT_FINITE = "not finite"
    UNSUPPORTED = "unsupported tensor"


class CodecError(ValueError):
    """A frame that cannot be decoded or a tensor that cannot be encoded. `reason` names the class of fault."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason


class Codec(abc.ABC):
    """Base of all codecs: header, checks and checksum. Stateless and thread-safe.

    A codec for gradients may use the forward frame of the same boundary and microbatch, whose bytes both ends hold:
    `beside(frame)` is the codec for that one gradient.

    Every codec is deterministic to the bit for any number of threads: a replayed frame equals the first one. A subclass
    gives `name`, `codec_id`, `version` and the three methods below; it never sees an unchecked length.
    """

    name: str
    """As manifests name it, parameter included."""
    codec_id: int
    """On the wire, 1 … 255; never reused for another codec."""
    version: int
    """On the wire; raised whenever the payload of equal input changes."""
    needs_forward: ClassVar[bool] = False
    """Whether `encode` and `decode` work only on the result of `beside`."""
    needed_afterwards: ClassVar[bool] = False
    """Whether a model trained with it on its activations performs clearly worse without it."""

    def beside(self, forward: Buffer) -> Codec:
        """The codec for the gradient whose activation was sent in `forward`, an encoded frame that is kept, not copied.

        Nothing is read yet: a frame that does not fit is refused with WRONG_FORWARD when it is needed.
        """
        return self

    def encode(self, tensor: torch.Tensor) -> bytes:
        """The frame of a CPU tensor, fp32 or bf16, at most 4 dimensions, any strides. Raises CodecError.

        Each of n dimensions is below 2^(64 // n): 3 are below 2,097,152.
        """
        if tensor.device.type != "cpu":
            raise self._unsupported(tensor, "on the CPU")
        return b"".join(self._encoded(tensor))

    def begin(self, tensor: torch.Tensor) -> Callable[[], Sequence[Buffer]]:
        """Start to encode a tensor, as `encode`, on its device. Nothing waits for the device.

        The result returns the frame in parts, which must not be changed, and raises CodecError. Call it once the device
        has done all work it was given until now.
        """
        if tensor.device.type == "cpu":
            parts = self._encoded(tensor)
            return lambda: parts
        self._check_supported(tensor)
        packed = self.pack_on_device(_plain(tensor)) if tensor.numel() else None
        host = to_host(tensor.detach() if packed is None else packed)
        if packed is None:
            return lambda: self._encoded(host)

        def finish() -> Sequence[Buffer]:
            if host[0]:
                raise CodecError(Reason.NOT_FINITE, "some values are NaN or infinite")
            return self._frame(tensor, (raw_bytes(host)[1:],))

        return finish

    def decode(self, buffer: Buffer, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The tensor of a frame: freshly allocated, contiguous, of `shape` and `dtype` (fp32 or bf16), all finite.

        `buffer` may have any alignment and is not kept. Raises CodecError with a named reason.
        """
        if dtype not in _DTYPES:
            raise CodecError(Reason.WRONG_DTYPE, f"cannot decode to {dtype}; ask for float32 or bfloat16")
        shape = tuple(shape)
        payload = self._checked(memoryview(buffer).cast("B"), shape)
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        tensor = self.unpack(payload, shape)
        return to_bfloat16(tensor) if dtype is torch.bfloat16 else tensor.to(dtype)

    def decode_on(self, device: torch.device, buffer: Buffer, shape: Sequence[int]) -> torch.Tensor:
        """As `decode`, fp32 on `device`, where its values are computed if the codec can. Nothing waits for the device.

        Except on the CPU, the frame must have passed `check`: its checksum is not verified again.
        """
        dims = tuple(shape)
        if device.type != "cpu" and 0 not in shape:
            payload = memoryview(buffer).cast("B")[HEADER_BYTES:]
            tensor = self.unpack_on_device(payload, dims, device)
            if tensor is not None:
                return tensor.to(torch.float32)
        return to_device(self.decode(buffer, dims), device)

    def check(self, buffer: Buffer, shape: Sequence[int]) -> None:
        """Raise CodecError if a frame cannot be decoded, as far as this can be known without the forward frame."""
        dims = tuple(shape)
        payload = self._checked(memoryview(buffer).cast("B"), dims)
        if math.prod(dims):
            self.check_payload(payload, dims)

    def max_bytes(self, shape: Sequence[int]) -> int:
        """The largest frame of a tensor of `shape`, header included, which a receiver must be ready for."""
        return HEADER_BYTES + (self.payload_bytes(shape) if math.prod(shape) else 0)

    @abc.abstractmethod
    def payload_bytes(self, shape: Sequence[int]) -> int:
        """Upper bound of the payload of a non-empty tensor of `shape`."""

    @abc.abstractmethod
    def pack(self, tensor: torch.Tensor) -> Sequence[Buffer]:
        """The payload of a contiguous, non-empty fp32 tensor, in parts. Raises CodecError when it is not finite."""

    @abc.abstractmethod
    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> torch.Tensor:
        """A fresh fp32 or bf16 tensor of `shape` from at most `payload_bytes(shape)` bytes. Raises CodecError."""

    def check_payload(self, payload: memoryview, shape: tuple[int, ...]) -> None:
        """Raise CodecError if `unpack` would. A codec that can check this without all values overrides it."""
        self.unpack(payload, shape)

    def pack_on_device(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The payload of a contiguous, non-empty fp32 tensor on a device other than the CPU, computed there.

        uint8 (1 + payload,): first 0, or 1 if a value is not finite. Does not wait for the device. None: this codec
        works only on CPUs.
        """
        return None

    def unpack_on_device(
        self, payload: memoryview, shape: tuple[int, ...], device: torch.device
    ) -> torch.Tensor | None:
        """`unpack` of a payload that has passed `check_payload`, fp32 or bf16 on `device`. Does not wait for it.

        None: this codec works only on CPUs.
        """
        return None

    def _check_supported(self, tensor: torch.Tensor) -> None:
        if tensor.dtype not in _DTYPES or tensor.ndim > MAX_DIMS:
            raise self._unsupported(tensor)
        if tensor.numel() and self.payload_bytes(tensor.shape) > _MAX_PAYLOAD:
            raise CodecError(Reason.UNSUPPORTED, f"shape {tuple(tensor.shape)} needs more than {_MAX_PAYLOAD} bytes")

    def _unsupported(self, tensor: torch.Tensor, where: str = "") -> CodecError:
        return CodecError(
            Reason.UNSUPPORTED,
            f"{tensor.dtype} with {tensor.ndim} dimensions on {tensor.device}; "
            f"codec {self.name} takes fp32 or bf16 with at most {MAX_DIMS} dimensions {where}".rstrip(),
        )

    def _encoded(self, tensor: torch.Tensor) -> Sequence[Buffer]:
        """The frame of a CPU tensor, in parts."""
        self._check_supported(tensor)
        return self._frame(tensor, self.pack(_plain(tensor)) if tensor.numel() else ())

    def _frame(self, tensor: torch.Tensor, payload: Sequence[Buffer]) -> Sequence[Buffer]:
        """The frame of a tensor and its payload, in parts."""
        fields = self._fields(tensor.shape, _DTYPES[tensor.dtype])
        return fields, _checksum(fields, *payload), *payload

    def _fields(self, shape: Sequence[int], dtype: int) -> bytes:
        dims = _packed(shape)
        if dims is None:
            raise CodecError(Reason.UNSUPPORTED, f"shape {tuple(shape)} has a dimension that no header can name")
        return _FIELDS.pack(self.codec_id, self.version, dtype << 4 | len(shape), dims)

    def _checked(self, view: memoryview, shape: tuple[int, ...]) -> memoryview:
        """The payload, after all checks that do not look into it."""
        if len(view) < HEADER_BYTES:
            raise CodecError(Reason.TRUNCATED, f"{len(view)} bytes, a header has {HEADER_BYTES}")
        codec_id, version, kind, dims = _FIELDS.unpack_from(view)
        dtype, ndim = divmod(kind, 16)
        if codec_id != self.codec_id:
            raise CodecError(Reason.WRONG_CODEC, f"codec id {codec_id}, expected {self.codec_id} ({self.name})")
        if version != self.version:
            raise CodecError(Reason.WRONG_VERSION, f"{self.name} version {version}, expected {self.version}")
        if dtype not in _DTYPES.values():
            raise CodecError(Reason.WRONG_DTYPE, f"unknown dtype number {dtype}")
        if ndim != len(shape) or dims != _packed(shape):
            raise CodecError(Reason.WRONG_SHAPE, f"{_unpacked(dims, ndim)}, expected {shape}")
        payload = view[HEADER_BYTES:]
        if (most := self.max_bytes(shape)) < len(view):
            raise CodecError(
                Reason.OVERSIZED, f"payload of {len(payload)} bytes, {shape} has at most {most - HEADER_BYTES}"
            )
        claimed = view[_FIELDS.size : HEADER_BYTES]
        actual = _checksum(view[: _FIELDS.size], payload)
        if claimed != actual:
            raise CodecError(Reason.BAD_CHECKSUM, f"it is {actual.hex()}, the header says {claimed.hex()}")
        return payload


def _checksum(*parts: Buffer) -> bytes:
    found = blake3()
    for part in parts:
        found.update(memoryview(part).cast("B"))
    return found.digest(_CHECKSUM_BYTES)


def _packed(shape: Sequence[int]) -> int | None:
    """The dimensions as one number; None if one of them is too large for that."""
    bits = _DIMS_BITS // max(1, len(shape))
    if any(dim >> bits for dim in shape):
        return None
    return sum(dim << bits * place for place, dim in enumerate(shape))


def _unpacked(dims: int, ndim: int) -> str:
    """The dimensions in any header, for people."""
    if not 0 < ndim <= MAX_DIMS:
        return f"{ndim} dimensions"
    bits = _DIMS_BITS // ndim
    return str(tuple(dims >> bits * place & (1 << bits) - 1 for place in range(ndim)))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the form that `pack` takes."""
    return tensor.detach().to(torch.float32).contiguous()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory, complete once its device has done all work it was given until now."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return host.copy_(tensor, non_blocking=True)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A CPU tensor on `device`. Nothing waits for the device; the tensor may be released at once."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def bytes_on(device: torch.device, payload: memoryview) -> torch.Tensor:
    """A payload as uint8 on `device`. Nothing waits for the device.

    What can be written to may lie in pinned memory already. Then its owner keeps it until the device has read it.
    """
    if device.type == "cuda" and not payload.readonly:
        host = torch.frombuffer(payload, dtype=torch.uint8)
        if host.is_pinned():
            return host.to(device, non_blocking=True)
    host = torch.empty(len(payload), dtype=torch.uint8, pin_memory=device.type == "cuda")
    raw_bytes(host)[:] = payload
    return host.to(device, non_blocking=device.type == "cuda")


def require_finite(tensor: torch.Tensor, what: str) -> None:
    """Raise CodecError unless every value of a floating-point tensor is finite."""
    # A finite sum proves finite terms, thirty times faster than isfinite(); but finite terms may overflow the sum.
    if not math.isfinite(tensor.sum(dtype=torch.float32).item()) and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise CodecError(Reason.NOT_FINITE, f"{bad} of {tensor.numel()} {what} are NaN or infinite")


def copied(payload: memoryview, dtype: torch.dtype, offset: int, count: int) -> torch.Tensor:
    """`count` little-endian values at byte `offset` of `payload` as a fresh flat tensor: aligned, never a view.

    Raises CodecError when the payload ends before.
    """
    tensor = torch.empty(count, dtype=dtype)
    nbytes = count * tensor.element_size()
    if offset + nbytes > len(payload):
        raise CodecError(Reason.WRONG_LENGTH, f"payload of {len(payload)} bytes, expected {offset + nbytes} or more")
    raw_bytes(tensor)[:] = payload[offset : offset + nbytes]
    return tensor


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """Finite fp32 values to the nearest bf16, ties to even; values beyond its range saturate instead of overflowing."""
    rounded = tensor.to(torch.bfloat16)
    if not math.isfinite(rounded.sum(dtype=torch.float32).item()):  # rare: only then may a value have overflowed
        limit = torch.finfo(torch.bfloat16).max
        rounded = tensor.clamp(-limit, limit).to(torch.bfloat16)
    return rounded
