"""A process that is asked to leave before it handles signals itself ends as with Ctrl-C, and cleans up."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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


def ended(number: signal.Signals, *ignored: str) -> tuple[int, str]:
    """Exit code and output of a process that waits, after a signal and then a line of input."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, *ignored], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
