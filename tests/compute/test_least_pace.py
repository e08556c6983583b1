"""The least pace: a slower machine in rehearsals; and a stopped process does not get on with its sleep."""

from __future__ import annotations

import pytest

from swarm.compute import least_pace
from swarm.compute.least_pace import LeastPace, wait


class Clock:
    """Time that passes only in sleep; some sleeps take longer than asked."""

    def __init__(self, late_s: dict[int, float]) -> None:
        self.now = 0.0
        self.sleeps = 0
        self._late_s = late_s

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self._late_s.get(self.sleeps, 0.0)
        self.sleeps += 1


def test_time_stopped_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({2: 0.001, 5: 10.0})  # a little late, and stopped for ten seconds
    monkeypatch.setattr(least_pace, "time", clock)
    wait(0.1)
    assert clock.now == pytest.approx(10.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_who_is_late_already_does_not_wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    clock = Clock({})
    monkeypatch.setattr(least_pace, "time", clock)
    wait(seconds)
    assert not clock.sleeps


def test_capacity_is_of_a_whole_model() -> None:
    assert LeastPace(0.1, 0.4).capacity(stages=4) == pytest.approx(0.5)
