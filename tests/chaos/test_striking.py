"""Whom a fault strikes: who leads or holds a stage by then, and nobody else where there is nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peers.chaos.director import Director, Played, ScenarioFailed
from peers.chaos.machine import EmulatedMachine
from peers.chaos.scenario import load

FAULTS = """
peers = 2
coordinators = 3
[[fault]]
name = "split"
do = "cut"
between = ["leader", "p0"]
for = "1s"
[[fault]]
name = "nobody"
do = "cut"
who = "stage:7"
for = "1s"
[[fault]]
name = "all"
do = "heal"
[[fault]]
name = "early"
do = "kill"
who = "p1"
"""


class Links:
    """What is done to pairs of hosts."""

    def __init__(self) -> None:
        self.done: list[tuple[str, set[tuple[str, str]]]] = []

    def cut(self, pairs: Any) -> None:
        self.done.append(("cut", set(pairs)))

    def heal(self, pairs: Any) -> None:
        self.done.append(("heal", set(pairs)))


def struck(folder: Path, name: str) -> tuple[Played, Links, list[str]]:
    """What a director does when the fault of that name has come, and then what takes it back."""
    path = folder / "scenario.toml"
    path.write_text(FAULTS)
    scenario = load(path)
    unused: Any = None
    links: Any = Links()
    lines: list[str] = []
    director = Director(scenario, folder, unused, links, lambda line, _: lines.append(line))
    for host in scenario.hosts:
        director._machines[host] = EmulatedMachine(host, folder, unused, None, None)
    for fault in scenario.faults:
        if fault.name in (name, f"{name}, over"):
            director._strike(fault)
    return director._played, links, lines


def test_a_link_of_whoever_leads_is_cut_and_healed(tmp_path: Path) -> None:
    _, links, _ = struck(tmp_path, "split")
    pairs = {("coordinator", "p0"), ("p0", "coordinator")}
    assert links.done == [("cut", pairs), ("heal", pairs)]


def test_a_stage_that_nobody_holds_cuts_nobody_off(tmp_path: Path) -> None:
    played, links, lines = struck(tmp_path, "nobody")
    assert not links.done
    assert lines[0] == "nobody: cut stage:7, which is not a host now"
    assert [each.nobody for each in played.struck] == ["cut stage:7", ""]


def test_healing_without_names_heals_all(tmp_path: Path) -> None:
    _, links, _ = struck(tmp_path, "all")
    ((done, pairs),) = links.done
    assert done == "heal" and len(pairs) == 5 * 4


def test_who_has_not_started_cannot_be_killed(tmp_path: Path) -> None:
    with pytest.raises(ScenarioFailed, match="'early': p1 has not started yet"):
        struck(tmp_path, "early")
