"""The heap of a peer: what a microbatch frees is kept for the next one, and all of it may have large pages.

A peer has several microbatches in flight, so that their graphs are not freed in the order in which they were made. By
default glibc gives such memory back to the kernel and gets it anew, page by page, each zeroed: with four peers of a
model of d = 512 some 0.6 million page faults a step of 16,384 tokens.

Large pages are asked for once, for addresses that the heap has yet to grow into. Asked for tensor by tensor (as torch
does if THP_MEM_ALLOC_ENABLE is set), each begins at a multiple of 2 MiB, and what lies between is too small for others.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_NEVER = -1
_LARGEST_BLOCK = 1 << 30
"""Larger ones are mapped by themselves, and given back."""
_MAPPED_BLOCKS = 1 << 16
"""glibc's default."""
_MADV_HUGEPAGE = 14
_LARGE_PAGE = 2 << 20
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"


def keep_freed_memory() -> None:
    """For the rest of the process; to be called before it has threads or imports torch.

    Does nothing where the C library is another, or where glibc is told how to do this by the environment.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None or any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt(_M_ARENA_MAX, 1)  # the compute thread's own arena would consist of pieces of 64 MiB, given back when empty
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    mallopt(_M_MMAP_MAX, 0)
    if _addresses_are_free():
        _ask_for_large_pages(libc, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    mallopt(_M_MMAP_MAX, _MAPPED_BLOCKS)


def _addresses_are_free() -> bool:
    """Whether nobody counts addresses that are not used: neither a limit of this process nor a strict kernel."""
    limits = (resource.getrlimit(what)[0] for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    try:
        strict = _OVERCOMMIT.read_text().strip() == _STRICT
    except OSError:
        strict = True
    return not strict and all(limit == resource.RLIM_INFINITY for limit in limits)


def _ask_for_large_pages(libc: ctypes.CDLL, nbytes: int) -> None:
    """For so much of the heap: a block is taken, which costs addresses alone, and freed. Without them it works too."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = libc.malloc(nbytes)
    if not block:  # the kernel does not promise so much
        return
    first = -(-block // _LARGE_PAGE) * _LARGE_PAGE
    last = (block + nbytes) // _LARGE_PAGE * _LARGE_PAGE
    libc.madvise(first, last - first, _MADV_HUGEPAGE)
    libc.free(block)
