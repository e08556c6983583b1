"""What a decision says of the optimizer."""

from __future__ import annotations

import pytest

from swarm.manifest import OptimizerSection
from swarm.protocol.update import STILL, Update, learning_rate, update_of

SECTION = OptimizerSection(learning_rate=0.1, warmup_steps=2, min_ratio=0.2)


def test_the_rate_warms_up_then_falls_to_its_floor() -> None:
    rates = [learning_rate(SECTION, step, 10) for step in range(12)]
    assert rates[:3] == [0.05, 0.1, 0.1]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[10] == rates[11] == pytest.approx(0.02)
    assert learning_rate(OptimizerSection(learning_rate=1.0, warmup_steps=0), 0, 1) == 1.0


def test_the_moments_are_corrected_by_the_number_of_the_step() -> None:
    assert update_of(SECTION, 0, 10) == Update(0.05, 1 - 0.9, 1 - 0.95)
    assert update_of(SECTION, 2, 10) == Update(0.1, 1 - 0.9**3, 1 - 0.95**3)
    assert update_of(SECTION, 10**6, 10).bias2 == 1.0


def test_what_the_organiser_commands_multiplies_the_schedule_alone() -> None:
    assert update_of(SECTION, 2, 10, 0.5) == Update(0.05, 1 - 0.9**3, 1 - 0.95**3)
    assert update_of(SECTION, 1000, 10, 2.0).learning_rate == 2.0 * learning_rate(SECTION, 10, 10)


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": -1e-9}, {"learning_rate": float("nan")}, {"bias1": 0.0}, {"bias2": 2.0}]
)
def test_what_no_step_can_be_made_with_is_not_sound(wrong: dict[str, float]) -> None:
    assert STILL.sound
    assert not Update(**wrong).sound
