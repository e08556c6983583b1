"""The table of docs/seed-study.md: it shows the runs on record, which the command finds again."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import seed_study

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_runs_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.trained._train", lambda run, row: pytest.fail(f"{row} is not found: trained again"))
    rows = seed_study.study(list(seed_study.ROWS), [0, 1, 2], 120, ROOT / "benchmarks" / "results" / "seed_study")
    page = (ROOT / "docs" / "seed-study.md").read_text(encoding="utf-8")
    assert f"-->\n{seed_study.markdown(rows)}<!-- end of table -->" in page
