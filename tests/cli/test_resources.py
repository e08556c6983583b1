"""What a peer tells of the resources that it and its libp2p daemon have used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from peers.stage.resources import measure

_WORKS = "import sys, time\nwhile time.process_time() < 0.05: pass\nprint(flush=True)\nsys.stdin.read()"


@contextmanager
def busy_child() -> Iterator[int]:
    """The process id of a child that has used 0.05 seconds of CPU time."""
    argv = [sys.executable, "-I", "-S", "-c", _WORKS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        yield child.pid


async def test_the_time_of_the_daemon_is_measured_and_of_no_other_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("all processes of the machine were looked at")

    monkeypatch.setattr(psutil, "pids", refuse)
    with busy_child() as daemon, busy_child():
        times = psutil.Process(daemon).cpu_times()
        found = measure(7, 4096, daemon)
        assert found.daemon_cpu_seconds == pytest.approx(times.user + times.system) and found.daemon_cpu_seconds > 0
        assert (found.version, found.peak_retained_bytes) == (7, 4096)
        assert min(found.resident_bytes, found.peak_resident_bytes, found.cpu_seconds) > 0 and found.tasks == 1
        assert measure(7, 4096, None).daemon_cpu_seconds == 0
    assert measure(7, 4096, daemon).daemon_cpu_seconds == 0, "it has ended"
