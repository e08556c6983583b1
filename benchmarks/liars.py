"""Measures what peers that compute wrongly cost: held-out loss and time, with and without audits, with real processes.

    python -m benchmarks.liars [--steps 80] [--peers 10] [--liars 2] [--every 8] [--out benchmarks/results/liars.json]

Liars compute everything from the same frame (`--fault lie@…`), so their numbers look plausible and are wrong. Rows run
one after another, with the same data and the same initial parameters. `penalty` is the held-out loss at the end ÷ that
of the row in which nobody lies, minus 1. `passes` is the number of computed steps ÷ the number of decided steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.audited_run import STAGES, outcome, write_run
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from swarm.events import Evaluated

MICROBATCHES = 10
NEVER = 10_000
"""Number of steps between two drawn audits. No run of this length has a second one, so what is found is found by the
screen.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--liars", type=at_least(1), default=2)
    parser.add_argument("--every", type=int, default=8, help="steps from audit to audit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.peers % STAGES or options.liars >= options.peers // STAGES * STAGES:
        parser.error(
            f"{options.liars} liars of {options.peers} peers: peers are a multiple of {STAGES}, and some must be honest"
        )
    begin, later = ["PeerJoined"] * options.liars, _spread(options)
    with folder_with_corpus("liars") as folder:
        rows = {
            "nobody lies": _run(folder / "honest", options, [], 0),
            "from the start, no audits": _run(folder / "unseen", options, begin, 0),
            "from the start, audited": _run(folder / "start", options, begin, options.every),
            "later, one after another, audited": _run(folder / "later", options, later, options.every),
            "later, and no step is drawn": _run(folder / "screened", options, later, NEVER),
        }
    honest = rows["nobody lies"]["loss"]
    assert isinstance(honest, float)
    if rows["from the start, no audits"]["loss"] == honest:
        raise RuntimeError("the liars have changed nothing, although nobody audited them: not a measurement")
    for name, row in rows.items():
        assert isinstance(row["loss"], float)
        row["penalty"] = round(row["loss"] / honest - 1, 4)
        print(name, json.dumps(row), flush=True)
    write_results(options.out, "liars", rows=rows)


def _spread(options: argparse.Namespace) -> list[str]:
    """Return the moments when initially honest liars begin to lie, spread over the middle of the run."""
    first, last = options.steps // 5, options.steps * 4 // 5
    steps = [first + (last - first) * i // options.liars + 1 for i in range(options.liars)]
    return [f"StepApplied,step={step}" for step in steps]


def _run(folder: Path, options: argparse.Namespace, lies: list[str], every: int) -> dict[str, object]:
    """Run one row. `lies`: the moments at which peers, in order of arrival, begin to lie. `every`: steps between
    audits.
    """
    path = write_run(
        folder,
        "liars",
        steps=options.steps,
        microbatches=MICROBATCHES,
        replicas=options.peers // STAGES,
        every=every,
        evaluate=options.steps,
        evaluated=16,
    )
    join = [*PEERS, "join", "--threads", "1", "--capacity", "1", "--max-memory", "1GB"]
    commands = [[*join, f"--fault=lie@{moment}"] for moment in lies]
    commands += [join] * (options.peers - len(lies))
    with LocalSwarm(folder / "swarm", path, commands) as swarm:
        swarm.finish(1800, failing=range(len(lies)))
        events = swarm.events()
    assert sum(isinstance(event, Evaluated) for _, event in events) == 1, "the end alone is evaluated"
    row, expelled = outcome(events)
    return {**row, "expelled_at": expelled}


if __name__ == "__main__":
    main()
