"""How many microbatches a peer works on at once."""

from __future__ import annotations

from dataclasses import replace

from swarm.protocol.slots import Slots, most_at_once
from swarm.simulation.runs.plan import small_settings

SETTINGS = replace(small_settings(stages=4, microbatches=64, steps=2, replicas=2), slots=0)


def test_a_deep_pipeline_asks_for_more() -> None:
    counts = [Slots(replace(SETTINGS, stages=stages)).count for stages in (1, 4, 8, 16)]
    assert counts == [16, 16, 32, 64]
    assert Slots(replace(SETTINGS, slots=3)).count == 3, "said by the user"


def test_who_cannot_keep_more_graphs_works_on_no_more_but_does_not_let_the_pipeline_run_dry() -> None:
    slots = Slots(SETTINGS)
    slots.new_pass(1)
    for beside in (12, 14):
        slots.no_room(beside)
    slots.new_pass(1)
    assert slots.count == 12
    slots.no_room(0)
    assert slots.count == 8, "two for each stage"
    slots.new_pass(2)
    assert slots.count == 16, "of another stage nothing is known"
    few = Slots(replace(SETTINGS, slots=3))
    few.no_room(0)
    assert few.count == 3


def test_a_peer_never_keeps_more_graphs_than_it_has_slots_or_a_step_has_microbatches() -> None:
    """Else a peer with room for them returns freed memory after each microbatch, and takes half as long again."""
    assert most_at_once(SETTINGS) == 16 < SETTINGS.microbatches
    assert most_at_once(replace(SETTINGS, microbatches=5)) == 5
    assert most_at_once(replace(SETTINGS, slots=3)) == 3
