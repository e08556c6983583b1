"""Launchers: a process is started as asked, its end is known, and it does not outlive who started it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peers.launching.cold import Cold
from peers.launching.nursery import Nursery
from peers.launching.process import LaunchFailed

DEADLINE_S = 60.0
SLEEPER = """
import os, sys, time
print(sys.argv[1], os.environ["WORD"], os.getpgid(0) == os.getpid(), os.getpid(), sys.stdin.read() == "")
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from peers.launching.cold import Cold
from peers.launching.nursery import Nursery
launcher = {kind}()
ended = launcher.start([], Path("ended.txt"), file=Path("ending.py")).wait(60)
failed = launcher.start([], Path("failed.txt"), file=Path("failing.py")).wait(60)
assert (ended, failed) == (0, 1), (ended, failed)
launcher.start(["first"], Path("out.txt"), file=Path("sleeper.py"), environment={{"WORD": "second"}})
assert Path("out.txt").exists(), "whoever started it may read it at once"
time.sleep(600)
"""
COUNTER = """
from dataclasses import astuple
from swarm.compute.graph_counts import KNOWN, GraphCounts
for subject, counts in (("model", 0), (1, 2, 3)), (("model", 1), (4, 5, 6)):
    print(astuple(KNOWN.of(subject, lambda: print("counted") or GraphCounts(*counts))))
"""


def until(reached):
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
@pytest.mark.parametrize("kind", ["Cold", "Nursery"])
def test_it_runs_as_asked_and_does_not_outlive_a_killed_parent(kind: str, tmp_path: Path):
    for name, text in (("sleeper", SLEEPER), ("ending", "print('ended')"), ("failing", "raise ValueError('failed')")):
        (tmp_path / f"{name}.py").write_text(text)
    output = tmp_path / "out.txt"
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(kind=kind)], cwd=tmp_path)
    until(lambda: parent.poll() is None and output.exists() and b"\n" in output.read_bytes())
    assert (tmp_path / "ended.txt").read_text() == "ended\n"
    assert "ValueError: failed" in (tmp_path / "failed.txt").read_text()
    word, variable, own_group, pid, no_input = output.read_text().split()
    assert (word, variable, own_group, no_input) == ("first", "second", "True", "True")
    assert output.stat().st_mode & 0o077 == 0
    parent.kill()
    parent.wait()
    status = Path(f"/proc/{pid}/stat")
    until(lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_its_end_is_known(tmp_path: Path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    with Cold() as launcher:
        process = launcher.start(["x"], tmp_path / "a", file=tmp_path / "sleeper.py", environment={"WORD": "y"})
        with pytest.raises(TimeoutError, match=f"process {process.pid} has not ended within 0 s"):
            process.wait(0)
        process.send(signal.SIGKILL)
        assert process.wait(DEADLINE_S) == process.code == -signal.SIGKILL
        process.send(signal.SIGKILL)  # to nobody
        failing = launcher.start(["no-such-command"], tmp_path / "b")
        assert failing.wait(DEADLINE_S) == 2 and "no-such-command" in (tmp_path / "b").read_text()


def test_children_of_a_nursery_know_what_earlier_ones_have_counted(tmp_path: Path):
    (tmp_path / "counter.py").write_text(COUNTER)
    with Nursery() as nursery:
        for name in ("first", "second"):
            child = nursery.start([name], tmp_path / name, file=tmp_path / "counter.py")
            assert child.wait(DEADLINE_S) == 0, (tmp_path / name).read_text()
    first, second = ((tmp_path / name).read_text() for name in ("first", "second"))
    assert first == "counted\n(1, 2, 3)\ncounted\n(4, 5, 6)\n"
    assert second == "(1, 2, 3)\n(4, 5, 6)\n", "nothing is counted again, and no count is taken for another"


def test_a_nursery_that_dies_says_so(tmp_path: Path):
    with Nursery() as nursery:
        nursery._process.kill()
        with pytest.raises(LaunchFailed, match="has ended"):
            nursery.start(["events"], tmp_path / "out.txt")
