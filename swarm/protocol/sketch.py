"""Sketches: what 64 numbers tell of a vector that has millions. How they are made: swarm/compute/sketching.py.

A sketch adds up like the vectors that it is of: modulo 2^64, exactly. So the sketches of all contributions come to the
sketch of their sum, or somebody has not told the truth. Read as signed numbers they tell a vector's length, to about a
tenth, and the angle between two.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence

PROJECTIONS = 64
_FORM = struct.Struct(f"<{PROJECTIONS}q")
SKETCH_BYTES = _FORM.size
"""Of one sketch as it is sent."""
_WRAP = 1 << 64

Sketch = tuple[int, ...]
"""(PROJECTIONS,) signed 64-bit integers."""
NOTHING: Sketch = (0,) * PROJECTIONS
"""Of a vector of zeros."""


def read(sent: bytes, which: int = 0) -> Sketch | None:
    """Sketch number `which` of those that were sent one behind the other. None: there are not so many."""
    start = which * SKETCH_BYTES
    return _FORM.unpack_from(sent, start) if len(sent) >= start + SKETCH_BYTES else None


def written(sketch: Sequence[int]) -> bytes:
    return _FORM.pack(*sketch)


def added(sketches: Iterable[Sketch]) -> Sketch:
    """That of the sum of the vectors: modulo 2^64."""
    total = [0] * PROJECTIONS
    for sketch in sketches:
        total = [one + two for one, two in zip(total, sketch, strict=True)]
    return tuple((each + _WRAP // 2) % _WRAP - _WRAP // 2 for each in total)


def seal_of(sketches: Iterable[Sketch]) -> int:
    """A 63-bit hash of sketches, in this order; never 0. Who can add them up can compare it."""
    found = hashlib.blake2b(b"".join(map(written, sketches)), digest_size=8).digest()
    return (int.from_bytes(found, "little") >> 1) or 1


def dot(one: Sequence[int], two: Sequence[int]) -> float:
    return float(sum(a * b for a, b in zip(one, two, strict=True)))


def length(sketch: Sequence[int]) -> float:
    return math.sqrt(dot(sketch, sketch))
