"""Heap: memory that was freed goes back to the system. The allocator would keep it for later.

A state of ten thousand peers is read from 10 MB of text, in pieces of all sizes: what these leave is not wanted again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _function(name: str) -> Callable[..., int] | None:
    """Of the C library of GNU; others have none."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found


_TRIM, _OPTION = _function("malloc_trim"), _function("mallopt")
_ARENAS = -8
"""M_ARENA_MAX of malloc.h."""


def share() -> None:
    """All threads take memory from one heap, and use what another has freed. Before any is started."""
    if _OPTION is not None:
        _OPTION(_ARENAS, 1)


def trim() -> None:
    """Takes milliseconds."""
    if _TRIM is not None:
        _TRIM(0)
