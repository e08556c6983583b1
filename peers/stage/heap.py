"""The heap of a peer: what a microbatch frees is kept for the next one, and large tensors get large pages.

A peer has several microbatches in flight, so that their graphs are not freed in the order in which they were made. By
default glibc gives such memory back to the kernel and gets it anew, page by page, each zeroed: with four peers of a
model of d = 512 some 0.6 million page faults a step of 16,384 tokens.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MOST = (1 << 31) - 1
_LARGEST_BLOCK = 1 << 30
"""Larger ones are mapped by themselves, and given back."""


def keep_freed_memory() -> None:
    """For the rest of the process; to be called before it has threads or imports torch.

    Does nothing where the C library is another, or where glibc is told how to do this by the environment.
    """
    if not sys.platform.startswith("linux"):
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch's: tensors of 2 MiB and more ask for large pages
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt(_M_ARENA_MAX, 1)  # the compute thread's own arena would consist of pieces of 64 MiB, given back when empty
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, _MOST)
