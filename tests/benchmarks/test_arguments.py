"""Wrong options end a benchmark's command before it measures anything, and the message says what is right."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import scenarios

WRONG = {
    "audits": ("--one-in 0", "the least is 1"),
    "dashboard": ("--rows day", "'day' is unknown; choose from hour, week, small"),
    "departures": ("--departures 0.1,often", "'often'"),
    "dry_run_check": ("--shapes 2x1,3", "'3': it is not STAGESxREPLICAS, such as 2x1"),
    "emulated": ("--stages 4,none", "'none'"),
    "fault_cost": ("--pairs 0", "the least is 1"),
    "fault_tolerance": ("--steps 1", "1 is too small; the least is 2"),
    "faults": ("--only kills,rain", "'rain' is unknown; choose from"),
    "fleet_goodput": ("--departures 0,often", "'often'"),
    "honest_runs": ("--runs 0", "the least is 1"),
    "home_links": ("--compute real,imagined", "'imagined' is unknown; choose from emulated, real"),
    "insiders": ("--kinds negated,polite", "'polite' is unknown; choose from"),
    "joining": ("--before 1", "1 is too small; the least is 2"),
    "liars": ("--peers 4 --liars 4", "4 liars of 4 peers"),
    "profile": ("--steps 1", "1 is too small; the least is 2"),
    "slow_links": ("--rows int9", "'int9' is unknown; choose from"),
    "time_to_loss": ("times --lines slow", "'slow' is unknown; choose from"),
    "zero_bubble": ("--pairs 0", "the least is 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, told = WRONG[name]
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"benchmarks.{name}").main()
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("insiders", "--since 48", "the run has only 48 steps, so nobody would misbehave"),
        ("time_to_loss", "losses", "losses needs --data"),
    ],
)
def test_options_that_do_not_fit_together_are_named(
    name: str, words: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"benchmarks.{name}").main()
    assert told in capsys.readouterr().err


def test_an_insider_of_an_unknown_kind_does_not_run() -> None:
    with pytest.raises(ValueError, match="no kind is named 'polite'; choose from negated"):
        importlib.import_module("benchmarks.insider_peer").misbehave("polite", 3)


def test_a_scenario_that_is_not_played_is_an_error(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="after 0 of 1 scenarios"):
        list(scenarios.play([tmp_path / "rain.toml"], tmp_path / "played"))
    assert signal.getsignal(signal.SIGTERM) == before
