"""A timesheet adds up to the step, whatever happened in it, and its spans are few."""

from __future__ import annotations

import random

from peers.stage.timesheet import Timesheet
from swarm.compute.meter import APPLYING, BACKWARD, FORWARD, RECOVERING, REDUCING, WAITING, Stretch
from swarm.protocol.ids import Actor, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import UNTOLD, Open, Span, StageTable, Work

ME, OTHER = Actor("me", 1), Actor("other", 1)
TABLE = StageTable(0, (ME, OTHER), (0, 1, 0, 1))


def opening(step: int, term: int = 1, index: int = 0, table: StageTable = TABLE) -> Open:
    kind = PassKind.EVALUATE if index else PassKind.TRAIN
    return Open(PassId(Term(term), StepNumber(step), index), kind, (UNTOLD, table), None)


def sheet_of(*stretches: Stretch, end: float = 10.0, again: bool = False) -> Work:
    """Of a pass from 0 to `end`."""
    sheet = Timesheet(ME)
    if again:
        assert not sheet.hear(opening(0), -5.0)
        assert sheet.hear(opening(0, term=2), 0.0)
    else:
        assert not sheet.hear(opening(0), 0.0)
    assert sheet.hear(opening(1, term=2), end)
    return sheet.take(stretches, None)[-1]


def test_six_sums_add_up_to_the_time_from_one_opening_to_the_next() -> None:
    work = sheet_of(
        Stretch(APPLYING, -1, 0.0, 1.0),
        Stretch(FORWARD, 0, 1.5, 2.5),
        Stretch(FORWARD, 2, 2.5, 3.5),
        Stretch(BACKWARD, 0, 4.0, 6.0),
        Stretch(REDUCING, -1, 7.0, 7.25),
        Stretch(REDUCING, -1, 8.0, 8.5),  # it waited for a sibling's part
    )
    assert (work.pass_id, work.stage) == (PassId(Term(1), StepNumber(0)), 1)
    assert work.seconds == (2.0, 2.0, 3.5, 1.5, 1.0, 0.0) and sum(work.seconds) == 10.0
    assert work.spans == (
        Span(APPLYING, -1, 0, 1000),
        Span(FORWARD, 0, 1500, 2000),
        Span(BACKWARD, 0, 4000, 2000),
        Span(REDUCING, -1, 7000, 1500),
    )


def test_what_came_to_it_later_and_a_second_attempt_is_work_done_again() -> None:
    stretches = (Stretch(FORWARD, 0, 1.0, 2.0), Stretch(FORWARD, 1, 2.0, 4.0), Stretch(BACKWARD, 1, 4.0, 7.0))
    work = sheet_of(*stretches)
    assert work.seconds[FORWARD] == 1.0 and work.seconds[RECOVERING] == 5.0, "microbatch 1 was the other's"
    assert [span.kind for span in work.spans] == [FORWARD, RECOVERING]
    work = sheet_of(*stretches, again=True)
    assert work.pass_id.term == 2 and work.seconds[RECOVERING] == 6.0


def test_what_reaches_over_an_opening_belongs_to_both_and_is_lost_in_neither() -> None:
    sheet = Timesheet(ME)
    sheet.hear(opening(0), 0.0)
    assert sheet.hear(opening(1), 10.0)
    (first,) = sheet.take([Stretch(FORWARD, 0, 1.0, 2.0)], Stretch(BACKWARD, 0, 8.0, 11.0))
    assert first.seconds[BACKWARD] == 2.0
    assert sheet.hear(opening(2), 20.0)
    (second,) = sheet.take([Stretch(BACKWARD, 0, 8.0, 13.0)], None)
    assert second.seconds[BACKWARD] == 3.0 and second.spans == (Span(BACKWARD, 0, 0, 3000),)


def test_repeated_openings_say_nothing_new_and_evaluations_have_no_sheet() -> None:
    sheet = Timesheet(ME)
    assert not sheet.hear(opening(0), 0.0) and not sheet.hear(opening(0), 3.0)
    assert sheet.hear(opening(0, index=1), 10.0)
    assert not sheet.hear(opening(0), 11.0), "told again, late"
    assert not sheet.hear(opening(1), 15.0)
    works = sheet.take([Stretch(FORWARD, 0, 12.0, 14.0)], None)
    assert [work.pass_id.step for work in works] == [0] and works[0].seconds[WAITING] == 10.0


def test_without_a_part_in_a_pass_there_is_no_sheet() -> None:
    sheet = Timesheet(ME)
    sheet.hear(opening(0, table=StageTable(0, (OTHER,), (0, 0))), 0.0)
    assert not sheet.hear(opening(1), 5.0)
    assert sheet.take([], None) == []


def test_the_last_step_ends_when_it_is_applied() -> None:
    sheet = Timesheet(ME)
    sheet.hear(opening(0), 0.0)
    assert not sheet.applied(7, 1.0), "another step"
    assert sheet.applied(0, 4.0)
    assert not sheet.applied(0, 5.0)
    (work,) = sheet.take([Stretch(APPLYING, -1, 3.0, 4.0)], None)
    assert sum(work.seconds) == 4.0
    sheet.hear(opening(1), 6.0)
    sheet.hear(opening(2), 8.0)
    assert not sheet.applied(1, 8.5), "applied since the next one opened: its sheet is complete"


def test_spans_are_few_however_much_was_done() -> None:
    random.seed(1)
    now, stretches = 0.0, []
    for number in range(5000):
        kind = random.choice((FORWARD, BACKWARD, BACKWARD, APPLYING))
        start = now + random.expovariate(1000)
        now = start + random.expovariate(300)
        stretches.append(Stretch(kind, 2 * (number % 2), start, now))
    work = sheet_of(*stretches, end=now + 1.0)
    assert 16 <= len(work.spans) <= 64
    ends = [0, *(span.start + span.length for span in work.spans)]
    assert all(span.start >= end - 1 and span.length > 0 for span, end in zip(work.spans, ends, strict=False))
    assert abs(sum(work.seconds) - (now + 1.0)) < 1e-6
    shown = sum(span.length for span in work.spans) / 1000
    assert shown >= 0.95 * (sum(work.seconds) - work.seconds[WAITING])
