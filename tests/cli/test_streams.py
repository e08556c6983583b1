"""Standard streams that are closed, of another encoding, without a reader or with one that takes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peers.runtime.signals import leaving_signals

_ENDED = "import sys\nopen(sys.argv[1], 'w').write('worked to the end')\n"


def lasting(body: str) -> list[str]:
    """A program that prints with `body`, and then leaves a note in the file it is given."""
    begin = "import os, sys, time\nfrom peers.runtime import streams\nstreams.mend()\nstreams.outlive_reader()\n"
    return [sys.executable, "-c", f"{begin}{body}\n{_ENDED}"]


PRINT_FOR_LONG = "for i in range(40):\n    print('line', i, 'x' * 200)\n    print('also', i, file=sys.stderr)"


@pytest.mark.parametrize("stream", ["stdout", "stderr", "both"])
def test_the_reader_dies_and_the_work_goes_on(stream: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    targets = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    targets.update({name: writing for name in targets if stream in (name, "both")})
    note = tmp_path / "note"
    done = subprocess.run([*lasting(PRINT_FOR_LONG), str(note)], **targets, timeout=60, check=False)  # type: ignore[call-overload]
    os.close(writing)
    assert done.returncode == 0 and note.read_text() == "worked to the end"


def test_a_reader_that_takes_nothing_holds_up_nobody(tmp_path: Path) -> None:
    """A pager that nobody turns, a stopped terminal: 400 kB are more than a pipe holds."""
    note = tmp_path / "note"
    body = "for i in range(2000):\n    print('line', i, 'x' * 200)"
    child = subprocess.Popen([*lasting(body), str(note)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.wait(30) == 0 and note.read_text() == "worked to the end"
        assert child.stdout is not None and child.stdout.readline().startswith("line 0 ")
    finally:
        child.kill()
        child.communicate()


def test_a_reader_that_comes_back_is_told_again(tmp_path: Path) -> None:
    body = "for i in range(1000):\n    print('line', i, 'x' * 200)\nsys.stdin.readline()\nprint('at last')"
    child = subprocess.Popen(
        [*lasting(body), str(tmp_path / "note")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    time.sleep(3)
    assert child.stdin is not None and child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    while child.stdout.read(1 << 16):
        pass
    os.set_blocking(child.stdout.fileno(), True)
    out, _ = child.communicate("\n", timeout=30)
    assert "at last" in out


@pytest.mark.parametrize("target", ["/dev/full"])
def test_a_full_disk_behind_the_output_costs_lines_only(target: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with open(target, "w") as full:
        done = subprocess.run([*lasting(PRINT_FOR_LONG), str(note)], stdout=full, timeout=60, check=False)
    assert done.returncode == 0 and note.read_text() == "worked to the end"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_never_those_of_the_next_file(closed: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    body = "number = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\nassert number > 2, number\nprint('word')"
    program = tmp_path / "program.py"
    program.write_text(lasting(body)[2])
    subprocess.run(["bash", "-c", f"exec {sys.executable} {program} {note} {closed}"], timeout=60, check=True)
    assert note.read_text() == "worked to the end"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_signs_that_an_encoding_lacks_are_spelled_out(encoding: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*lasting("print('stage … of 2·2, \\ufffd')"), str(tmp_path / "note")],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert "stage" in done.stdout.decode(encoding)


def cli(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "peers", *arguments]


def test_a_short_command_whose_reader_has_gone_ends_well() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(cli("--version"), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_short_command_whose_output_cannot_be_kept_says_so() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(cli("--version"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_a_command_without_any_stream_ends_as_it_would() -> None:
    line = f"exec {sys.executable} -m peers --version <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], timeout=60, check=False).returncode == 0


def test_a_terminal_that_closes_asks_to_leave_unless_nohup_says_otherwise() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert signal.SIGHUP in leaving_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signal.SIGHUP not in leaving_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
