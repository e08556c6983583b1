"""Heap: memory that was freed goes back to the system. The allocator would keep it for later.

A state of ten thousand peers is read from 10 MB of text, in pieces of all sizes: what these leave is not wanted again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _trimmer() -> Callable[[int], int] | None:
    """Of the C library of GNU; others have none."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found


_TRIM = _trimmer()


def trim() -> None:
    """Takes milliseconds."""
    if _TRIM is not None:
        _TRIM(0)
