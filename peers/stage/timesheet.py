"""The timesheet: how a peer spent its time in each training pass, from one Open to the next.

Six sums add up to that time. The compute thread's work is measured (swarm/compute/meter.py). The time between two
pieces of a reduction, in which the thread waits for other replicas, counts as reducing; all other idle time counts as
waiting. A step is applied when the next one opens, so the time of applying counts for the next one. Spans show the
same times for a drawing; neighbours are merged until there are few spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from swarm.compute.meter import BACKWARD, FORWARD, RECOVERING, REDUCING, WAITING, Stretch
from swarm.protocol.ids import Actor, Microbatch, PassId, PassKind, StageIndex
from swarm.protocol.messages import MAX_SPANS, WORK_KINDS, Open, Span, Work

FINEST_S = 0.001
"""Gaps and spans shorter than this are not shown."""


@dataclass(slots=True)
class _Sheet:
    """How the time of one pass was spent."""

    pass_id: PassId
    kind: PassKind
    stage: int
    own: frozenset[Microbatch]
    """The microbatches that were assigned to this peer at the opening. All others came to it because of a failure."""
    again: bool
    """True if an earlier attempt at this step was aborted."""
    start: float
    end: float | None = None


@dataclass
class Timesheet:
    """The sheets of all passes. Call `hear` for every Open and `applied` for every step; then `take` complete sheets.
    Times are those of the meter's clock.
    """

    me: Actor
    _open: _Sheet | None = None
    _closed: list[_Sheet] = field(default_factory=list)
    _stretches: list[Stretch] = field(default_factory=list)
    _newest: PassId | None = None

    def hear(self, opening: Open, now: float) -> bool:
        """Begin the sheet of a pass. Return True if that completes the previous sheet."""
        pass_id = opening.pass_id
        if self._newest is not None and pass_id <= self._newest:
            return False  # a repeat
        before, self._newest = self._newest, pass_id
        completed = self._close(now)
        for stage, table in enumerate(opening.tables):
            if self.me in table.roster:
                again = before is not None and before.step == pass_id.step and before.index == pass_id.index == 0
                self._open = _Sheet(pass_id, opening.kind, stage, table.assigned_to(self.me), again, now)
        return completed

    def applied(self, step: int, now: float) -> bool:
        """Note that a step is applied. Return True if no other pass has opened since: its sheet is then complete."""
        sheet = self._open
        return sheet is not None and sheet.pass_id == self._newest and sheet.pass_id.step == step and self._close(now)

    def take(self, done: Iterable[Stretch], current: Stretch | None) -> list[Work]:
        """Return the complete sheets. `done`: stretches of work since the last call; `current`: the stretch in
        progress.
        """
        self._stretches += done
        sheets, self._closed = self._closed, []
        until = [*self._stretches, *([] if current is None else [current])]
        works = [_work(sheet, until) for sheet in sheets]
        if sheets:
            last = sheets[-1].end or 0.0
            self._stretches = [stretch for stretch in self._stretches if stretch.end > last]
        elif self._open is None:
            self._stretches.clear()
        return works

    def _close(self, now: float) -> bool:
        sheet, self._open = self._open, None
        if sheet is None or sheet.kind is not PassKind.TRAIN:
            return False
        sheet.end = now
        self._closed.append(sheet)
        return True


def _work(sheet: _Sheet, stretches: Sequence[Stretch]) -> Work:
    assert sheet.end is not None
    start, end = sheet.start, sheet.end
    mine = []
    for stretch in stretches:
        clipped = Stretch(_kind(stretch, sheet), stretch.microbatch, max(stretch.start, start), min(stretch.end, end))
        if clipped.end > clipped.start:
            mine.append(clipped)
    mine = _with_waits_of_reduces(mine)
    seconds = [0.0] * len(WORK_KINDS)
    for stretch in mine:
        seconds[stretch.kind] += stretch.end - stretch.start
    seconds[WAITING] = max(0.0, end - start - sum(seconds))
    return Work(sheet.pass_id, StageIndex(sheet.stage), tuple(seconds), _spans(mine, start))


def _kind(stretch: Stretch, sheet: _Sheet) -> int:
    computes = stretch.kind in (FORWARD, BACKWARD)
    return RECOVERING if computes and (sheet.again or stretch.microbatch not in sheet.own) else stretch.kind


def _with_waits_of_reduces(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Merge the pieces of a reduction, from the first to the last, if there is no other work between them."""
    found: list[Stretch] = []
    for stretch in stretches:
        if found and found[-1].kind == stretch.kind == REDUCING:
            stretch = found.pop()._replace(end=stretch.end)
        found.append(stretch)
    return found


def _spans(stretches: Sequence[Stretch], start: float) -> tuple[Span, ...]:
    """At most MAX_SPANS spans. Neighbours of one kind are merged. While there are too many, the shortest spans are
    merged into their neighbours.
    """
    shortest, spans = FINEST_S, _merged(stretches, FINEST_S, alike=True)
    while len(spans) > MAX_SPANS:
        shortest *= 2
        spans = _merged(_merged(spans, shortest, alike=True), shortest, alike=False)
    shown = []
    for span in spans:
        begun, length = round(1000 * (span.start - start)), round(1000 * (span.end - span.start))
        if length:
            shown.append(Span(span.kind, span.microbatch, begun, length))
    return tuple(shown)


def _merged(stretches: Iterable[Stretch], shortest: float, *, alike: bool) -> list[Stretch]:
    """Merge stretches of time. `alike`: merge neighbours of one kind whose gap is shorter. Otherwise merge every
    shorter stretch and its gap into its neighbours.
    """
    found: list[Stretch] = []
    for stretch in stretches:
        last = found[-1] if found else None
        if last is None:
            found.append(stretch)
            continue
        gap = stretch.start - last.end
        lengths = last.end - last.start, stretch.end - stretch.start
        if alike and last.kind == stretch.kind and gap < shortest:
            found[-1] = last._replace(end=stretch.end)
        elif not alike and gap + min(lengths) < shortest:
            longer = last if lengths[0] >= lengths[1] else stretch
            found[-1] = longer._replace(start=last.start, end=stretch.end)
        else:
            found.append(stretch)
    return found
