"""Signals that ask a process to leave: Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it is closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C has ended."""
_IMPORT = "<frozen importlib._bootstrap>"
"""The file name of Python's import system, in stack frames."""


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Within this context, Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that the process cleans up and leaves
    no half-written line behind. During an import they end the process at once, with INTERRUPTED.

    Some libraries ignore an exception within their import, so that the process would continue, or try the import again
    and then fail with an internal error.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _unless_importing)
    others = {
        number: signal.signal(number, _like_ctrl_c) for number in leaving_signals() if number is not signal.SIGINT
    }
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _unless_importing:
            signal.signal(signal.SIGINT, usual)
        for number, before in others.items():
            if signal.getsignal(number) is _like_ctrl_c:
                signal.signal(number, before)


def _unless_importing(number: int, frame: FrameType | None) -> None:
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename == _IMPORT:
            os._exit(INTERRUPTED)
        caller = caller.f_back
    signal.default_int_handler(number, frame)


def leaving_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to leave, Ctrl-C first. SIGHUP is not among them if the parent process ignores
    it, as `nohup` does.
    """
    asked = (signal.SIGINT, signal.SIGTERM)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def treat_all_as_ctrl_c() -> None:
    """From this call on, SIGTERM and SIGHUP do what Ctrl-C does, until the process handles them in its event loop.

    An event loop handles Ctrl-C only if nothing else does. So call this before the loop runs and after slow imports: an
    exception within them can abort the process.
    """
    if signal.getsignal(signal.SIGINT) is _unless_importing:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # an event loop replaces this one only
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
