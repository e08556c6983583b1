"""Plays the scenarios of tests/internet and writes the fault matrix, the table of docs/faults.md.

    python -m benchmarks.faults [--only kills,clock-skew] [--out benchmarks/results/faults.json]

It needs root. Without `--only`, all scenarios except the long soak are played, which takes half an hour. Scenarios that
are not played keep their last result, from the JSON file. For each row of the matrix, the table shows the target, the
measurement, and where it was measured: on real processes over an emulated internet, by other tests of real processes,
or in the simulator. If a row misses its target, the table says so.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import aims
from benchmarks.arguments import some_of
from benchmarks.fault_matrix import ROWS
from benchmarks.results import write_results
from benchmarks.scenarios import IN_CI, IN_LONG_CI, Report, play

ROOT = Path(__file__).parent.parent
SCENARIOS = ROOT / "tests" / "internet" / "scenarios"
FOLDER = ROOT / "benchmarks" / "results"
RESULTS = FOLDER / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
_BEGIN, _END = "<!-- written by python -m benchmarks.faults -->", "<!-- end -->"


HOURS = {"soak-long"}
"""Scenarios that take hours. They are played only if named."""


def condensed(report: Report) -> Report:
    """The report of a play of hours without its single steps, faults and ends. Of the processes that grew, the
    coordinator and the one that grew most.
    """
    names = [episode["fault"] for episode in report["episodes"]]
    counts = {"kills": sum("kills" in name for name in names), "starts": sum("starts" in name for name in names)}
    worst = sorted(report["growth"], key=lambda each: -each["resident_bytes"])[:5]
    growth = [each for each in report["growth"] if each["host"] == "coordinator" or each in worst]
    observed = {"observed_processes": len(report["growth"])}
    return {**report, **counts, **observed, "steps": [], "episodes": [], "ends": [], "growth": growth}


def main() -> None:
    options = parser().parse_args()
    reports: dict[str, Report] = json.loads(RESULTS.read_text())["reports"] if RESULTS.exists() else {}
    names = options.only.split(",") if options.only else [name for name in _names() if name not in HOURS]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for report in play([SCENARIOS / f"{name}.toml" for name in names], Path(folder)):
            kept = condensed(report) if report["scenario"] in HOURS else report
            reports[report["scenario"]] = {**kept, "played": f"{datetime.now(UTC):%Y-%m-%d}"}
            write_results(options.out, "faults", reports=reports)
            write_page(reports)


def _names() -> list[str]:
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--only",
        type=some_of(_names(), ","),
        help="names of scenarios, with commas between them; without it all but soak-long",
    )
    made.add_argument("--out", type=Path, default=RESULTS)
    return made


def table(reports: dict[str, Report]) -> str:
    """The matrix as a Markdown table."""
    lines = ["| # | fault | target | result | test |", "|---:|---|---|---|---|"]
    for row in ROWS:
        played = [reports[name] for name in row.scenarios if name in reports]
        kept = [FOLDER / f"{name}.json" for name in row.results]
        if len(played) == len(row.scenarios) and all(path.exists() for path in kept):
            failures = [text for report in played for text in report["failures"]]
            told = (*played, *(json.loads(path.read_text()) for path in kept))
            if failures:
                shown = "**not as expected:** " + failures[0].splitlines()[0]
            else:
                shown = ("" if row.met(*told) else "**missed:** ") + row.tell(*told)
        else:
            shown = "not played yet"
        places = [f"`{name}.toml`{_suite(name)}, real processes" for name in row.scenarios]
        where = "; ".join([*places, *([row.beside] if row.beside else [])])
        lines.append(f"| {row.number} | {row.fault} | {row.target} | {shown} | {where} |")
    return "\n".join(lines)


def _suite(name: str) -> str:
    if name in IN_CI:
        return " (CI)"
    return " (CI, long)" if name in IN_LONG_CI else ""


def write_page(reports: dict[str, Report]) -> None:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), reports), encoding="utf-8")


def with_table(page: str, reports: dict[str, Report]) -> str:
    """The page with the table between its two comments."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    days = sorted({report["played"] for report in reports.values() if "played" in report}) or ["a day unknown"]
    when = f"Played on {days[0]}" if len(days) == 1 else f"Played between {days[0]} and {days[-1]}"
    both = f"{table(reports)}\n\n{when}. Other targets:\n\n{aims.table(FOLDER)}"
    return f"{before}{_BEGIN}\n\n{both}\n\n{_END}{after}"


if __name__ == "__main__":
    main()
