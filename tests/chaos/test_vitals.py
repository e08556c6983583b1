"""What of a process grows is found: here one's own, which says of itself that it has more and more tasks."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from peers.chaos.report import _grown
from peers.chaos.scenario import Expectations
from peers.chaos.vitals import Vitals
from swarm.events import ResourcesMeasured


def measured(tasks: int) -> ResourcesMeasured:
    return ResourcesMeasured(1, 0.0, 0.0, 0, 0, 0, tasks)


@pytest.mark.parametrize(("more", "found"), [(2, ["p0 has 12 more tasks after 24 s"]), (1, [])])
def test_tasks_that_pile_up_are_told(more: int, found: list[str]) -> None:
    machine: Any = SimpleNamespace(name="p0", pid=os.getpid(), started_at=100.0, running=True)
    vitals = Vitals()
    vitals.told(machine, measured(1000))
    vitals.sample([machine], 114.0)  # it is young: what it needs it may take
    for number in range(9):
        vitals.told(machine, measured(50 + more * number))
        vitals.sample([machine], 116.0 + 3 * number)
    (growth,) = vitals.growth()
    assert (growth.host, growth.seconds, growth.tasks) == ("p0", 24.0, 6 * more)
    assert abs(growth.descriptors) <= 1 and growth.threads == 0
    assert _grown(growth, Expectations(descriptor_growth=10)) == found


def test_who_stood_by_at_first_and_said_nothing_has_not_grown() -> None:
    machine: Any = SimpleNamespace(name="p0", pid=os.getpid(), started_at=100.0, running=True)
    vitals = Vitals()
    for number in range(9):
        if number == 2:
            vitals.told(machine, measured(50))
        vitals.sample([machine], 116.0 + 3 * number)
    assert [growth.tasks for growth in vitals.growth()] == [0]
