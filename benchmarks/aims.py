"""Targets for swarms under churn in addition to the fault matrix, and the measurements: the second table of
docs/faults.md.

Each row uses results that other benchmarks have written to benchmarks/results; `benchmarks.faults` writes the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Results = dict[str, Any]
"""The results of a benchmark, as it wrote them."""
BOUND, RATE, LOAD = 1.15, 0.9, 2.0
SHARE_300_S = 0.96
GOODPUT, ON_THE_TRACE = 0.9, 0.8
GAP_S = 30.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement in words, and whether it meets the target."""

    text: str
    met: bool = True

    def __str__(self) -> str:
        return self.text if self.met else f"**missed:** {self.text}"


@dataclass(frozen=True, slots=True)
class Aim:
    """A target. `figures`: judges each measurement in the contents of `results` (names of files)."""

    what: str
    target: str
    results: tuple[str, ...]
    figures: Callable[..., list[Figure]]
    where: str


def table(folder: Path) -> str:
    """The table as Markdown."""
    lines = ["| measurement | target | result | test |", "|---|---|---|---|"]
    for aim in AIMS:
        kept = [json.loads((folder / f"{name}.json").read_text()) for name in aim.results]
        shown = "; ".join(map(str, aim.figures(*kept)))
        lines.append(f"| {aim.what} | {aim.target} | {shown} | {aim.where} |")
    return "\n".join(lines)


def _joins(*kept: Results) -> list[Results]:
    return [row for results in kept for row in results["rows"] if row["joiners"] == 1]


def _join(row: Results) -> Figure:
    came = (f"{row[key]:.1f}" for key in ("until_loaded_s", "until_forwarded_s", "bound_s", "total_s"))
    loaded, forwarded, bound, useful = came
    sums = "exact sums" if row["averaging"] == "none" else row["averaging"]
    return Figure(
        f"{row['state_MB']:.0f} MB, {sums}: loaded after {loaded} s, its first forward done after {forwarded} (bound "
        f"{bound}), in a sum after {useful}",
        row["until_forwarded_s"] <= row["bound_s"],
    )


def _costs(*kept: Results) -> list[Figure]:
    slowed = min(row["incumbents_rate"] for row in _joins(*kept))
    load = max(row["donor_load_max_over_mean"] for row in _joins(*kept))
    return [Figure(f"{slowed:.2f} and more", slowed >= RATE), Figure(f"{load:.2f} at most", load <= LOAD)]


def _rebalanced(kept: Results) -> list[Figure]:
    found: dict[str, dict[str, float]] = {}
    for row in kept["rows"]:
        found.setdefault(row["name"], {})[row["policy"]] = row["share"]
    told = [
        Figure(f"{name}: {of['300 s']:.1%}, moves after every step {of['steps']:.1%}", of["300 s"] >= SHARE_300_S)
        for name, of in found.items()
        if name.endswith(("stages", "32 peers"))
    ]
    moves = [row["moves_per_hour"] for row in kept["rows"] if row["policy"] == "300 s"]
    return [*told, Figure(f"{min(moves):.1f} to {max(moves):.1f} moves an hour")]


def goodput(kept: Results) -> str:
    places = {row["departures"]: row["goodput"] for row in kept["rows"]}
    told = (f"{was:.2f} {'on the trace' if at == 'trace' else 'at ' + _percent(at)}" for at, was in places.items())
    return f"{', '.join(told)}; digests {'equal' if all(row['equal'] for row in kept['rows']) else '**not** equal'}"


def _percent(share: str) -> str:
    return f"{100 * float(share):.0f} %"


def goodput_met(kept: Results) -> bool:
    aims = {"trace": ON_THE_TRACE, "0.33": 0.0}
    return all(row["equal"] and row["goodput"] >= aims.get(row["departures"], GOODPUT) for row in kept["rows"])


def _links(*kept: Results) -> list[Figure]:
    return [
        Figure(f"{row['compute']} × {row['replicas']}, {row['row']}: {row['ratio']:.2f}")
        for results in kept
        for row in results["rows"]
        if "unlimited" not in row["row"]
    ]


def _flat(kept: Results) -> list[Figure]:
    soak = kept["reports"]["soak-long"]
    (coordinator,) = [growth for growth in soak["growth"] if growth["host"] == "coordinator"]
    tasks = f", {coordinator['tasks']:+d} tasks" if "tasks" in coordinator else ""
    return [
        Figure(f"{soak['kills']:,} kills, {soak['starts']:,} starts, {soak['decided']:,} steps"),
        Figure(f"longest gap {soak['longest_gap_s']:.1f} s", soak["longest_gap_s"] <= GAP_S),
        Figure(
            f"the coordinator grew by {coordinator['resident_bytes'] / 1e6:.1f} MB, "
            f"{coordinator['descriptors']:+d} descriptors, {coordinator['threads']:+d} threads{tasks}"
        ),
    ]


AIMS = (
    Aim(
        "a join over 80 Mbit/s, 50 ms",
        f"first useful microbatch (its forward done) ≤ start-up + {BOUND} × bytes of the state ÷ rate",
        ("joining", "joining_large"),
        lambda *kept: [_join(row) for row in _joins(*kept)],
        "`python -m benchmarks.joining`; [joining](joining.md)",
    ),
    Aim(
        "cost of a join for the other peers",
        f"they keep ≥ {RATE:.0%} of their rate; donors' load, max ÷ mean, ≤ {LOAD:g}",
        ("joining", "joining_large"),
        _costs,
        "the same; ten at once: row 10, `test_joining.py` (CI)",
    ),
    Aim(
        "rebalancing on preemption traces, 32 hours, ten seeds",
        f"≥ {SHARE_300_S:.0%} of the possible throughput with one move in 300 s",
        ("rebalancing",),
        _rebalanced,
        "simulator: `python -m benchmarks.rebalancing`; [rebalancing](rebalancing.md)",
    ),
    Aim(
        "goodput under departures",
        f"≥ {GOODPUT:.0%} up to 16 % an hour, ≥ {ON_THE_TRACE:.0%} on a p3-like trace",
        ("departures",),
        lambda kept: [Figure(goodput(kept), goodput_met(kept))],
        "twelve real processes: `python -m benchmarks.departures`; simulator (CI): [scale](scale.md#departures)",
    ),
    Aim(
        "two hours of spawn and SIGKILL every 0.5 to 2 s",
        f"no gap over {GAP_S:.0f} s; flat memory, descriptors, tasks",
        ("faults",),
        _flat,
        "real processes: `python -m benchmarks.faults --only soak-long`",
    ),
    Aim(
        "rate on lines of 80 Mbit/s, 50 ms from host to host ÷ rate on unlimited lines",
        "reported",
        ("home_links", "home_links_real"),
        _links,
        "real processes: `python -m benchmarks.home_links`; [slow links](slow-links.md#over-an-emulated-internet)",
    ),
)
