"""Who of a stage sums how many buckets: fewer with a slow line, and the same ones for everybody who works it out."""

from __future__ import annotations

import math
from collections import Counter

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
    assert lines_of([1e6, math.inf, 9e6, 2e6]) == (1000, 2000, 9000, 2000)
    assert lines_of([1.0, 1e6, 1e6]) == (1, 1000, 1000), "never nothing"


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
