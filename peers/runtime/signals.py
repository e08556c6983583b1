"""Signals that ask a process to leave: Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends when it is closed."""

from __future__ import annotations

import signal


def leaving_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to leave. SIGHUP is not among them if the parent process ignores it, as `nohup`
    does.
    """
    asked = (signal.SIGINT, signal.SIGTERM)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def let_the_next_end_it() -> None:
    """Call this after the first signal: then a second Ctrl-C or SIGTERM ends the process at once.

    A second SIGHUP does not: shells and supervisors send several when a session ends.
    """
    for number in leaving_signals():
        signal.signal(number, signal.SIG_IGN if number is signal.SIGHUP else signal.SIG_DFL)
