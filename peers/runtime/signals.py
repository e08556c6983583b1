"""Signals that ask a process to leave: Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it is closed."""

from __future__ import annotations

import signal
from types import FrameType


def leaving_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to leave. SIGHUP is not among them if the parent process ignores it, as `nohup`
    does.
    """
    asked = (signal.SIGINT, signal.SIGTERM)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def treat_all_as_ctrl_c() -> None:
    """From this call on, SIGTERM and SIGHUP do what Ctrl-C does, until the process handles them in its event loop.

    Otherwise a process that is asked to leave while it waits for a coordinator would end without its exit code, and
    would leave its sockets behind. Call this after slow imports: an exception within them can abort the process.
    """
    for number in leaving_signals():
        if number is not signal.SIGINT:
            signal.signal(number, _like_ctrl_c)


def _like_ctrl_c(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell starts its background jobs without Ctrl-C
        handler = signal.default_int_handler
    handler(signal.SIGINT, frame)


def let_the_next_end_it() -> None:
    """Call this after the first signal: then a second Ctrl-C or SIGTERM ends the process at once.

    A second SIGHUP does not: shells and supervisors send several when a session ends.
    """
    for number in leaving_signals():
        signal.signal(number, signal.SIG_IGN if number is signal.SIGHUP else signal.SIG_DFL)
