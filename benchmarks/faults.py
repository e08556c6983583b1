"""The fault matrix: plays the scenarios of tests/internet and writes the table of docs/faults.md.

    python -m benchmarks.faults [--only kills,clock-skew] [--out benchmarks/results/faults.json]

As root. Without `--only` all scenarios are played, which takes some minutes; what is not played keeps its last result,
from the JSON file. The table says for each row of the matrix what was aimed at, what was measured, and where: on real
processes over an emulated internet, by other tests of real processes, or in the simulator.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import write_results
from benchmarks.scenarios import Report, play
from peers.core_loop import RunFailed

ROOT = Path(__file__).parent.parent
SCENARIOS = ROOT / "tests" / "internet" / "scenarios"
FOLDER = ROOT / "benchmarks" / "results"
RESULTS = FOLDER / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
_BEGIN, _END = "<!-- written by python -m benchmarks.faults -->", "<!-- end -->"


BEST_WITH_ONE_SLOW = 3.25 / 4
"""Rate of a stage of four replicas ÷ that before, when one of them is four times slower and nobody moves."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the matrix. `tell` puts into words what the scenarios' reports measured, then what `results` hold."""

    number: int
    fault: str
    target: str
    scenarios: tuple[str, ...] = ()
    tell: Callable[..., str] = lambda *reports: ""
    beside: str = ""
    """Other evidence: tests and commands by name."""
    results: tuple[str, ...] = ()
    """Of other benchmarks, by the names of their files."""


def _first_answer(report: Report, fault: str, word: str) -> float:
    """Seconds from a fault to the first thing the coordinator said that has `word` in it."""
    for episode in report["episodes"]:
        if episode["fault"] == fault:
            for answer in episode["answers"]:
                if word in answer["text"]:
                    return float(answer["after_s"])
    return float("nan")


def _struck_step(report: Report, fault: str) -> str:
    """The slowest of the step a fault fell into and the two after it, against the usual one."""
    steps = report["steps"]
    for at, step in enumerate(steps):
        if fault in step["faults"]:
            return f"{max(s['ratio'] or 0.0 for s in steps[at : at + 3]):.1f} ×"
    return "?"


def _later(report: Report, fault: str, after_s: float) -> float:
    """The usual step ÷ the median of those that begin so long after a fault."""
    until = next(e["at_s"] for e in report["episodes"] if e["fault"] == fault) + after_s
    ends = itertools.accumulate(step["seconds"] for step in report["steps"])
    late = [step["seconds"] for step, end in zip(report["steps"], ends, strict=True) if end - step["seconds"] > until]
    return float(report["usual_step_s"] / statistics.median(late))


def _end(report: Report, host: str, fault: str) -> float:
    began = next(e["at_s"] for e in report["episodes"] if e["fault"] == fault)
    return float(next(end["at_s"] for end in report["ends"] if end["host"] == host and end["at_s"] >= began) - began)


def _lost(report: Report, *words: str) -> int:
    """How often a peer was said to be one of `words` after a fault; without them: lost."""
    texts = [answer["text"] for episode in report["episodes"] for answer in episode["answers"]]
    return sum(any(f" is {word}" in text for word in words or ("lost",)) for text in texts)


def _equal(report: Report) -> str:
    return f"digests {'equal' if report['equal'] else '**not** equal'}"


def _expelled(report: Report) -> str:
    gone = [end["host"] for end in report["ends"] if end["code"] == RunFailed.exit_code]
    return f"sound numbers that are wrong: {len(gone)} of {len(report['ends']) - 1} expelled"


def _departures(kept: dict[str, Any]) -> str:
    goodput = {row["departures"]: row["goodput"] for row in kept["rows"]}
    places = ("on the trace" if at == "trace" else f"at {100 * float(at):.0f} %" for at in goodput)
    told = (f"{was:.2f} {place}" for was, place in zip(goodput.values(), places, strict=True))
    return f"twelve processes, two hours in ten minutes: {', '.join(told)}"


ROWS = (
    Row(
        1,
        "none: fault tolerance on or off",
        "≤ 3 % overhead",
        tell=lambda kept: "{:.2f} of the CPU time per token ({:.2f}–{:.2f})".format(
            kept["summary"]["ratio_median"], *kept["summary"]["ratio_95_percent"]
        ),
        beside="`python -m benchmarks.fault_tolerance`",
        results=("fault_tolerance",),
    ),
    Row(
        2,
        "SIGKILL in forward, replicated stage",
        "detected < 2 s, nothing lost, slowest step ≤ 1.5 ×",
        ("paced-kills",),
        lambda r: (
            f"detected after {_first_answer(r, 'in forward', 'lost'):.2f} s; {_struck_step(r, 'in forward')} the usual "
            f"{r['usual_step_s']:.2f} s"
        ),
        "`kills.toml`; `test_faults.py` at named microbatches",
    ),
    Row(
        3,
        "SIGKILL in backward",
        "a sibling computes again from kept frames, nothing lost",
        ("paced-kills",),
        lambda r: f"detected after {_first_answer(r, 'in backward', 'lost'):.2f} s; {_struck_step(r, 'in backward')}",
        "`test_faults.py`: every moved microbatch accumulated once, frames recovered",
    ),
    Row(
        4,
        "killed in the reduce, or while applying",
        "committed everywhere or nowhere; next step < 10 s",
        ("paced-kills",),
        lambda r: f"{_struck_step(r, 'in reduce')} the usual step",
        "`test_faults.py`: in the reduce, before and after PREPARED, between record and message",
    ),
    Row(
        5,
        "the only replicas of a stage lose power",
        "standby trains < 30 s, at most one checkpoint interval lost",
        ("last-replica",),
        lambda r: f"{r['longest_gap_s']:.1f} s from the last decision to the next, rollback included",
    ),
    Row(
        6,
        "SIGSTOP, then continued",
        "suspected by progress < 5 s; its messages change nothing",
        ("long-hang",),
        lambda r: (
            f"fenced after {_first_answer(r, 'hang', 'lost'):.2f} s; back "
            f"{_first_answer(r, 'hang, over', 'joined'):.2f} s after it was continued, a minute later"
        ),
        "`hang-and-partition.toml`",
    ),
    Row(
        7,
        "a peer becomes four times slower",
        "≥ 90 % of the best assignment within 60 s",
        ("paced-slow",),
        lambda r: (
            f"{r['goodput'] / BEST_WITH_ONE_SLOW:.2f} of the best assignment from that moment on, "
            f"{_later(r, 'four times slower', 60.0) / BEST_WITH_ONE_SLOW:.2f} after 60 s; no fence"
        ),
        "`slow-peer.toml`",
    ),
    Row(
        8,
        "5 % loss, 40 ± 10 ms, 20 Mbit/s on one side; 200 ± 50 ms",
        "nobody is fenced for its link",
        ("slow-peer", "far-away"),
        lambda r, far: (
            f"{_lost(r, 'lost', 'fenced') or 'nobody'} fenced or lost; {_equal(r)}; one of four 200 ± 50 ms away: "
            f"{_equal(far)}, steps of {far['usual_step_s']:.1f} s"
        ),
        "`test_max_rate.py`, `test_slow_receiver.py`",
    ),
    Row(
        9,
        "two halves; a pair cut, one way too, flapping; a peer or the coordinator cut off",
        "one side commits; heals by itself",
        ("hang-and-partition", "partition"),
        lambda r, halves: (
            f"halves {_struck_step(halves, 'two halves')}, pair {_struck_step(r, 'pair')}, one way "
            f"{_struck_step(r, 'one way')}, peer {_struck_step(r, 'cut off')}, coordinator "
            f"{_struck_step(halves, 'coordinator alone')} the usual step; all back "
            f"{_first_answer(r, 'cut off, over', 'joined'):.1f} s after the link"
        ),
        "behind routers: `nat.toml`, `nat-nobody.toml`, `nat-joins.toml`",
    ),
    Row(
        10,
        "ten joins at once",
        "incumbents ≥ 90 %; useful < 60 s",
        ("paced-joins", "paced-starts"),
        lambda r, starts: (
            f"the slowest step while they come {r['slowest']:.2f} × the usual {r['usual_step_s']:.1f} s, and "
            f"{starts['slowest']:.2f} × while ten processes start on the same cores that do not join; "
            f"{1 / min(step['ratio'] for step in r['steps']):.1f} × the rate once all work"
        ),
        "`ten-joins.toml`; joins over slow links and donor load: `test_joining.py`",
    ),
    Row(
        11,
        "bootstrap node dies, a standby dies",
        "training unaffected",
        ("bootstrap-dies",),
        lambda r: f"{_struck_step(r, 'bootstrap')} and {_struck_step(r, 'standby')} the usual step; no abort, no fence",
        "of three coordinators the leader, killed or cut off: `leader.toml`, `test_group.py`",
    ),
    Row(
        12,
        "everything is killed, and started again",
        "digests and data cursor exact",
        ("everything-dies",),
        lambda r: f"goes on {r['longest_gap_s']:.1f} s after the last decision, process starts included",
        "`test_resume.py`",
    ),
    Row(
        13,
        "disk full; torn or corrupt shard",
        "the checkpoint before it is used, the error names the file",
        ("full-disk",),
        lambda r: f"{_struck_step(r, 'full')} the usual step; the run is archived from the sibling",
        "`test_resume.py`: a damaged shard of the archive is named",
    ),
    Row(
        14,
        "NaN, ×100, sign flip, stale, replayed, wrong shape",
        "refused and attributed; 20 % attackers cost ≤ 2 % loss",
        ("liars",),
        lambda r: f"{_expelled(r)}; {_equal(r)}",
        "×100, sign flip: `test_audited_run.py`, `test_liars.py`; what they cost: [trust](trust.md), `python -m "
        "benchmarks.liars`. NaN, stale, replayed, wrong shape, oversized: `test_strangers.py`, `test_bad_input.py`, "
        "`test_nonfinite_run.py`",
    ),
    Row(
        15,
        "clocks ± 5 min off; one jumps",
        "no expiry, no liveness error",
        ("clock-skew",),
        lambda r: (
            f"{_lost(r)} lost, of {sum('kill' in e['what'] for e in r['episodes'])} killed, and back after "
            f"{_first_answer(r, 'newcomer, over', 'joined'):.1f} s, with a wrong clock; {_equal(r)}"
        ),
    ),
    Row(
        16,
        "Ctrl-C",
        "drained and handed over < 10 s",
        ("ctrl-c",),
        lambda r: f"gone after {_end(r, 'p0', 'goodbye'):.1f} s; that step {_struck_step(r, 'goodbye')} the usual one",
        "`test_leaving.py`: within ten seconds, twice, with the last replica",
    ),
    Row(
        17,
        "departures of 5 to 33 % an hour, p3-like trace",
        "goodput ≥ 90 % to 16 %, ≥ 80 % on the trace",
        ("departures",),
        lambda r, kept: (
            f"33 % an hour, an hour in a minute: {sum('kills' in e['fault'] for e in r['episodes'])} kills of six "
            f"peers in {r['seconds']:.0f} s, goodput {r['goodput']:.2f}, longest gap {r['longest_gap_s']:.1f} s; "
            f"{_departures(kept)}"
        ),
        "`python -m benchmarks.departures`; all rates in the simulator",
        ("departures",),
    ),
    Row(
        18,
        "spawn and SIGKILL every 0.5 to 2 s",
        "gap ≤ 30 s; memory, descriptors flat",
        ("soak-short",),
        lambda r: (
            f"{r['seconds']:.0f} s: {sum('kills' in e['fault'] for e in r['episodes'])} kills, {r['decided']} "
            f"steps, longest gap {r['longest_gap_s']:.1f} s"
        ),
        "`soak-long.toml`, by name: see below",
    ),
)


HOURS = {"soak-long"}
"""Take hours: played only by name."""


def condensed(report: Report) -> Report:
    """A play of hours without its single steps, faults and ends; of those that grew, the coordinator and the worst."""
    names = [episode["fault"] for episode in report["episodes"]]
    counts = {"kills": sum("kills" in name for name in names), "starts": sum("starts" in name for name in names)}
    worst = sorted(report["growth"], key=lambda each: -each["resident_bytes"])[:5]
    growth = [each for each in report["growth"] if each["host"] == "coordinator" or each in worst]
    observed = {"observed_processes": len(report["growth"])}
    return {**report, **counts, **observed, "steps": [], "episodes": [], "ends": [], "growth": growth}


def main() -> None:
    options = parser().parse_args()
    reports: dict[str, Report] = json.loads(RESULTS.read_text())["reports"] if RESULTS.exists() else {}
    names = (
        options.only.split(",") if options.only else sorted({path.stem for path in SCENARIOS.glob("*.toml")} - HOURS)
    )
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for report in play([SCENARIOS / f"{name}.toml" for name in names], Path(folder)):
            reports[report["scenario"]] = condensed(report) if report["scenario"] in HOURS else report
            write_results(options.out, "faults", reports=reports)
            write_page(reports)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", help="names of scenarios, with commas between them; without it all but soak-long")
    made.add_argument("--out", type=Path, default=RESULTS)
    return made


def table(reports: dict[str, Report]) -> str:
    """The matrix as Markdown."""
    lines = ["| # | fault | target | shown | where |", "|---:|---|---|---|---|"]
    for row in ROWS:
        played = [reports[name] for name in row.scenarios if name in reports]
        kept = [FOLDER / f"{name}.json" for name in row.results]
        if len(played) == len(row.scenarios) and all(path.exists() for path in kept):
            failures = [text for report in played for text in report["failures"]]
            told = (*played, *(json.loads(path.read_text()) for path in kept))
            shown = row.tell(*told) if not failures else "**not as expected:** " + failures[0].splitlines()[0]
        else:
            shown = "not played yet"
        places = [f"`{name}.toml`, real processes" for name in row.scenarios]
        where = "; ".join([*places, *([row.beside] if row.beside else [])])
        lines.append(f"| {row.number} | {row.fault} | {row.target} | {shown} | {where} |")
    return "\n".join(lines)


def write_page(reports: dict[str, Report]) -> None:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), reports), encoding="utf-8")


def with_table(page: str, reports: dict[str, Report]) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table(reports)}\n\n{_END}{after}"


if __name__ == "__main__":
    main()
