"""The fault matrix: the target of each row, the words for its measurement, and whether it meets the target.

`benchmarks.faults` plays the scenarios and writes the table.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.aims import goodput, goodput_met
from benchmarks.scenarios import Report
from peers.runtime.core_loop import RunFailed

BEST_WITH_ONE_SLOW = 3.25 / 4
"""The best possible rate of a stage of four replicas when one becomes four times slower and no peer moves, ÷ the rate
before.
"""

LOST, FENCED, JOINED, LEADS = " is lost", " is fenced", " joined ", "this coordinator, leads"
"""What a report says of a peer that is lost, fenced or back, and of a coordinator that leads now."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the matrix. `tell` gives the measurements of the scenarios' reports in words, then those in `results`.
    `met` has the same arguments.
    """

    number: int
    fault: str
    target: str
    scenarios: tuple[str, ...] = ()
    tell: Callable[..., str] = lambda *reports: ""
    met: Callable[..., bool] = lambda *reports: True
    """Whether the measurements meet the target, if the scenarios themselves do not check all of it."""
    beside: str = ""
    """Other evidence: names of tests and commands."""
    results: tuple[str, ...] = ()
    """Names of result files of other benchmarks."""


def _after(report: Report, fault: str, word: str) -> float:
    """Seconds from a fault to the coordinator's first event that contains `word`."""
    for episode in report["episodes"]:
        if episode["fault"] == fault:
            for answer in episode["answers"]:
                if word in answer["text"]:
                    return float(answer["after_s"])
    return float("nan")


def _struck(report: Report, fault: str, of: str = "ratio") -> float:
    """The slowest of three steps, the step with the fault and the two after it, ÷ the usual step."""
    steps = report["steps"]
    at = next(at for at, step in enumerate(steps) if fault in step["faults"])
    return float(max(step[of] or 0.0 for step in steps[at : at + 3]))


def _struck_step(report: Report, fault: str) -> str:
    return f"{_struck(report, fault):.1f} ×"


def _later(report: Report, fault: str, after_s: float) -> float:
    """The usual step ÷ the median of the steps that begin at least this long after a fault."""
    until = next(e["at_s"] for e in report["episodes"] if e["fault"] == fault) + after_s
    ends = itertools.accumulate(step["seconds"] for step in report["steps"])
    late = [step["seconds"] for step, end in zip(report["steps"], ends, strict=True) if end - step["seconds"] > until]
    return float(report["usual_step_s"] / statistics.median(late))


def _end(report: Report, host: str, fault: str) -> float:
    began = next(e["at_s"] for e in report["episodes"] if e["fault"] == fault)
    return float(next(end["at_s"] for end in report["ends"] if end["host"] == host and end["at_s"] >= began) - began)


def _lost(report: Report, *words: str) -> int:
    """How often a peer was reported after a fault with one of `words`; without `words`: as lost."""
    texts = [answer["text"] for episode in report["episodes"] for answer in episode["answers"]]
    return sum(any(word in text for word in words or (LOST,)) for text in texts)


def _equal(report: Report) -> str:
    return f"digests {'equal' if report['equal'] else '**not** equal'}"


def _penalty(kept: dict[str, Any]) -> float:
    """The increase of the held-out loss if a fifth of the peers lie and are audited: the worst case."""
    return max(float(row["penalty"]) for name, row in kept["rows"].items() if name.endswith(", audited"))


def _expelled(report: Report) -> str:
    gone = [end["host"] for end in report["ends"] if end["code"] == RunFailed.exit_code]
    return f"finite but wrong numbers: {len(gone)} of {len(report['ends']) - 1} expelled"


def _deadlines(kept: dict[str, Any]) -> tuple[float, float]:
    """Seconds lost per run: with adaptive deadlines, and with the best constants."""
    product, *fixed = kept["rows"]
    return product["lost_s"], min(row["lost_s"] for row in fixed)


ROWS = (
    Row(
        1,
        "none: fault tolerance on or off",
        "≤ 3 % overhead",
        tell=lambda kept: "{:.2f} of the CPU time per token ({:.2f}–{:.2f})".format(
            kept["summary"]["ratio_median"], *kept["summary"]["ratio_95_percent"]
        ),
        met=lambda kept: kept["summary"]["ratio_median"] <= 1.03,
        beside="`python -m benchmarks.fault_tolerance`",
        results=("fault_tolerance",),
    ),
    Row(
        2,
        "SIGKILL in forward, replicated stage",
        "detected < 2 s, nothing lost, slowest step ≤ 1.5 ×",
        ("paced-kills",),
        lambda r: (
            f"detected after {_after(r, 'in forward', LOST):.2f} s; {_struck_step(r, 'in forward')} the usual "
            f"{r['usual_step_s']:.2f} s"
        ),
        lambda r: _after(r, "in forward", LOST) < 2 and _struck(r, "in forward") <= 1.5,
        "`kills.toml` (CI); `test_faults.py` at named microbatches",
    ),
    Row(
        3,
        "SIGKILL in backward",
        "a sibling repeats the work from kept frames, nothing lost",
        ("paced-kills",),
        lambda r: f"detected after {_after(r, 'in backward', LOST):.2f} s; {_struck_step(r, 'in backward')}",
        lambda r: _after(r, "in backward", LOST) < 2 and _struck(r, "in backward") <= 1.5,
        "`test_faults.py`: every moved microbatch accumulated once, frames recovered",
    ),
    Row(
        4,
        "SIGKILL in the reduce, or while applying",
        "committed everywhere or nowhere; next step < 10 s",
        ("paced-kills",),
        lambda r: f"{_struck_step(r, 'in reduce')} the usual step, {_struck(r, 'in reduce', 'seconds'):.1f} s",
        lambda r: _struck(r, "in reduce", "seconds") < 10,
        "`test_faults.py`: in the reduce, before and after PREPARED, between record and message",
    ),
    Row(
        5,
        "all replicas of a stage lose power",
        "standby trains < 30 s, at most one checkpoint interval lost",
        ("last-replica",),
        lambda r: f"{r['longest_gap_s']:.1f} s from the last decision to the next, rollback included",
        lambda r: r["longest_gap_s"] < 30,
    ),
    Row(
        6,
        "SIGSTOP, then continued",
        "suspected by progress < 5 s; its messages change nothing",
        ("long-hang",),
        lambda r: (
            f"fenced after {_after(r, 'hang', LOST):.2f} s; back "
            f"{_after(r, 'hang, over', JOINED):.2f} s after it was continued, a minute later"
        ),
        lambda r: _after(r, "hang", LOST) < 5,
        "`hang-and-partition.toml` (CI)",
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
        lambda r: _later(r, "four times slower", 60.0) >= 0.9 * BEST_WITH_ONE_SLOW,
        "`slow-peer.toml` (CI); in the simulator: `test_unequal_peers.py`",
    ),
    Row(
        8,
        "one peer: 5 % loss, 40 ± 10 ms, 20 Mbit/s; another run: 200 ± 50 ms",
        "no peer is fenced for its link; adaptive deadlines beat the best constants",
        ("slow-peer", "far-away"),
        lambda r, far, kept: (
            f"{_lost(r, LOST, FENCED) or 'nobody'} fenced or lost; {_equal(r)}; one of four 200 ± 50 ms away: "
            f"{_equal(far)}, steps of {far['usual_step_s']:.1f} s; "
            "adaptive deadlines lose {:.2f} s per run, the best constants {:.2f}".format(*_deadlines(kept))
        ),
        lambda r, far, kept: _deadlines(kept)[0] < _deadlines(kept)[1],
        "`test_max_rate.py`, `test_slow_receiver.py`; [deadlines](#deadlines-adaptive-against-fixed) in the simulator",
        ("deadlines",),
    ),
    Row(
        9,
        "network split in halves; a pair cut, also one way or flapping; a peer or the coordinator cut off",
        "one side commits; recovers by itself",
        ("hang-and-partition", "partition", "nat", "nat-nobody", "nat-joins"),
        lambda r, halves, *routers: (
            f"halves {_struck_step(halves, 'two halves')}, pair {_struck_step(r, 'pair')}, one way "
            f"{_struck_step(r, 'one way')}, peer {_struck_step(r, 'cut off')}, coordinator "
            f"{_struck_step(halves, 'coordinator alone')} the usual step; all back "
            f"{_after(r, 'cut off, over', JOINED):.1f} s after the link; behind routers: "
            f"{'digests equal' if all(each['equal'] for each in routers) else '**not** equal'}"
        ),
        beside="two of three coordinators never both lead: `test_group.py`",
    ),
    Row(
        10,
        "ten joins at once",
        "other peers keep ≥ 90 % of their rate; newcomers useful < 60 s",
        ("paced-joins", "paced-starts"),
        lambda r, starts: (
            f"the slowest step during the joins {r['slowest']:.2f} × the usual {r['usual_step_s']:.1f} s, and "
            f"{starts['slowest']:.2f} × while ten processes start on the same cores without joining; "
            f"{1 / min(step['ratio'] for step in r['steps']):.1f} × the rate with all of them"
        ),
        lambda r, starts: r["slowest"] <= max(1 / 0.9, starts["slowest"] / 0.9),
        "`ten-joins.toml`; joins over slow links and donor load: `test_joining.py`",
    ),
    Row(
        11,
        "bootstrap node dies, a standby dies",
        "training unaffected",
        ("bootstrap-dies", "leader"),
        lambda r, three: (
            f"{_struck_step(r, 'bootstrap')} and {_struck_step(r, 'standby')} the usual step; no abort, no fence; of "
            "three coordinators the leader killed: another leads after "
            f"{_after(three, 'leader killed', LEADS):.1f} s, cut off: after "
            f"{_after(three, 'leader cut off', LEADS):.1f} s"
        ),
        beside="`test_group.py`",
    ),
    Row(
        12,
        "all processes are killed and restarted",
        "digests and data cursor exact",
        ("everything-dies",),
        lambda r: f"continues {r['longest_gap_s']:.1f} s after the last decision, process starts included",
        beside="`test_resume.py`",
    ),
    Row(
        13,
        "disk full; torn or corrupt shard",
        "the previous checkpoint is used, the error names the file",
        ("full-disk",),
        lambda r: f"{_struck_step(r, 'full')} the usual step; the sibling's copy is archived",
        beside="`test_resume.py`: a damaged shard of the archive is named",
    ),
    Row(
        14,
        "NaN, ×100, sign flip, stale, replayed, wrong shape",
        "refused and attributed; 20 % attackers cost ≤ 2 % loss",
        ("liars",),
        lambda r, kept: f"{_expelled(r)}; {_equal(r)}; held-out loss {_penalty(kept):+.2%}",
        lambda r, kept: _penalty(kept) <= 0.02,
        "×100, sign flip: `test_audited_run.py`, `test_liars.py`; what they cost: [trust](trust.md), `python -m "
        "benchmarks.liars`. NaN, stale, replayed, wrong shape, oversized: `test_strangers.py`, `test_bad_input.py`, "
        "`test_nonfinite_run.py`. Overflowing gradients, false failure reports, no answer in evaluations: "
        "`test_insiders.py`",
        ("liars",),
    ),
    Row(
        15,
        "clocks ± 5 min off; one jumps",
        "no expiry, no liveness error",
        ("clock-skew",),
        lambda r: (
            f"{_lost(r)} lost, of {sum('kill' in e['what'] for e in r['episodes'])} killed, and back after "
            f"{_after(r, 'newcomer, over', JOINED):.1f} s, with a wrong clock; {_equal(r)}"
        ),
    ),
    Row(
        16,
        "Ctrl-C",
        "drained and handed over < 10 s",
        ("ctrl-c",),
        lambda r: (
            f"left after {_end(r, 'p0', 'goodbye'):.1f} s; that step took {_struck_step(r, 'goodbye')} the usual one"
        ),
        lambda r: _end(r, "p0", "goodbye") < 10,
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
            f"twelve processes, two hours in ten minutes: {goodput(kept)}"
        ),
        lambda r, kept: goodput_met(kept),
        "`python -m benchmarks.departures`; all rates in the simulator",
        ("departures",),
    ),
    Row(
        18,
        "spawn and SIGKILL every 0.5 to 2 s",
        "gap ≤ 30 s; memory, descriptors flat",
        ("soak-short", "soak-long"),
        lambda r, hours: (
            f"{r['seconds']:.0f} s: {sum('kills' in e['fault'] for e in r['episodes'])} kills, {r['decided']} "
            f"steps, longest gap {r['longest_gap_s']:.1f} s; two hours: {hours['kills']:,} kills, {hours['decided']:,} "
            f"steps, longest gap {hours['longest_gap_s']:.1f} s"
        ),
        lambda r, hours: max(r["longest_gap_s"], hours["longest_gap_s"]) <= 30,
        "[below](#two-hours-of-spawn-and-kill)",
    ),
    Row(
        19,
        "unlike machines; a bit flip in a replica's memory",
        "replicas equal after every step, every checkpoint archived; the bit flip found and repaired within two steps",
        tell=lambda: (
            "one replica of each stage without vector instructions, one of them killed: equal after every step, all "
            "checkpoints archived; of three replicas the differing one is named at the next step and reloads; the bit "
            "flip does not enter the result"
        ),
        beside="`test_unlike_machines.py` (CI), real processes; `test_machine_kinds.py`: three instruction sets × two "
        "numbers of threads; in the simulator: scenario `unlike`",
    ),
)
