"""`swarm-peer simulate`: what it prints, and that a broken protocol is an exit code 1 with a seed that replays."""

import json

import pytest

from peers.cli import main
from swarm.simulation.runs import coverage
from swarm.simulation.runs.scenario import SCENARIOS
from tests.mutants import MUTANTS

BROKEN = next(mutant for mutant in MUTANTS if mutant.name == "replay without dedup")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", *arguments])
    return int(stopped.value.code or 0)


def test_many_seeds_print_the_coverage_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "30") == 0
    shown = capsys.readouterr().out
    assert "one-way partition" in shown and "a standby holds no stage" in shown
    assert "30 seeds in " in shown and ", 0 broken" in shown
    (empty,) = [line for line in shown.splitlines() if line.startswith("empty cells: ")]
    assert " / " not in empty and "at least 2100 seeds are needed" in empty, "counted, not listed"


def test_empty_cells_are_listed_where_there_should_be_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "ENOUGH_SEEDS", 5)
    assert run("--seeds", "5") == 0
    assert "empty cells: crash / " in capsys.readouterr().out


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "12", "--first", "40", "--scenario", "stall", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seeds"] == 12 and report["failures"] == [] and report["faults"] >= 6
    assert all(cell.startswith("stall / ") for cell in report["coverage"])


def test_one_seed_prints_its_whole_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scenario", "restart", "--seed", "0", "--trace") == 0
    shown = capsys.readouterr().out
    assert "WRITE RECORD of step 1" in shown and "*** fault: restart" in shown and "all invariants held" in shown


def test_a_broken_invariant_exits_with_1_and_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    with BROKEN.planted():
        assert run("--seeds", "2") == 1
        shown = capsys.readouterr()
        assert "BROKEN exactly once" in shown.err
        replay = next(line for line in shown.err.splitlines() if "replay: swarm-peer simulate" in line)
        assert run(*replay.split("simulate ")[1].split()) == 1
    assert "BROKEN exactly once" in capsys.readouterr().out


def test_an_unknown_scenario_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scenario", "earthquake") == 2
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "earthquake" in shown and all(name in shown for name in SCENARIOS[:3])
