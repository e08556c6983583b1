"""Decodes the tensor types of GGUF files to fp32: plain floats, and blocks of 32 values with a scale.

The formulas are those of ggml's reference (ggml-quants.c): value = d·q, or d·q + m, with d and m in fp16 and q a small
integer. All arithmetic is in fp32, so every reader of a file gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_QK = 32


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    values: int
    """Number of values in a block."""
    nbytes: int
    """Bytes of a block."""
    decode: Callable[[np.ndarray], np.ndarray]
    """Decodes whole blocks, uint8, to their values in order, fp32."""


def _f32(raw: np.ndarray) -> np.ndarray:
    return np.frombuffer(raw.tobytes(), dtype="<f4")


def _f16(raw: np.ndarray) -> np.ndarray:
    return np.frombuffer(raw.tobytes(), dtype="<f2").astype(np.float32)


def _bf16(raw: np.ndarray) -> np.ndarray:
    return (np.frombuffer(raw.tobytes(), dtype="<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: np.ndarray) -> np.ndarray:
    blocks = raw.reshape(-1, 34)
    values: np.ndarray = (_half(blocks, 0) * blocks[:, 2:].view(np.int8)).reshape(-1)
    return values


def _q4_0(raw: np.ndarray) -> np.ndarray:
    blocks = raw.reshape(-1, 18)
    values: np.ndarray = (_half(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)).reshape(-1)
    return values


def _q4_1(raw: np.ndarray) -> np.ndarray:
    blocks = raw.reshape(-1, 20)
    values: np.ndarray = (_half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)).reshape(-1)
    return values


def _q5_0(raw: np.ndarray) -> np.ndarray:
    blocks = raw.reshape(-1, 22)
    values: np.ndarray = (_half(blocks, 0) * (_nibbles(blocks[:, 6:]) + _fifth(blocks[:, 2:6]) - 16)).reshape(-1)
    return values


def _q5_1(raw: np.ndarray) -> np.ndarray:
    blocks = raw.reshape(-1, 24)
    values: np.ndarray = (
        _half(blocks, 0) * (_nibbles(blocks[:, 8:]) + _fifth(blocks[:, 4:8])) + _half(blocks, 2)
    ).reshape(-1)
    return values


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The fp16 number at byte `at` of each block: (blocks, 1) fp32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """(blocks, 16) bytes → (blocks, 32) fp32: the low halves first, then the high ones."""
    codes: np.ndarray = np.concatenate((packed & 0xF, packed >> 4), axis=1).astype(np.float32)
    return codes


def _fifth(packed: np.ndarray) -> np.ndarray:
    """(blocks, 4) bytes → (blocks, 32) fp32: 16 if the fifth bit of a value is set, else 0."""
    bits: np.ndarray = np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32) * 16
    return bits


BLOCKS: dict[int, Block] = {
    0: Block("F32", 1, 4, _f32),
    1: Block("F16", 1, 2, _f16),
    30: Block("BF16", 1, 2, _bf16),
    8: Block("Q8_0", _QK, 34, _q8_0),
    2: Block("Q4_0", _QK, 18, _q4_0),
    3: Block("Q4_1", _QK, 20, _q4_1),
    6: Block("Q5_0", _QK, 22, _q5_0),
    7: Block("Q5_1", _QK, 24, _q5_1),
}

UNKNOWN: dict[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    20: "IQ4_NL",
    23: "IQ4_XS",
}
"""Names of common types that are not supported."""
