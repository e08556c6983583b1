"""Measures the goodput of real processes while peers die without notice and others come, with an hour compressed to
minutes.

    python -m benchmarks.departures [--departures 0.05,0.1,0.16,0.33,trace] [--hours 2] [--an-hour-s 300]

It needs root. Peers in two stages, on an emulated internet, compute a small model at a pace, so that a step takes 5.4
s. If an hour takes 300 s, this counts as a step of 65 s, and a newcomer that is of use after 10 s counts as one that
needs two minutes. Departures are SIGKILL, at a constant rate per peer and hour; `trace`: 0.58, a third of them in
bursts of up to a fifth of all peers. As many peers come as leave, each in a new home. A scenario's result is compared
with `swarm-peer reference`.

    goodput = (tokens decided ÷ s) ÷ (tokens ÷ s of the usual step × surviving capacity)

The usual step is the median of the steps in the first `CALM_S` seconds, when no peer leaves. Surviving capacity is the
mean number of running peers (newcomers from the start of their process) ÷ the number at the start.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.arguments import each
from benchmarks.preemptions import DEPARTURES_PER_NODE_HOUR, HOUR_S, IN_BURSTS, Preemptions, preemptions
from benchmarks.results import write_results
from benchmarks.scenarios import Report, play

CALM_S = 45.0
FORWARD_MS, BACKWARD_MS = 200, 400
PER_PEER = 8
"""Number of microbatches for each replica of a stage."""
TRACE = "trace"
SCENARIO = """
about = "{departures} departures per peer and hour, an hour in {hour_s:g} s."
rows = [17]
peers = {peers}
pace = ["{forward_ms}ms", "{backward_ms}ms"]
ends = "{ends:g}s"
set = ["run.steps=100000", "checkpoint.every=10", "batch.microbatches={microbatches}", "swarm.max_replicas={peers}"]

[network]
delay = "5ms"

[expect]
finish = false
"""
FAULT = """
[[fault]]
name = "{name}"
do = "{do}"
who = {who}
at = "{at:.2f}s"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--departures", type=each(_departures, ","), default="0.05,0.1,0.16,0.33,trace", help="per peer and hour"
    )
    parser.add_argument("--peers", type=int, default=12)
    parser.add_argument("--hours", type=float, default=2.0, help="of each row, compressed")
    parser.add_argument("--an-hour-s", type=float, default=300.0, help="seconds that an hour takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="departures-") as made:
        for departures in options.departures.split(","):
            trace = _trace(departures, options)
            path = Path(made) / f"departures-{departures}.toml"
            path.write_text(scenario(trace, departures, options.an_hour_s))
            (report,) = play([path], Path(made) / "played")
            rows.append(_row(departures, trace, report, options.an_hour_s))
            print(json.dumps(rows[-1]), flush=True)
            write_results(options.out, "departures", rows=rows)


def _departures(text: str) -> float:
    """Per peer and hour. Raises ValueError."""
    return DEPARTURES_PER_NODE_HOUR if text == TRACE else float(text)


def _trace(departures: str, options: argparse.Namespace) -> Preemptions:
    of_trace = departures == TRACE
    return preemptions(
        options.peers,
        options.hours * HOUR_S,
        options.seed,
        departures_per_node_hour=_departures(departures),
        in_bursts=IN_BURSTS if of_trace else 0.0,
        least=options.peers // 2,
    )


def scenario(trace: Preemptions, departures: str, hour_s: float) -> str:
    """The trace as a scenario's TOML. Its changes begin after the calm at the start."""
    faults = []
    for number, change in enumerate(trace.changes):
        at = CALM_S + change.at_s * hour_s / HOUR_S
        for do, who in (("kill", change.go), ("join", change.come)):
            if who:
                name, hosts = f"{number}: {do}", json.dumps([f"p{node}" for node in who])
                faults.append(FAULT.format(name=name, do=do, who=hosts, at=at))
    head = SCENARIO.format(
        departures=departures,
        hour_s=hour_s,
        peers=trace.nodes,
        forward_ms=FORWARD_MS,
        backward_ms=BACKWARD_MS,
        ends=CALM_S + trace.seconds * hour_s / HOUR_S,
        microbatches=trace.nodes // 2 * PER_PEER,
    )
    return head + "".join(faults)


def _row(departures: str, trace: Preemptions, report: Report, hour_s: float) -> dict[str, object]:
    steps = report["steps"]
    ends = [sum(step["seconds"] for step in steps[: n + 1]) for n in range(len(steps))]
    first = next(n for n, end in enumerate(ends) if end > CALM_S)
    calm = sorted(step["seconds"] for step in steps[1:first])
    usual = calm[len(calm) // 2]
    decided, elapsed = len(steps) - 1 - first, ends[-1] - ends[first]
    capacity = trace.capacity((ends[first] - CALM_S) * HOUR_S / hour_s, (ends[-1] - CALM_S) * HOUR_S / hour_s)
    return {
        "departures": departures,
        "seconds": round(elapsed, 1),
        "steps": decided,
        "usual_step_s": round(usual, 2),
        "left": trace.departures,
        "came": sum(len(change.come) for change in trace.changes),
        "longest_gap_s": round(report["longest_gap_s"], 1),
        "capacity": round(capacity, 4),
        "goodput": round(usual * decided / elapsed / capacity, 3),
        "equal": report["equal"],
        "failures": report["failures"],
    }


if __name__ == "__main__":
    main()
