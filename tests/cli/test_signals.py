"""A process that is asked to leave before it handles signals itself ends as with Ctrl-C, and cleans up."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peers.runtime.signals import ends_when_asked
from swarm.events import EventLog, PeerSeen

WAITING = """
import asyncio, signal, sys
from peers.runtime.core_loop import exit_code

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever has started the tests, such as nohup
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)

async def wait() -> str:
    try:
        print("waiting", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return "heard"
    finally:
        print("cleaned up", flush=True)

try:
    sys.exit(exit_code(wait()))
except KeyboardInterrupt:
    sys.exit(130)
"""


def ended(number: signal.Signals, *ignored: str, program: str = WAITING) -> tuple[int, str]:
    """Exit code and output of a process that waits, after a signal and then a line of input."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *ignored], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    output, _ = process.communicate("\n", timeout=60)
    return process.returncode, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_waits_is_asked_to_leave_and_cleans_up(number: signal.Signals) -> None:
    assert ended(number) == (130, "cleaned up\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_background_job_of_a_shell_hears_it_too(number: signal.Signals) -> None:
    code, output = ended(number, "SIGINT")
    assert code == 130 and output == "cleaned up\n"


def test_what_nohup_has_started_outlives_its_terminal() -> None:
    assert ended(signal.SIGHUP, "SIGHUP") == (0, "cleaned up\n")


STUBBORN = """
import sys
try:
    print("importing", flush=True)
    sys.stdin.readline()
except BaseException:  # as a library does that then imports something else instead
    pass
"""


def test_ctrl_c_within_an_import_that_ignores_it_ends_the_process(tmp_path: Path) -> None:
    """It was lost, so that the process went on; or a library was imported again, and the process ended with code 1."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from peers.runtime.signals import ends_when_asked\n"
        "with ends_when_asked(): import stubborn\n"
        "print('went on')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate("\n", timeout=60)
    assert (process.returncode, output) == (130, "")


def test_ctrl_c_elsewhere_does_what_it_usually_does() -> None:
    with pytest.raises(KeyboardInterrupt), ends_when_asked():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_event_loop_handles_ctrl_c_itself_after_the_imports() -> None:
    guarded = WAITING.replace(
        "try:\n    sys.exit",
        "from peers.runtime.signals import ends_when_asked\ntry:\n    with ends_when_asked(): sys.exit",
    )
    assert guarded != WAITING
    assert ended(signal.SIGINT, program=guarded) == (130, "cleaned up\n")


def started(*arguments: str, program: str = "from peers.entry import main; main()") -> subprocess.Popen[str]:
    """`swarm-peer` with these arguments. Its signals do what they do in a terminal, however the tests were started."""
    reset = "from signal import *; signal(1, SIG_DFL); signal(2, default_int_handler); signal(15, SIG_DFL)\n"
    return subprocess.Popen([sys.executable, "-c", reset + program, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_only_shows_ends_with_the_same_code_and_a_whole_line(
    tmp_path: Path, number: signal.Signals
) -> None:
    EventLog(tmp_path / "events.jsonl", lambda: 1.0).append(PeerSeen("one.1"))
    process = started("events", str(tmp_path), "--follow")
    assert process.stdout is not None
    assert "one.1" in process.stdout.readline()
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_dashboard_ends_with_the_same_code(tmp_path: Path, number: signal.Signals) -> None:
    EventLog(tmp_path / "events.jsonl", lambda: 1.0).append(PeerSeen("one.1"))
    process = started("dashboard", str(tmp_path), "--address", "127.0.0.1:0")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("dashboard: ")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_ctrl_c_while_the_command_line_itself_is_imported_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from peers.entry import main; main()"
    process = started("--help", program=program)
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (130, "")
