"""Padding: bytes without content that fill a pause of a connection, so that it sends fast after the pause."""

from __future__ import annotations

from dataclasses import dataclass, field

PADDED_KINDS = ("forward", "backward", "sums")
"""The kinds of data before which padding is sent: the first of LINK_KINDS."""
MAX_FILLER = 32 << 10
"""Largest size of `Padding.filler`, bytes."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The receiver drops it. The drivers handle it, not the cores."""

    kind: int
    """An index into PADDED_KINDS: the padding travels on the stream of such data, and so on the same connection."""
    filler: bytes = field(repr=False)
