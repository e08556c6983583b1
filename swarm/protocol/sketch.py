"""Sketches: 64 numbers that summarise a vector of millions of numbers. swarm/compute/sketching.py makes them.

The sketch of a sum is the sum of the sketches, exactly, modulo 2^64. So the sketches of all contributions add up to the
sketch of their sum, unless a peer has reported a false one. As signed numbers, sketches give the length of a vector, to
about a tenth, and the angle between two vectors.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence

PROJECTIONS = 64
_FORM = struct.Struct(f"<{PROJECTIONS}q")
SKETCH_BYTES = _FORM.size
"""Size of one sketch as it is sent."""
_WRAP = 1 << 64

Sketch = tuple[int, ...]
"""(PROJECTIONS,) signed 64-bit integers."""
NOTHING: Sketch = (0,) * PROJECTIONS
"""The sketch of a vector of zeros."""


def read(sent: bytes, which: int = 0) -> Sketch | None:
    """Return one of several sketches that follow each other, by its number `which`. None if there are fewer."""
    start = which * SKETCH_BYTES
    return _FORM.unpack_from(sent, start) if len(sent) >= start + SKETCH_BYTES else None


def written(sketch: Sequence[int]) -> bytes:
    return _FORM.pack(*sketch)


def added(sketches: Iterable[Sketch]) -> Sketch:
    """The sketch of the sum of vectors, from the sketches of these vectors; modulo 2^64."""
    total = [0] * PROJECTIONS
    for sketch in sketches:
        total = [one + two for one, two in zip(total, sketch, strict=True)]
    return tuple((each + _WRAP // 2) % _WRAP - _WRAP // 2 for each in total)


def seal_of(sketches: Iterable[Sketch]) -> int:
    """A 63-bit hash of sketches, in this order; never 0. Whoever knows the sketches of all contributions can compute it
    for their sum.
    """
    found = hashlib.blake2b(b"".join(map(written, sketches)), digest_size=8).digest()
    return (int.from_bytes(found, "little") >> 1) or 1


def dot(one: Sequence[int], two: Sequence[int]) -> float:
    return float(sum(a * b for a, b in zip(one, two, strict=True)))


def length(sketch: Sequence[int]) -> float:
    return math.sqrt(dot(sketch, sketch))
