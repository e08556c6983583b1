"""Synthetic traces have the statistics that they are made for."""

import statistics

import pytest

from benchmarks.preemptions import HOUR_S, LARGEST_BURST, Change, preemptions


def test_departures_lives_bursts_and_the_mean_are_those_observed() -> None:
    traces = [preemptions(100, 32 * HOUR_S, seed) for seed in range(10)]
    departures = sum(trace.departures for trace in traces)
    node_hours = sum(trace.node_hours for trace in traces)
    assert 0.55 <= departures / node_hours <= 0.61
    assert 95 <= node_hours / (10 * 32) <= 105, "arrivals keep the mean"
    lives: list[float] = []
    largest = 0.0
    for trace in traces:
        born: dict[int, float] = dict.fromkeys(range(trace.nodes), 0.0)
        for change in trace.changes:
            born |= dict.fromkeys(change.come, change.at_s)
            largest = max(largest, len(change.go) / len(born))
            lives += [change.at_s - born.pop(node) for node in change.go]
    assert 0.8 <= statistics.median(lives) / HOUR_S <= 1.4
    assert 0.15 <= largest <= LARGEST_BURST


def test_a_trace_is_a_function_of_its_arguments_in_order_of_time() -> None:
    trace = preemptions(30, 10 * HOUR_S, 3)
    assert trace == preemptions(30, 10 * HOUR_S, 3) != preemptions(30, 10 * HOUR_S, 4)
    times = [change.at_s for change in trace.changes]
    assert times == sorted(times) and times[-1] < 10 * HOUR_S
    gone = [node for change in trace.changes for node in change.go]
    assert len(gone) == len(set(gone)), "who has gone does not go again"


def test_nobody_leaves_below_the_least_or_at_rate_zero() -> None:
    there = 12
    for change in preemptions(12, 100 * HOUR_S, 0, departures_per_node_hour=5.0, least=8).changes:
        there += len(change.come) - len(change.go)
        assert there >= 8
    assert preemptions(5, HOUR_S, 0, departures_per_node_hour=0.0).changes == ()


def test_hours_that_nodes_are_there_are_added_up() -> None:
    trace = preemptions(1, HOUR_S, 0, departures_per_node_hour=0.0)
    assert trace.node_hours == 1.0
    both = type(trace)(1, HOUR_S, (Change(HOUR_S / 2, come=(1,)), Change(HOUR_S * 0.75, go=(0,))))
    assert both.node_hours == pytest.approx(0.5 + 0.5 + 0.25)


@pytest.mark.parametrize(
    "wrong", [{"nodes": 0}, {"seconds": -1.0}, {"in_bursts": 1.5}, {"departures_per_node_hour": -1}]
)
def test_what_describes_no_trace_is_refused(wrong: dict[str, float]) -> None:
    described = {"nodes": 3, "seconds": 10.0, "seed": 1} | wrong
    with pytest.raises(ValueError, match=r"a trace needs|departures per node and hour"):
        preemptions(**described)  # type: ignore[arg-type]
