"""The times of one log, made monotone: a machine's clock may be wrong for a while, or be set forward or back.

* Lines are ahead if more lines follow directly with earlier times. They get the time of the line before them.
* A time behind the line before it gets that line's time. If the clock stays more than `JUMP_S` behind, the times after
  that are shifted by the difference until they have caught up, so that durations are right.
* A gap in the times stays if no earlier time follows: nothing was written meanwhile.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from peers.dashboard.history.tail import Line

JUMP_S = 600.0
"""Seconds by which times must jump to be doubted."""
LOOK_AHEAD = 1024
"""Number of lines that are compared after a jump forward."""
_TICK_S = 1e-6
"""Seconds between two lines whose times were changed: lines keep their order, and the log page finds each of them."""


class Clock(NamedTuple):
    """The clock of a log after a line."""

    at: float
    """The line's time, as changed."""
    shift: float = 0.0
    """Seconds that are added to the times because the clock was set back."""
    number: int = 0
    """Number of lines until then."""


class Timed(NamedTuple):
    """A line whose `at` may be changed."""

    line: Line
    shift: float
    is_gap: bool
    """True if the line's time is far after that of the line before it."""


def monotone(lines: Iterator[Line], clock: Clock | None) -> Iterator[Timed]:
    """The lines with times that never decrease. `clock`: after the line before the first one; None: there is none."""
    before: float | None = None if clock is None else clock.at
    shift = 0.0 if clock is None else clock.shift
    waiting: deque[Line] = deque()
    ahead = 0
    """How many of the next lines are known to be ahead."""
    while True:
        line = waiting.popleft() if waiting else next(lines, None)
        if line is None:
            return
        raw = at = line.at
        is_gap = False
        if ahead and before is not None:
            ahead, at = ahead - 1, before + _TICK_S
        elif before is None or raw > before + JUMP_S:
            waiting.extend(itertools.islice(lines, LOOK_AHEAD - len(waiting)))
            ahead = _lines_ahead(raw, waiting)
            if ahead:
                at = waiting[ahead - 1].at if before is None else before + _TICK_S
                ahead -= 1
            else:
                shift, is_gap = 0.0, True
        elif raw >= before:
            shift = 0.0
        elif shift or raw < before - JUMP_S:
            at = raw + shift
            if not before - JUMP_S <= at <= before + JUMP_S:
                at, shift = before + _TICK_S, before - raw
            at = max(at, before + _TICK_S)
        else:
            at = before + _TICK_S
        before = at
        yield Timed(line if at == raw else line._replace(at=at), shift, is_gap)


def _lines_ahead(at: float, later: Iterable[Line]) -> int:
    """How many lines are ahead, among a line at `at` and `later` ones. 0: the line is not."""
    ahead, back = 1, 0
    for line in later:
        if line.at < at - JUMP_S:
            back += 1
            if back > ahead:
                return ahead
        elif back:
            return 0
        else:
            ahead += 1
    return 0
