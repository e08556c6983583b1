"""Compares adaptive with fixed deadlines: the cost of faults and of wrongly fenced peers, in small simulated swarms.

    python -m benchmarks.deadlines [--seeds 12] [--jobs 2] [--out benchmarks/results/deadlines.json]

The real cores run in virtual time: two stages of three peers, eight steps of six microbatches, a step budget of 6 s. A
line sends one frame, or part of a sum, at a time; data that waits for its turn is not queued twice. In each environment
either nothing happens, or one of the six peers stalls for good, stalls for a second, becomes four times slower for
good, ignores its input for two budgets, or loses 30 % of its messages for four seconds. No broken connection reveals
these faults. The seed determines which peer it is and when; this is the same for all policies.

A policy says how long a peer may be silent, how long it may finish nothing, and when a frame is requested again. It
does so as the product does (`swarm/protocol/timeouts.py`), or in constant seconds. In both cases the times double with
each fence of the step and each request without an answer; the reduce has its own deadlines. The best fixed policy is
searched with other seeds: each of the three values is varied over `GRID` in turn, until no other value is better. This
is done twice: for the least time, and for the fewest wrong fences first.

    lost = a run's virtual seconds, to the last decision − those of the fastest policy without a fault, environment
           by environment

as a mean over seeds, faults and environments. `wrong`: fences by these deadlines of peers that had neither stalled nor
ignored anything. `twice`: the percentage of frames that were sent more than once to the same peer. The second table
shows each environment with that fixed policy, of those tried, which is best in all the others.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks.arguments import at_least
from benchmarks.results import write_results
from swarm.events import PeerFenced
from swarm.protocol import timeouts as deadlines
from swarm.protocol.coordinator.membership import failure_detector as silence
from swarm.protocol.coordinator.passes import stragglers as suspicion
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Frame
from swarm.protocol.peer import in_flight as asked
from swarm.protocol.timeouts import Observed
from swarm.simulation.kernel.network import Burst, Weather
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run
from swarm.simulation.toy.sim_peer import SimPeer

PEERS, STEPS = 6, 8
FAULTS = ("none", "stall", "pause", "slow", "swallow", "losses")
PAUSE_S, SLOWER, SWALLOWS_S, LOSSES_S, LOST = 1.0, 4.0, 12.0, 4.0, 0.3
REASONS = ("silent", "no progress", "it has received no activation or gradient")
"""How the reasons of fences begin that these deadlines cause."""


@dataclass(frozen=True)
class Environment:
    name: str
    speeds: tuple[float, ...] = (1.0,) * PEERS
    """For each peer, the factor by which a microbatch takes longer than 30 ms."""
    far: tuple[float, ...] = ()
    """For each peer, the seconds that its messages need, ± a quarter, in addition to 1 to 13 ms."""
    weather: Weather | None = None
    payload_s: tuple[float, ...] = (0.005,) * PEERS
    """For each peer, the seconds in which its line sends a frame or a part of the sums."""


ENVIRONMENTS = (
    Environment("near"),
    Environment("slow", speeds=(10.0,) * PEERS),
    Environment("very slow", speeds=(20.0,) * PEERS),
    Environment("far", far=(0.05,) * PEERS),
    Environment("uneven", speeds=(8.0, *[1.0] * (PEERS - 1)), far=(0.0, 0.0, 0.0, 0.1)),
    Environment("thin", payload_s=(0.1, *[0.005] * (PEERS - 1))),
    Environment("lossy", weather=Weather(drop=0.02, overtaken=0.05, late_s=0.5)),
)


@dataclass(frozen=True)
class Policy:
    """The three deadlines of a policy in seconds. None: adaptive, as in the product."""

    silence: float | None = None
    stall: float | None = None
    want: float | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with (
            patch.object(silence, "silence_deadline", self._silence),
            patch.object(suspicion, "stall_deadline", self._stall),
            patch.object(asked, "want_deadline", self._want),
        ):
            yield

    def _silence(self, gaps: Observed, budget_s: float, heartbeat_s: float) -> float:
        usual = deadlines.silence_deadline(gaps, budget_s, heartbeat_s)
        return usual if self.silence is None else max(self.silence, 3 * heartbeat_s)

    def _stall(self, *measured: Any) -> float:
        usual = deadlines.stall_deadline(*measured)
        budget_s, fences = measured[2], measured[4]
        return usual if self.stall is None else min(self.stall * 2.0**fences, 4 * budget_s)

    def _want(self, waits: Observed, budget_s: float, attempts: int) -> float:
        usual = deadlines.want_deadline(waits, budget_s, attempts)
        return usual if self.want is None else min(self.want * 2.0**attempts, budget_s / 2)


GRID = {
    "silence": (0.6, 0.8, 1.5, 3.0),
    "stall": (0.25, 0.5, 1.0, 1.5, 3.0, 6.0),
    "want": (0.05, 0.1, 0.2, 0.3, 0.6),
}
"""Values that are tried. They span the product's bounds at this budget: 0.6 (three heartbeats) to 1.5 s, 0.5 to 3 s,
0.05 to 0.3 s.
"""
ADAPTIVE = Policy()
SHORTEST = Policy(silence=0.6, stall=0.5, want=0.05)
MIDDLE = Policy(silence=0.8, stall=1.0, want=0.2)
LONGEST = Policy(silence=1.5, stall=3.0, want=0.3)


@dataclass(frozen=True)
class Played:
    seconds: float
    wrong: int
    frames: int
    twice: int
    ended: bool


Results = dict[tuple[str, str], list[Played]]
"""The results: {(environment, fault): one result per seed}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=at_least(1), default=12, help="to compare with; a third as many to search with")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tried: dict[Policy, Results] = {}
    apart = range(1000, 1000 + max(1, options.seeds // 3))
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:

        def wrong_and_seconds(policy: Policy) -> tuple[float, ...]:
            if policy not in tried:
                tried[policy] = run(pool, policy, apart)
            return _wrong(tried[policy]), _seconds(tried[policy])

        quickest = search(lambda policy: wrong_and_seconds(policy)[1:])
        named = {
            "adaptive: the product": ADAPTIVE,
            "fixed, least time": quickest,
            "the same, but a frame is asked for again as in the product": replace(quickest, want=None),
            "fixed, fewest wrong fences": search(wrong_and_seconds),
            "fixed at the product's lower bounds": SHORTEST,
            "fixed at the product's upper bounds": LONGEST,
        }
        elsewhere = chosen_elsewhere(tried, run(pool, ADAPTIVE, apart))
        found = {policy: run(pool, policy, range(options.seeds)) for policy in dict.fromkeys(named.values())}
    calm = {e.name: min(_mean_s(results[e.name, "none"]) for results in found.values()) for e in ENVIRONMENTS}
    rows = [summary(name, policy, found[policy], calm) for name, policy in named.items()]
    columns = ("policy", "silence, stall, want", "lost", "wrong", "twice", *FAULTS, *calm)
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(line(row))
    columns = ("environment", "chosen elsewhere", "slower than adaptive by", "wrong", "adaptive: wrong")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in elsewhere:
        values = f"{row['silence']:g}, {row['stall']:g}, {row['want']:g}"
        print(f"| {row['name']} | {values} | {row['slower_s']:.2f} | {row['wrong']} | {row['wrong_adaptive']} |")
    searched = [{**asdict(policy), "seconds": _seconds(r), "wrong": _wrong(r)} for policy, r in tried.items()]
    write_results(
        options.out, "deadlines", seeds=options.seeds, calm_s=calm, rows=rows, elsewhere=elsewhere, searched=searched
    )


def search(cost: Callable[[Policy], tuple[float, ...]]) -> Policy:
    """Return a fixed policy that no change of a single deadline improves."""
    best, before = MIDDLE, None
    while best != before:
        before = best
        for name, values in GRID.items():
            best = min([best, *(replace(best, **{name: value}) for value in values)], key=cost)
    return best


def chosen_elsewhere(tried: dict[Policy, Results], adaptive: Results) -> list[dict[str, Any]]:
    """For each environment, return the policy that is fastest in all others, and its result in this one; same seeds."""
    rows = []
    for name in (environment.name for environment in ENVIRONMENTS):
        best = min(tried, key=lambda policy: _seconds({k: r for k, r in tried[policy].items() if k[0] != name}))
        here, usual = ({k: r for k, r in results.items() if k[0] == name} for results in (tried[best], adaptive))
        compared = {
            "slower_s": _seconds(here) - _seconds(usual),
            "wrong": _wrong(here),
            "wrong_adaptive": _wrong(usual),
        }
        rows.append({"name": name, **asdict(best), **compared})
    return rows


def run(pool: Pool, policy: Policy, seeds: range) -> Results:
    jobs = [(*where, seed, policy) for where in product(ENVIRONMENTS, FAULTS) for seed in seeds]
    results: Results = {}
    for (environment, fault, *_), played in zip(jobs, pool.starmap(play, jobs, chunksize=8), strict=True):
        results.setdefault((environment.name, fault), []).append(played)
    return results


def play(environment: Environment, fault: str, seed: int, policy: Policy) -> Played:
    """Play one run, for at most five minutes of virtual time."""
    with policy.in_force():
        return _Trial(environment, fault, seed).play()


class _Trial:
    """One run: the peer that has the fault, the step after which it has it, and the counts."""

    def __init__(self, environment: Environment, fault: str, seed: int) -> None:
        settings = small_settings(stages=2, microbatches=6, steps=STEPS, replicas=3, checkpoint_every=1000)
        self._run = Run(Plan("calm", seed, settings, 0, environment.speeds, (), environment.weather))
        self._fault = fault
        rng = Random(f"deadlines/{seed}")
        self._victim = Actor(f"peer{1 + rng.randrange(PEERS)}", 1)
        self._after, self._part, self._swallows = rng.randrange(1, 4), rng.random(), rng.choice(("work", "frames"))
        self._decided_at = [0.0]
        self._wrong = 0
        self._sent: list[tuple[Actor, object]] = []
        world = self._run.world
        world.watch.leaving.disturbed = True  # nobody leaves in good order here
        world.network.far = {f"peer{i + 1}": seconds for i, seconds in enumerate(environment.far)}
        world.network.payload_s = {f"peer{i + 1}": seconds for i, seconds in enumerate(environment.payload_s)}
        self._decided, self._emitted, self._carry = world.watch.decided, world.watch.emitted, world.network.carry
        world.watch.decided, world.watch.emitted = self._on_decided, self._on_emitted  # type: ignore[method-assign]
        world.network.carry = self._on_carry  # type: ignore[method-assign]

    def play(self) -> Played:
        world, ended = self._run.world, True
        try:
            self._run.finish()
        except Violation as violation:
            ended = violation.invariant != "progress"
            if ended:
                raise
        seconds, frames = self._decided_at[-1] if ended else world.now, len(self._sent)
        return Played(seconds, self._wrong, frames, frames - len(set(self._sent)), ended)

    def _on_decided(self, decision: Any) -> None:
        self._decided(decision)
        world = self._run.world
        if decision.step == self._after and self._fault != "none":
            world.at(world.now + self._part * (world.now - self._decided_at[-1]), None, (self._strike, None))
        self._decided_at.append(world.now)

    def _on_emitted(self, event: Any) -> None:
        if isinstance(event, PeerFenced):
            if event.reason.startswith(REASONS):
                self._wrong += event.actor != str(self._victim) or self._fault in ("none", "slow", "losses")
            world = self._run.world
            for fenced in (peer for actor, peer in world.by_actor.items() if str(actor) == event.actor):
                fenced.disturbed_at = max(fenced.disturbed_at, world.now)  # it may not be back at the end
        self._emitted(event)

    def _on_carry(self, source: Any, to: Actor, message: Any) -> None:
        if isinstance(message, Frame):
            self._sent.append((to, message.key))
        self._carry(source, to, message)

    def _strike(self, _: None) -> None:
        world = self._run.world
        victim = world.by_actor[self._victim]
        assert isinstance(victim, SimPeer)
        match self._fault:
            case "stall":
                victim.stall()
            case "pause":
                victim.stall()
                world.at(world.now + PAUSE_S, None, (lambda _: victim.resume(), None))
            case "slow":
                victim.slowness *= SLOWER
            case "swallow":
                victim.swallow(self._swallows, world.now + SWALLOWS_S)
            case "losses":
                victim.disturbed_at = world.now + LOSSES_S
                world.network.burst(Burst(victim.pid, victim.disturbed_at, drop=LOST))


def _seconds(results: Results) -> float:
    return _mean_s([played for found in results.values() for played in found])


def _mean_s(found: list[Played]) -> float:
    return statistics.mean(played.seconds for played in found)


def _wrong(results: Results) -> int:
    return sum(played.wrong for found in results.values() for played in found)


def summary(name: str, policy: Policy, results: Results, calm: dict[str, float]) -> dict[str, Any]:
    """The means over the runs. All cases have equally many runs, so the order of taking means does not matter."""
    lost = {(where, fault): _mean_s(found) - calm[where] for (where, fault), found in results.items()}
    everything = [played for found in results.values() for played in found]
    return {
        "name": name,
        **asdict(policy),
        "lost_s": statistics.mean(lost.values()),
        "lost_of_calm": statistics.mean(seconds / calm[where] for (where, _), seconds in lost.items()),
        "wrong": _wrong(results),
        "wrong_by_fault": {f: sum(p.wrong for where in calm for p in results[where, f]) for f in FAULTS},
        "twice": sum(played.twice for played in everything) / sum(played.frames for played in everything),
        "runs": len(everything),
        "unended": sum(not played.ended for played in everything),
        "by_fault": {fault: statistics.mean(lost[where, fault] for where in calm) for fault in FAULTS},
        "by_environment": {where: statistics.mean(lost[where, fault] for fault in FAULTS) for where in calm},
    }


def line(row: dict[str, Any]) -> str:
    seconds = ", ".join("–" if row[name] is None else f"{row[name]:g}" for name in GRID)
    cells = [row["name"], seconds, f"{row['lost_s']:.2f}", str(row["wrong"]), f"{100 * row['twice']:.1f}"]
    lost = [*row["by_fault"].values(), *row["by_environment"].values()]
    return f"| {' | '.join([*cells, *(f'{seconds:.2f}' for seconds in lost)])} |"


if __name__ == "__main__":
    main()
