"""The base of all codecs: converts a tensor to a self-describing frame of bytes, and back.

Frames come from untrusted peers. For any bytes, `decode` either returns a tensor of the expected shape with finite
values, or raises CodecError with a named reason. It allocates memory only after it has checked codec, shape, length and
checksum.

A frame is a fixed 15-byte header (little-endian) and a payload:

    codec id u8 | codec version u8 | 16 · source dtype + ndim u8 | dims u64 | checksum u32

Each of the n dims has 64 // n bits, with the first dimension in the lowest bits. The transport gives the length of the
payload. The checksum covers header and payload: the first four bytes of their BLAKE3, which is three times as fast as
zlib's crc32. It detects accidental errors; the transport guarantees authenticity.
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
    """A frame cannot be decoded, or a tensor cannot be encoded. `reason`: the kind of error."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason


class Codec(abc.ABC):
    """Base of all codecs, with header, checks and checksum. Stateless and thread-safe.

    A codec for gradients may use the forward frame of the same boundary and microbatch, which both ends have:
    `beside(frame)` returns a codec for the gradient that belongs to that forward frame.

    Every codec is deterministic to the bit for any number of threads, so encoding the same tensor again gives the same
    frame. A subclass defines `name`, `codec_id`, `version` and the methods `payload_bytes`, `pack` and `unpack`; the
    base class checks lengths before it calls them.
    """

    name: str
    """The name in manifests, with its parameter."""
    codec_id: int
    """The number in frames, 1 … 255; never reused for another codec."""
    version: int
    """The version in frames; raised whenever the payload of equal input changes."""
    needs_forward: ClassVar[bool] = False
    """True if `encode` and `decode` work only on the codec that `beside` returns."""
    needed_afterwards: ClassVar[bool] = False
    """True if a model that was trained with this codec on its activations performs clearly worse without the codec."""

    def beside(self, forward: Buffer) -> Codec:
        """The codec for the gradient of the activation in the encoded frame `forward`. It keeps the frame without a
        copy.

        The frame is read only when it is needed; one that does not fit is then refused with WRONG_FORWARD.
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
        """Start to encode a tensor on its device, without waiting for the device.

        The returned function returns the frame in parts, which must not be changed, or raises CodecError. Call it after
        the device has finished all work submitted so far.
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
        """Decode a frame: a newly allocated, contiguous, finite tensor of `shape` and `dtype` (fp32 or bf16).

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
        """Like `decode`, to fp32 on `device`, without waiting for it. If the codec can, the device computes the values.

        Unless `device` is the CPU, the frame must have passed `check` before: its checksum is not verified again.
        """
        dims = tuple(shape)
        if device.type != "cpu" and 0 not in shape:
            payload = memoryview(buffer).cast("B")[HEADER_BYTES:]
            tensor = self.unpack_on_device(payload, dims, device)
            if tensor is not None:
                return tensor.to(torch.float32)
        return to_device(self.decode(buffer, dims), device)

    def check(self, buffer: Buffer, shape: Sequence[int]) -> None:
        """Raise CodecError if a frame cannot be decoded, as far as this can be checked without the forward frame."""
        dims = tuple(shape)
        payload = self._checked(memoryview(buffer).cast("B"), dims)
        if math.prod(dims):
            self.check_payload(payload, dims)

    def max_bytes(self, shape: Sequence[int]) -> int:
        """Size of the largest frame of a tensor of `shape`, with its header, in bytes."""
        return HEADER_BYTES + (self.payload_bytes(shape) if math.prod(shape) else 0)

    def usual_bytes(self, shape: Sequence[int]) -> int:
        """Size of the frame of a tensor of `shape` with normal values, in bytes, for estimates."""
        return self.max_bytes(shape)

    @abc.abstractmethod
    def payload_bytes(self, shape: Sequence[int]) -> int:
        """An upper bound on the payload of a non-empty tensor of `shape`, bytes."""

    @abc.abstractmethod
    def pack(self, tensor: torch.Tensor) -> Sequence[Buffer]:
        """The payload of a contiguous, non-empty fp32 tensor, in parts. Raises CodecError if it is not finite."""

    @abc.abstractmethod
    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> torch.Tensor:
        """A new fp32 or bf16 tensor of `shape` from a payload of at most `payload_bytes(shape)` bytes.

        Raises CodecError.
        """

    def check_payload(self, payload: memoryview, shape: tuple[int, ...]) -> None:
        """Raise CodecError if `unpack` would. Codecs override it if they can check this without decoding all values."""
        self.unpack(payload, shape)

    def pack_on_device(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The payload of a contiguous, non-empty fp32 tensor on a device other than the CPU, computed there.

        uint8 (1 + payload,): the first byte is 1 if a value is not finite, else 0. Does not wait for the device. None:
        this codec works only on CPUs.
        """
        return None

    def unpack_on_device(
        self, payload: memoryview, shape: tuple[int, ...], device: torch.device
    ) -> torch.Tensor | None:
        """Like `unpack`, on `device`, without waiting for it. `payload` must have passed `check_payload` before.

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
            raise CodecError(Reason.UNSUPPORTED, f"shape {tuple(shape)} has a dimension too large for the header")
        return _FIELDS.pack(self.codec_id, self.version, dtype << 4 | len(shape), dims)

    def _checked(self, view: memoryview, shape: tuple[int, ...]) -> memoryview:
        """The payload, after all checks that do not need its content."""
        if len(view) < HEADER_BYTES:
            raise CodecError(Reason.TRUNCATED, f"the frame has {len(view)} bytes; a header has {HEADER_BYTES}")
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
                Reason.OVERSIZED, f"the payload has {len(payload)} bytes; {shape} needs at most {most - HEADER_BYTES}"
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
    """The dimensions as one number; None if one of them is too large for this."""
    bits = _DIMS_BITS // max(1, len(shape))
    if any(dim >> bits for dim in shape):
        return None
    return sum(dim << bits * place for place, dim in enumerate(shape))


def _unpacked(dims: int, ndim: int) -> str:
    """The dimensions in a header as text, also for invalid headers."""
    if not 0 < ndim <= MAX_DIMS:
        return f"{ndim} dimensions"
    bits = _DIMS_BITS // ndim
    return str(tuple(dims >> bits * place & (1 << bits) - 1 for place in range(ndim)))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the form that `pack` takes."""
    return tensor.detach().to(torch.float32).contiguous()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory, which is complete after the device has finished all work submitted so far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return host.copy_(tensor, non_blocking=True)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a CPU tensor on `device`, without waiting for it. The CPU tensor may be released at once."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def bytes_on(device: torch.device, payload: memoryview) -> torch.Tensor:
    """A payload as uint8 on `device`, without waiting for it.

    A writable payload may already be in pinned memory; its owner must then keep it until the device has read it.
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
    # A finite sum proves that all terms are finite, 30 times faster than isfinite(). But the sum of finite terms may
    # overflow.
    if not math.isfinite(tensor.sum(dtype=torch.float32).item()) and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise CodecError(Reason.NOT_FINITE, f"{bad} of {tensor.numel()} {what} are NaN or infinite")


def copied(payload: memoryview, dtype: torch.dtype, offset: int, count: int) -> torch.Tensor:
    """`count` little-endian values from byte `offset` of `payload` on, as a new flat tensor, not a view.

    Raises CodecError if the payload is too short.
    """
    tensor = torch.empty(count, dtype=dtype)
    nbytes = count * tensor.element_size()
    if offset + nbytes > len(payload):
        raise CodecError(
            Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, expected at least {offset + nbytes}"
        )
    raw_bytes(tensor)[:] = payload[offset : offset + nbytes]
    return tensor


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """Round finite fp32 values to the nearest bf16, ties to even; values beyond its range saturate."""
    rounded = tensor.to(torch.bfloat16)
    if not math.isfinite(rounded.sum(dtype=torch.float32).item()):  # rare: only then may a value have overflowed
        limit = torch.finfo(torch.bfloat16).max
        rounded = tensor.clamp(-limit, limit).to(torch.bfloat16)
    return rounded
