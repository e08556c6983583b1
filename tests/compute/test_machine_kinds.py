"""Replicas hold the same bits, whatever the instruction set and the number of threads of their machines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

KINDS = ("default", "avx2", "avx512")
LIBRARY_KINDS = ("SSE4_2", "AVX2")
"""What torch's mathematical library is told to use, whatever torch itself uses."""
THREADS = (1, 3)
PROGRAM = Path(__file__).with_name("machine_kind.py")
CONTROLS = ("torch's own updates", "torch's own normal values")


def has(kind: str) -> bool:
    """torch falls back in silence where the CPU lacks an instruction set."""
    levels = ("DEFAULT", "AVX2", "AVX512")
    return levels.index(kind.upper()) <= levels.index(torch.backends.cpu.get_cpu_capability())


needs = [pytest.param(k, marks=pytest.mark.skipif(not has(k), reason=f"this CPU lacks {k}")) for k in KINDS]


@pytest.fixture(scope="module")
def digests() -> Callable[..., dict[str, str]]:
    wanted = [(kind, threads, "") for kind in KINDS if has(kind) for threads in THREADS]
    wanted += [("default", 1, library) for library in LIBRARY_KINDS]
    run = subprocess.run([sys.executable, str(PROGRAM), json.dumps(wanted)], capture_output=True, check=True, text=True)
    found = dict(zip(wanted, map(json.loads, run.stdout.splitlines()), strict=True))
    return lambda kind, threads, library="": found[kind, threads, library]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", needs)
def test_every_kind_of_machine_computes_the_same(kind: str, threads: int, digests) -> None:
    first, found = digests("default", 1), digests(kind, threads)
    assert first.keys() == found.keys()
    assert [name for name in first if name not in CONTROLS and first[name] != found[name]] == []


@pytest.mark.skipif(not has("avx2"), reason="this CPU lacks avx2")
@pytest.mark.parametrize("control", CONTROLS)
def test_the_control_differs(control: str, digests) -> None:
    """What was used before: if it agreed too, the test above would prove nothing."""
    assert digests("default", 1)[control] != digests("avx2", 1)[control]


@pytest.mark.parametrize("library", LIBRARY_KINDS)
def test_the_mathematical_library_changes_nothing(library: str, digests) -> None:
    first, found = digests("default", 1), digests("default", 1, library)
    assert [name for name in first if name not in CONTROLS and first[name] != found[name]] == []
