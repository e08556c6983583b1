"""Who of a stage sums how many buckets: fewer with a slow line, and the same ones for everybody who works it out."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.protocol.bucket_owners import EVEN, UNIT, lines_of, owners
from swarm.protocol.coordinator.passes.assignment import amend, enlarge
from swarm.protocol.ids import Actor
from swarm.protocol.messages import StageTable

rates = st.lists(st.floats(1e5, 1e9), min_size=3, max_size=30)


def seconds(lines: list[float] | tuple[int, ...], counts: list[int], buckets: int) -> float:
    """When the slowest has sent what it has to."""
    each = len(lines) - 2
    return max((buckets + counts[i] * each) / line for i, line in enumerate(lines))


def counts_of(lines: tuple[int, ...], members: int, buckets: int) -> list[int]:
    found = Counter(owners(lines, members, buckets))
    return [found[i] for i in range(members)]


@given(rates, st.integers(1, 100))
@example([249606501.0, 267483500.0, 277110501.0, 703435500.0], 11)
def test_the_slowest_line_has_done_its_part_as_soon_as_can_be(rates: list[float], buckets: int) -> None:
    lines = lines_of(rates)
    counts = counts_of(lines, len(rates), buckets)
    assert sum(counts) == buckets
    if not lines:
        return
    took = seconds(lines, counts, buckets)
    own, all_of_it = buckets / min(lines), buckets * (2 * len(lines) - 2) / sum(lines)
    # whoever ends last took its last bucket because none of the others would have ended sooner with it
    one_each = (len(lines) - 1) * (len(lines) - 2) / sum(lines)
    assert took <= max(own, all_of_it + one_each) * (1 + 1e-9), "no better than the flow allows, but for a bucket each"


def test_equal_lines_and_unknown_ones_sum_in_turn() -> None:
    assert lines_of([1e6, 1e6 * EVEN, 1e6]) == ()
    assert lines_of([math.inf] * 4) == ()
    assert lines_of([1e6, 9e6]) == (), "of two each sends the same anyway"
    assert owners((), 3, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_who_has_said_nothing_counts_as_the_median() -> None:
    assert lines_of([1e6, math.inf, 9e6, 2e6]) == (1000, 2000, 8000, 2000)
    assert lines_of([1.0, 1e6, 1e6]) == (1, 1000, 1000), "never nothing"


@pytest.mark.parametrize(("members", "times"), [(3, 1.5), (4, 2.0), (8, 2.9), (16, 3.5)])
def test_who_offers_more_than_it_has_does_not_sum_everything_for_many(members: int, times: float) -> None:
    true = [1e6] * members
    took = seconds(true, counts_of(lines_of([*true[1:], 1e12]), members, 64), 64)
    equal = seconds(true, counts_of((), members, 64), 64)
    assert took <= times * equal, "without a bound: 4 times with 8 members, 8 times with 16"


@pytest.mark.parametrize(
    "rates", [[1e6] * 4 + [1e9], [2e6, 3e5, 1e7, 5e7], [1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 128e6]], ids=str
)
def test_the_bound_of_a_line_costs_unequal_lines_nothing(rates: list[float]) -> None:
    whole = tuple(round(rate / UNIT) for rate in rates)
    bounded, unbounded = (counts_of(lines, len(rates), 64) for lines in (lines_of(rates), whole))
    assert seconds(rates, bounded, 64) <= 1.001 * seconds(rates, unbounded, 64)


def test_a_slow_line_sums_nothing_and_the_others_in_turn() -> None:
    assert owners((2500, 10_000, 10_000, 10_000), 4, 6) == [1, 2, 3, 1, 2, 3]
    assert counts_of((2500, 10_000, 20_000), 3, 48) == [0, 0, 48], "the slow line's own part takes longer than all that"
    assert counts_of((10_000, 20_000, 30_000), 3, 48) == [0, 10, 38]
    runs = "".join(map(str, owners((10_000, 20_000, 30_000), 3, 48)))
    assert "22222" not in runs, "one's buckets are spread over all"


def test_lines_follow_their_members_when_a_table_is_amended() -> None:
    a, b, c, d = (Actor(name, 1) for name in "abcd")
    table = StageTable(0, (a, b, c), (0, 1, 2, 0), (), (1000, 2000, 3000))
    weights = dict.fromkeys((a, b, c, d), 1.0)
    assert amend(table, [b], [1], weights).lines == (1000, 3000)
    larger = enlarge(table, d)
    assert larger.lines == (1000, 2000, 3000, 1000), "who has just come sums little"
    plain = StageTable(0, (a, b, c), (0, 1, 2, 0))
    assert amend(plain, [b], [1], weights).lines == enlarge(plain, d).lines == ()


def test_a_line_is_told_in_whole_units() -> None:
    assert UNIT == 1000.0 and lines_of([1_499.0, 1e6, 1e6])[0] == 1
