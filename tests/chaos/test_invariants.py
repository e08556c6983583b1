"""What logs say of a play: an invariant that did not hold is found, and one that held is not doubted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peers.chaos.invariants import exactly_once
from peers.chaos.machine import EmulatedMachine, Seen
from swarm.events import ReduceStarted, StepDecided

DECIDED = StepDecided(64, 1037, 1.0, 1.0, 1.0, 4, ["1:ab"], [])


def play(folder: Path, *told: tuple[str, str, list[int]]) -> Any:
    """A step of four microbatches, decided as the first amended table has it. `told`: (host, attempt, share)."""
    nursery: Any = None
    machines = {name: EmulatedMachine(name, folder, nursery, None, None) for name in ("p0", "p1", "c2")}
    for name, attempt, share in told:
        machines[name].log.append(Seen(1.0, ReduceStarted(attempt, share)))
    manifest = SimpleNamespace(batch=SimpleNamespace(microbatches=4))
    return SimpleNamespace(manifest=manifest, machines=machines, coordinator=[Seen(2.0, DECIDED)])


@pytest.mark.parametrize(
    "told",
    [
        [("p0", "64:1037/s0n1", [0, 2]), ("p1", "64:1037/s0n1", [1, 3])],
        [("p0", "64:1037/s0n1", [0, 2]), ("p1", "64:1037/s0n1+1", [3, 1])],
        # p1 was killed before it heard that c2, which had nothing to do, was gone
        [("p0", "64:1037/s0n0", [0, 2]), ("p1", "64:1037/s0n0", [1, 3]), ("p0", "64:1037/s0n1", [0, 2])],
        # c2 was fenced: its share of before does not count
        [("c2", "64:1037/s0n0", [3]), ("p0", "64:1037/s0n1", [0, 2, 3]), ("p1", "64:1037/s0n1", [1])],
    ],
)
def test_a_sum_that_holds_each_microbatch_once_is_sound(tmp_path: Path, told: list[tuple[str, str, list[int]]]) -> None:
    finding = exactly_once(play(tmp_path, *told))
    assert finding.checked == 1 and not finding.broken


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([("p0", "64:1037/s0n1", [0, 2])], "64:1037/s0n1 added up [0, 2]"),
        ([("p0", "64:1037/s0n1", [0, 2]), ("p1", "64:1037/s0n1", [1, 2, 3])], "added up [0, 1, 2, 2, 3]"),
        ([("p0", "64:1037/s0n1", [0, 2]), ("p1", "64:1036/s0n0", [1, 3])], "added up [0, 2]"),
        ([("p0", "64:1037/s0n1", [0, 2]), ("p1", "64:1037/s0n2", [1, 3])], "added up [0, 2]"),
        ([("p0", "64:1037/s0n0", [1, 3]), ("p0", "64:1037/s0n1", [0, 2])], "added up [0, 2]"),
    ],
)
def test_a_sum_that_lacks_one_or_has_one_twice_is_found(
    tmp_path: Path, told: list[tuple[str, str, list[int]]], says: str
) -> None:
    (broken,) = exactly_once(play(tmp_path, *told)).broken
    assert says in broken
