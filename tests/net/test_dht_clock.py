"""The DHT's time: taken from others, and deaf to the machine's own clock."""

from __future__ import annotations

import time

import hivemind.dht.node
import hivemind.dht.protocol
import hivemind.utils.timed_storage
import pytest

from swarm.net import dht_clock
from swarm.net.dht_clock import MOST_CORRECTION_S, DhtClock, Difference


def test_setting_the_wall_clock_does_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dht_clock.get_dht_time()
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + 300)
    assert dht_clock.get_dht_time() - before < 60


def test_it_is_corrected_by_those_who_are_there() -> None:
    clock = DhtClock(wall=lambda: 1000.0, steady=lambda: 50.0)
    assert clock.now() == 1000.0
    assert clock.correct([300.0, 301.0, -1e4]) == Difference(300.0), "the median"
    assert clock.now() == 1300.0
    assert clock.correct([0.4, -0.2]) == Difference(), "what the network takes is no difference"
    assert clock.correct([]) == Difference()
    assert clock.correct([float("nan"), float("inf")]) == Difference()
    assert clock.now() == 1300.0


@pytest.mark.parametrize("way", [1, -1])
def test_a_node_that_lies_moves_it_by_at_most_a_day(way: int) -> None:
    """Passes expire by this clock."""
    clock = DhtClock(wall=lambda: 1000.0, steady=lambda: 50.0)
    far = way * (MOST_CORRECTION_S + 1)
    assert clock.correct([far]) == Difference(far, adopted=False)
    assert clock.now() == 1000.0
    assert clock.correct([far, 5.0]) == Difference(5.0), "the lie does not count"
    assert clock.correct([way * MOST_CORRECTION_S - 5.0]).adopted, "as far as is allowed"
    assert not clock.correct([way * 2.0]).adopted, "nor step by step"
    assert clock.now() == 1000.0 + way * MOST_CORRECTION_S
    clock.join()
    assert clock.now() == 1000.0
    assert clock.correct([way * 2.0]) == Difference(way * 2.0), "from the start again"


def test_a_further_node_of_a_process_leaves_it_as_it_was_corrected() -> None:
    clock = DhtClock(wall=lambda: 1000.0, steady=lambda: 50.0)
    clock.join()
    clock.correct([300.0])
    clock.join()
    assert clock.now() == 1300.0
    clock.leave()
    clock.leave()
    clock.join()
    assert clock.now() == 1000.0, "the first one begins anew"


def test_hivemind_reads_it() -> None:
    for module in (hivemind.dht.node, hivemind.dht.protocol, hivemind.utils.timed_storage):
        assert module.get_dht_time is dht_clock.get_dht_time
