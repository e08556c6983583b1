"""Simulates which share of the possible work a swarm does when peers come and go: 32 hours of preemptions, ten seeds.

    python -m benchmarks.rebalancing [--hours 32] [--seeds 10] [--jobs 2] [--only "4 stages"] [--out FILE]

It uses the coordinator's own placement and planner in virtual time over a flow model (benchmarks/fluid.py), on
synthetic traces with 0.58 departures per peer and hour, a third of them in bursts of up to a fifth of the swarm.
Policies: `random`: newcomers take a random stage and stay; `claims`: they take the stage that needs them and stay; `300
s`: in addition, one move at most every 300 s; `steps`, the product: at most one move after every step. `of possible`:
microbatches done ÷ those that the best arrangement of all present peers would have done with free downloads; the seeds'
mean and the worst.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.fluid import Course, Outcome, flow
from benchmarks.preemptions import preemptions
from benchmarks.results import write_results

PEERS_PER_STAGE = 8
MICROBATCHES_PER_PEER = 8
"""Microbatches of a step for each peer of a stage, so that a step takes as long with more replicas."""
GIGABYTE = 1e9


@dataclass(frozen=True)
class Setting:
    """A row. `state_gb`: size of the state that a newcomer downloads over 200 Mbit/s; 0: there is no download."""

    name: str
    stages: int
    state_gb: float = 0.5
    spread: float = 1.0
    peers_per_stage: int = PEERS_PER_STAGE
    steep: bool = False
    """True if the last stage costs twice as much as the others."""


POLICIES: dict[str, tuple[float | None, bool]] = {
    "random": (None, False),
    "claims": (None, True),
    "300 s": (300.0, True),
    "steps": (0.0, True),
}
"""The policies: {name: (period, whether newcomers take the stage that needs them)}"""

SETTINGS = (
    Setting("4 stages", 4),
    Setting("8 stages", 8),
    Setting("16 stages", 16),
    Setting("8 stages of 32 peers", 8, peers_per_stage=32),
    Setting("16 stages of 32 peers", 16, peers_per_stage=32),
    Setting("4 stages, no download", 4, state_gb=0.0),
    Setting("8 stages, no download", 8, state_gb=0.0),
    Setting("4 stages, 2 GB of state", 4, state_gb=2.0),
    Setting("4 stages, peers of 10× spread", 4, spread=10.0),
    Setting("4 stages, the last costs twice", 4, steep=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=32.0)
    parser.add_argument("--seeds", type=at_least(1), default=10)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", help="the name of a row's swarm; may be repeated")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = [setting for setting in SETTINGS if not options.only or setting.name in options.only]
    if not settings:
        parser.error(f"--only {options.only}: choose of {', '.join(setting.name for setting in SETTINGS)}")
    jobs = [
        (setting, policy, options.hours, seed)
        for setting in settings
        for policy in POLICIES
        for seed in range(options.seeds)
    ]
    rows = []
    print("| swarm | policy | of possible | worst seed | moves/h | rollbacks |\n|---|---|---|---|---|---|")
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        outcomes = pool.imap(run, jobs)
        for setting in settings:
            for policy in POLICIES:
                found = [next(outcomes) for _ in range(options.seeds)]
                rows.append(summary(setting, policy, found))
                print(line(rows[-1]), flush=True)
    write_results(options.out, "rebalancing", hours=options.hours, seeds=options.seeds, rows=rows)


def run(job: tuple[Setting, str, float, int]) -> Outcome:
    """Run one seed of one row."""
    setting, policy, hours, seed = job
    period_s, claims = POLICIES[policy]
    course = Course(
        stages=setting.stages,
        microbatches=MICROBATCHES_PER_PEER * setting.peers_per_stage,
        preemptions=preemptions(setting.peers_per_stage * setting.stages, hours * 3600.0, seed),
        period_s=period_s,
        state_bytes=setting.state_gb * GIGABYTE,
        spread=setting.spread,
        costs=(*[1.0] * (setting.stages - 1), 2.0) if setting.steep else (),
        claims=claims,
        seed=seed,
    )
    return flow(course)


def summary(setting: Setting, policy: str, found: list[Outcome]) -> dict[str, object]:
    shares = [outcome.share for outcome in found]
    return {
        **asdict(setting),
        "policy": policy,
        "share": statistics.mean(shares),
        "worst": min(shares),
        "moves_per_hour": statistics.mean(outcome.moves_per_hour for outcome in found),
        "rollbacks": statistics.mean(outcome.rollbacks for outcome in found),
        "stood_by_hours": statistics.mean(outcome.stood_by_s for outcome in found) / 3600,
        "starved_s": statistics.mean(outcome.starved_s for outcome in found),
    }


def line(row: dict[str, object]) -> str:
    return (
        f"| {row['name']} | {row['policy']} | {row['share']:.1%} | {row['worst']:.1%} | "
        f"{row['moves_per_hour']:.1f} | {row['rollbacks']:.1f} |"
    )


if __name__ == "__main__":
    main()
