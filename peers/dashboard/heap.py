"""Returns freed memory to the system, because the allocator would keep it.

The state of ten thousand peers is read from 10 MB of text, in pieces of all sizes. That memory is not needed again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of the GNU C library; None if the C library lacks it."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found


_TRIM, _OPTION = _function("malloc_trim"), _function("mallopt")
_ARENAS = -8
"""M_ARENA_MAX of malloc.h."""


def share() -> None:
    """Make all threads allocate from one heap, and reuse each other's memory. Call it before any thread starts."""
    if _OPTION is not None:
        _OPTION(_ARENAS, 1)


def trim() -> None:
    """Return unused memory to the system. Takes milliseconds."""
    if _TRIM is not None:
        _TRIM(0)
