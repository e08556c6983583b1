"""Codecs `entropy`: one step for all values of a tensor, and short codes for frequent multiples of it.

    entropy:STEP            a value becomes the nearest multiple of the step
    entropy-dithered:STEP   the same with subtractive dither: unbiased, for gradients

STEP is relative to the size of the values. For `entropy` this size is 1.4826 times their median magnitude, which for
normal values is their standard deviation; a few large values do not change it. For `entropy-dithered` it is their root
mean square, which the few tokens with large gradients decide.

Subtractive dither adds a number between -½ and ½ steps to a value before it is rounded, and subtracts the same number
from the result (Gray and Stockham, Dithered quantizers, 1993). The error then has mean 0 and does not depend on the
value, and its variance is that of plain rounding. The numbers follow from a seed in the payload. The seed is a digest
of the tensor, so that equal tensors give equal bytes.

Codes are written in pairs, a byte for each pair, with Huffman codes: DEFLATE (RFC 1951) without its search for
repetitions. A pair may take less than two bits. Values beyond 127 steps saturate.

Payload: kind u8 | step fp32 | with dither: seed u32 | of PAIRS: number n of large codes u32, large codes int8 × n, a
raw deflate stream of the pairs; of PLAIN: codes int8 × values. PLAIN is used if it is shorter.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
import struct
import zlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import HEADER_BYTES, Codec, CodecError, Reason, raw_bytes, require_finite
from swarm.codecs.huffman_code import restored, shortened
from swarm.splitmix import splitmix

_MOST = 127
"""Largest code."""
_NORMAL = 1.4826
"""Standard deviation ÷ median magnitude of normal values."""
_SMALL = 7
"""Largest magnitude of a code in a pair. A larger code is written beside the pairs, which contain `_LARGE` for it."""
_LARGE = _SMALL + 1
_SIDE = 2 * _SMALL + 2
"""Number of symbols for one code of a pair: -7 … 7 and `_LARGE`."""
_MOST_STEP = 2.0**120
"""With a step 256 times as large, a code could decode to infinity."""
_VANISHING = 2.0**-100
"""A smaller step becomes zero. So no product of a step is denormal, which some machines would round to zero."""
_HUFFMAN = 1.02
"""Length of Huffman codes of pairs ÷ entropy."""
_STEP = re.compile(r"\d{1,2}(\.\d{1,4})?")
_RANGE = (0.05, 16.0)
_HEAD, _SEED, _COUNT = struct.Struct("<Bf"), struct.Struct("<I"), struct.Struct("<I")


class _Kind(enum.IntEnum):
    PLAIN = 0
    PAIRS = 1


class Entropy(Codec):
    """Error of a value: at most 0.51 steps, unless it is beyond 127 steps."""

    families: ClassVar = {"entropy": False, "entropy-dithered": True}
    """{family: whether values are dithered}"""
    codec_id = 24
    version = 1

    def __init__(self, family: str, step: str) -> None:
        """step: a number as text. Raises ValueError, whose text is empty if it is not a number."""
        if not _STEP.fullmatch(step):
            raise ValueError
        self._relative = float(step)
        if not _RANGE[0] <= self._relative <= _RANGE[1]:
            raise ValueError(f"a step of {step} is not from {_RANGE[0]} to {_RANGE[1]:g}; write {family}:1")
        self._dithered = self.families[family]
        self.codec_id = Entropy.codec_id + self._dithered
        self.name = f"{family}:{step}"

    def payload_bytes(self, shape: Sequence[int]) -> int:
        return self._head_bytes + math.prod(shape)

    def usual_bytes(self, shape: Sequence[int]) -> int:
        """Size of a frame with normal values, from the entropy of their codes."""
        spread = math.sqrt(1 + self._dithered * self._relative**2 / 12) / self._relative  # in steps
        edges = [math.erf((k - 0.5) / (math.sqrt(2) * spread)) / 2 for k in range(-_MOST, _MOST + 2)]
        shares = [high - low for low, high in itertools.pairwise(edges)]
        bits = -sum(share * math.log2(share) for share in shares if share > 0)
        return HEADER_BYTES + self._head_bytes + math.ceil(_HUFFMAN * bits * math.prod(shape) / 8)

    def pack(self, tensor: Tensor) -> Sequence[Buffer]:
        require_finite(tensor, "values")
        step = self._step(tensor)
        seed = zlib.crc32(raw_bytes(tensor)) if self._dithered else None
        ratios = tensor.view(-1) / step if step > 0 else torch.zeros(tensor.numel())
        if seed is not None:
            ratios += _dither(seed, len(ratios))
        codes = ratios.round_().clamp_(-_MOST, _MOST).to(torch.int8).numpy()
        end = b"" if seed is None else _SEED.pack(seed)
        large, pairs = _paired(codes)
        stream = shortened(pairs)
        if _COUNT.size + large.nbytes + len(stream) < codes.nbytes:
            head = _HEAD.pack(_Kind.PAIRS, step) + end
            return head, _COUNT.pack(len(large)), large.data.cast("B"), stream
        return _HEAD.pack(_Kind.PLAIN, step) + end, codes.data.cast("B")

    def unpack(self, payload: memoryview, shape: tuple[int, ...]) -> Tensor:
        if len(payload) < self._head_bytes:
            raise CodecError(
                Reason.WRONG_LENGTH, f"the payload has {len(payload)} bytes, its head has {self._head_bytes}"
            )
        kind, step = _HEAD.unpack_from(payload)
        if not 0 <= step <= _MOST_STEP:  # also refuses NaN
            raise CodecError(Reason.BAD_SCALE, f"the step is {step}; it must be from 0 to {_MOST_STEP}")
        count, rest = math.prod(shape), payload[self._head_bytes :]
        if kind not in _Kind._value2member_map_:
            raise CodecError(Reason.BAD_CODES, f"the payload is of unknown kind {kind}")
        values = torch.from_numpy((_plain if kind == _Kind.PLAIN else _unpaired)(rest, count)).to(torch.float32)
        if self._dithered and step:
            (seed,) = _SEED.unpack_from(payload, _HEAD.size)
            values -= _dither(seed, count)
        return values.mul_(step).view(shape)

    @property
    def _head_bytes(self) -> int:
        return _HEAD.size + _SEED.size * self._dithered

    def _step(self, tensor: Tensor) -> float:
        """The step, a bf16 number, so that small differences between machines in `size` do not change it. 0 if all
        values vanish.
        """
        values = tensor.view(-1).numpy()
        square = float(np.square(values, dtype=np.float64).mean())
        size = math.sqrt(square)
        if not self._dithered and (usual := _NORMAL * tensor.abs().median().item()) * self._relative >= _VANISHING:
            size = usual
        step = size * self._relative
        return torch.tensor(min(step, _MOST_STEP)).bfloat16().item() if step >= _VANISHING else 0.0


def _dither(seed: int, count: int) -> Tensor:
    """Numbers between -½ and ½, fp32 (count,): odd multiples of 2^-25, which fp32 represents exactly."""
    drawn = splitmix(torch.arange(1, count + 1), seed).bitwise_right_shift_(40)  # 24 bits with sign
    return drawn.to(torch.float32).add_(0.5).mul_(2.0**-24)


def _paired(codes: np.ndarray) -> tuple[np.ndarray, bytes]:
    """(the large codes, a byte for each pair of codes). codes: int8 (values,)."""
    is_large = np.abs(codes.astype(np.int16)) > _SMALL
    symbols = np.where(is_large, _LARGE, codes).astype(np.uint8) + np.uint8(_SMALL)
    if len(symbols) % 2:
        symbols = np.append(symbols, np.uint8(_SMALL))
    return codes[is_large], (symbols[::2] * np.uint8(_SIDE) + symbols[1::2]).tobytes()


def _plain(payload: memoryview, count: int) -> np.ndarray:
    """The codes of a payload of kind PLAIN, without its head. Raises CodecError."""
    if len(payload) != count:
        raise CodecError(Reason.BAD_CODES, f"{len(payload)} bytes follow the head, expected {count} codes")
    return np.frombuffer(payload, dtype=np.int8).copy()


def _unpaired(payload: memoryview, count: int) -> np.ndarray:
    """The codes of a payload of kind PAIRS, without its head: int8 (count,). Raises CodecError."""
    if len(payload) < _COUNT.size:
        raise CodecError(Reason.BAD_CODES, f"{len(payload)} bytes follow the head, expected at least {_COUNT.size}")
    (few,) = _COUNT.unpack_from(payload)
    if few > len(payload) - _COUNT.size:
        raise CodecError(Reason.BAD_CODES, f"{few} large codes do not fit into {len(payload)} bytes")
    start = _COUNT.size + few
    large, expected = np.frombuffer(payload[_COUNT.size : start], dtype=np.int8), -(-count // 2)
    symbols = np.frombuffer(restored(payload[start:], expected, "pairs"), dtype=np.uint8)
    codes = np.empty(2 * expected, dtype=np.int8)
    codes[::2], codes[1::2] = symbols // _SIDE, symbols % _SIDE
    codes = codes[:count] - np.int8(_SMALL)
    is_large = codes == _LARGE
    if np.count_nonzero(is_large) != few:
        raise CodecError(Reason.BAD_CODES, f"the pairs have {np.count_nonzero(is_large)} large codes, expected {few}")
    codes[is_large] = large
    return codes
