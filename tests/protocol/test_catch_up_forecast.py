"""Whether a newcomer can catch up, said by both sides before it downloads anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.protocol.catch_up_forecast import forecast
from swarm.protocol.ids import Actor, StageIndex
from swarm.simulation.runs.plan import small_settings

ME = Actor("12D3KooWNewcomer", 7)
STAGE = StageIndex(1)
SETTINGS = small_settings(stages=2, microbatches=2, steps=2, replicas=1)


@pytest.mark.parametrize(("downlink", "can"), [(1_000_000, False), (2_000_000, False), (2_000_001, True)])
def test_the_sums_of_a_step_must_come_in_less_time_than_it_takes(downlink: float, can: bool) -> None:
    told = forecast(ME, STAGE, replace(SETTINGS, stage_sums=(1, 5_000_000)), downlink, 2.5)
    assert told is not None and told.can is can
    assert (told.stage, told.nbytes, told.step_s) == (1, 5_000_000, 2.5)
    assert told.sums_s == 5_000_000 / downlink
    assert ("cannot catch up" in told.describe()) is not can


@pytest.mark.parametrize(
    ("sums", "downlink", "step_s"), [((), 1e6, 1.0), ((1, 5), None, 1.0), ((1, 5), 1e6, 0.0), ((1, 0), 1e6, 1.0)]
)
def test_nothing_is_said_where_something_is_not_known(
    sums: tuple[int, ...], downlink: float | None, step_s: float
) -> None:
    assert forecast(ME, STAGE, replace(SETTINGS, stage_sums=sums), downlink, step_s) is None
