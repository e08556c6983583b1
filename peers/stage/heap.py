"""The heap of a peer: memory that a microbatch frees is kept for the next one, in large pages.

A peer works on several microbatches at once, so their graphs are not freed in the order in which they were made. By
default, glibc returns such memory to the kernel and gets it again page by page, and the kernel zeroes each page: four
peers of a model with d = 512 have about 0.6 million page faults in a step of 16,384 tokens. If the memory is kept, the
gaps between used blocks take about as much memory as the graphs do. A peer without room for these gaps returns freed
memory instead.

Large pages are requested once, for addresses into which the heap will grow later. If they were requested for each
tensor (as torch does with THP_MEM_ALLOC_ENABLE), each tensor would begin at a multiple of 2 MiB, and the gaps would be
too small for other tensors.
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
"""Larger blocks are mapped separately, and returned to the kernel when freed."""
_SMALLEST_TENSOR = 256 << 10
"""The size, in bytes, from which blocks are mapped separately if memory is short."""
_MAPPED_BLOCKS = 1 << 16
"""The maximum number of mapped blocks: glibc's default."""
_MADV_HUGEPAGE = 14
_LARGE_PAGE = 2 << 20
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"


def keep_freed_memory() -> None:
    """Keep freed memory for the rest of the process. Call it before the process has threads or imports torch.

    Does nothing with another C library, or if the environment configures glibc's allocator.
    """
    libc = _unconfigured_glibc()
    if libc is None:
        return
    # a separate arena for the compute thread would consist of pieces of 64 MiB that are returned when empty
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_M_MMAP_MAX, 0)
    if _addresses_are_free():
        _ask_for_large_pages(libc, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    libc.mallopt(_M_MMAP_MAX, _MAPPED_BLOCKS)


def return_freed_memory() -> None:
    """Map later tensors separately and return them to the kernel when freed, so that no gaps remain between them.

    Steps then take up to half as long again. Does nothing where `keep_freed_memory` does nothing.
    """
    libc = _unconfigured_glibc()
    if libc is None:
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _SMALLEST_TENSOR)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_PAGE)
    libc.malloc_trim(0)  # free addresses at the end of the heap fit any tensor, and glibc would use them first


def _unconfigured_glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    told = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    return None if told or not hasattr(libc, "mallopt") else libc


def _addresses_are_free() -> bool:
    """True if unused addresses cost nothing: neither a limit of this process nor strict accounting by the kernel
    counts them.
    """
    limits = (resource.getrlimit(what)[0] for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    try:
        strict = _OVERCOMMIT.read_text().strip() == _STRICT
    except OSError:
        strict = True
    return not strict and all(limit == resource.RLIM_INFINITY for limit in limits)


def _ask_for_large_pages(libc: ctypes.CDLL, nbytes: int) -> None:
    """Ask for large pages for `nbytes` of the heap: allocate a block, which only reserves addresses, and free it."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = libc.malloc(nbytes)
    if not block:  # the kernel grants less
        return
    first = -(-block // _LARGE_PAGE) * _LARGE_PAGE
    last = (block + nbytes) // _LARGE_PAGE * _LARGE_PAGE
    libc.madvise(first, last - first, _MADV_HUGEPAGE)
    libc.free(block)
