"""What a peer frees is there for the next microbatch: no page is given back and gotten anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys, threading
from peers.stage.heap import keep_freed_memory
keep_freed_memory()
import torch

def use():
    '''Tensors of a megabyte, freed in the order in which they came.'''
    held = [torch.ones(1 << 18) for _ in range(200)]
    while held:
        held.pop(0)

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def compute():
    use()
    before = faults()
    use()
    print(faults() - before)

thread = threading.Thread(target=compute)
thread.start()
thread.join()
"""
PAGES = 200 * (1 << 20) // os.sysconf("SC_PAGE_SIZE")


def printed(program: str, *words: str, **environment: str) -> float:
    """The number that a program prints in a process whose allocator only `environment` configures."""
    told = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", program, *words]
    return float(subprocess.run(command, env=told | environment, capture_output=True, check=True, timeout=120).stdout)


def faults(**environment: str) -> float:
    return printed(PROGRAM, **environment)


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="it is glibc that is told so")
def test_memory_that_was_used_once_is_not_gotten_anew() -> None:
    assert faults() < PAGES / 10
    assert faults(MALLOC_PERTURB_="0") > PAGES / 2, "who sets glibc's variables is left alone"


RETURNED = """
import os, sys
from pathlib import Path
from peers.stage.heap import keep_freed_memory, return_freed_memory
keep_freed_memory()
import torch

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1:]:
    return_freed_memory()
before = resident()
held = [torch.ones(1 << 18) for _ in range(200)]
beside = [bytes(1000) for _ in held]  # so that the end of the heap is in use
del held
print((resident() - before) >> 20)
"""


def kept(*words: str) -> float:
    """MiB that a process keeps of 200 that it has freed."""
    return printed(RETURNED, *words)


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="it is glibc that is told so")
def test_memory_is_returned_where_it_is_short() -> None:
    assert kept() > 150
    assert kept("short") < 20


ADDRESSES = """
import os, resource, sys
from pathlib import Path
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from peers.stage.heap import keep_freed_memory
keep_freed_memory()
print(int(Path("/proc/self/statm").read_text().split()[0]) / os.sysconf("SC_PHYS_PAGES"))
"""


def addresses(*limit: str) -> float:
    """Of a process, against the memory of the machine."""
    return printed(ADDRESSES, *limit)


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="it is glibc that is told so")
@pytest.mark.skipif(
    Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2", reason="this kernel counts what is promised"
)
def test_addresses_are_kept_free_where_they_are_limited() -> None:
    assert addresses() > 0.4, "for large pages"
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert addresses(str(whole)) < 0.3
