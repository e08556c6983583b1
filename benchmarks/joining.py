"""Measures what a join takes while the others train: the time to the first useful microbatch, in parts, and what others
lose.

    python -m benchmarks.joining [--dim 1024] [--joiners 1] [--averaging none,powersgd:4] [--link 80Mbit] [--after-s 0]

It needs root. 2 stages × 2 peers train on an emulated internet; every peer has `--link` up and down and a round trip of
50 ms. They compute the real model at the pace of `--forward-ms` and `--backward-ms` per microbatch. When `--before`
steps are decided, and `--after-s` later, the joiners are started, all at once. The moment matters, because the state
arrives at another point of a step and competes with other data on the lines.

    bound            = start-up + 1.15 × state bytes ÷ link
    bound_of_all     = start-up + 1.15 × (state bytes + bytes of sums) ÷ link

The sums are those that the newcomer fetched until its first forward was done. Start-up is the time from the process's
start until the peer is told its stage; it includes measuring the link. `until_forwarded_s` is the time until that first
forward, whose output the next stage computes with. `total_s` is the time until that microbatch is in the newcomer's
sum, for which it waits in the queues of the stages after it. The rate of the other peers is the usual step (the median
of the steps before) ÷ the median of the steps that were open while states were downloaded. A stage with one replica
more reduces for longer: `step_after_s` is the median of the steps that began when all newcomers were of use.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections import Counter
from pathlib import Path

from benchmarks.arguments import at_least, each
from benchmarks.corpus import folder_with_corpus
from benchmarks.results import write_results
from benchmarks.scenarios import Report, play
from peers.options import parse_rate
from swarm.events import (
    Event,
    Gathered,
    MicrobatchAccumulated,
    MicrobatchForwarded,
    PassOpened,
    PeerJoined,
    ProcessStarted,
    StageAmended,
    StateFetched,
    StepApplied,
    StepDecided,
    read_log,
)

INCUMBENTS = 4
RUN = """
[run]
name = "joining"
steps = {steps}
[model]
vocab_size = 512
dim = {dim}
layers = 4
heads = 8
kv_heads = 2
ffn_dim = {ffn_dim}
context = 32
cuts = [2]
[batch]
microbatches = {microbatches}
sequences = 1
sequence_length = 32
[sums]
averaging = "{averaging}"
[checkpoint]
every = {steps}
[evaluation]
every = 0
[swarm]
replicas = 2
max_replicas = 16
[timing]
step_budget_s = 600.0
[audit]
every = 0
[data]
directory = "data"
"""
SCENARIO = """
about = "{joiners} join at once over {link} while four train; state of {dim} wide layers, averaging {averaging}."
run = "{run}"
peers = {incumbents}
pace = ["{forward_ms}ms", "{backward_ms}ms"]
patience = "600s"

[network]
up = "{link}"
down = "{link}"
delay = "25ms"
mtu = 9000

[hosts.coordinator]
up = "1Gbit"
down = "1Gbit"
{hosts}
[[fault]]
name = "join"
do = "join"
who = {names}
after_step = {before}
at = "{after_s:g}s"

[expect]
equal = {equal}

[[expect.event]]
event = "PeerFenced"
never = true
"""
Log = list[tuple[float, Event]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=1024, help="of the model; two layers make a stage")
    parser.add_argument("--link", default="80Mbit")
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--forward-ms", type=float, default=500.0)
    parser.add_argument("--backward-ms", type=float, default=1000.0)
    parser.add_argument("--averaging", default="none,powersgd:4")
    parser.add_argument("--joiners", type=each(at_least(1), ","), default="1")
    parser.add_argument(
        "--before", type=at_least(2), default=3, help="steps before anybody joins; the first is not counted"
    )
    parser.add_argument("--after-s", default="0", help="seconds; several with commas between: a play with each")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--memory", default="4GB", help="of each peer, to plan with")
    parser.add_argument("--equal", action="store_true", help="compare with one process at the end; takes as long again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with folder_with_corpus("joining", vocab_size=500) as folder:
        listed = (options.joiners.split(","), options.averaging.split(","), options.after_s.split(","))
        for joiners, averaging, after_s in itertools.product(*listed):
            rows.append(_row(folder, options, int(joiners), averaging, float(after_s)))
            print(json.dumps(rows[-1]), flush=True)
            write_results(options.out, "joining", rows=rows)


def _row(folder: Path, options: argparse.Namespace, joiners: int, averaging: str, after_s: float) -> dict[str, object]:
    name = f"joining-{joiners}-{averaging.replace(':', '-')}-{after_s:g}"
    names = [f"j{number}" for number in range(joiners)]
    _write(folder, name, options, names, averaging, after_s)
    (report,) = play([folder / f"{name}.toml"], folder / "played")
    if not report["good"]:
        raise SystemExit("\n".join(report["failures"]))
    homes = folder / "played" / name / "homes"
    coordinator = list(read_log(homes / "coordinator" / "events.jsonl"))
    logs = {host: list(read_log(homes / host / "events.jsonl")) for host in names}
    for host, log in logs.items():
        if not any(isinstance(event, MicrobatchAccumulated) for _, event in log):
            raise SystemExit(f"{host} was of no use before the last step: choose more --steps than {options.steps}")
    parts = [_parts(log, coordinator, _spawned_at(report, coordinator)) for log in logs.values()]
    states = [event for log in logs.values() for _, event in log if isinstance(event, Gathered) and _is_state(event)]
    load: Counter[str] = Counter()
    for event in states:
        load.update(event.by_donor)
    rate = parse_rate(options.link)
    nbytes = max(event.nbytes for event in states)
    medians = {key: round(statistics.median(part[key] for part in parts), 2) for key in parts[0]}
    usual, during, after = _step_seconds(coordinator, logs, options.before)
    return {
        "joiners": joiners,
        "averaging": averaging,
        "after_s": after_s,
        "state_MB": round(nbytes / 1e6, 1),
        "bytes_over_rate_s": round(nbytes / rate, 2),
        **medians,
        "bound_s": round(medians["start_up_s"] + 1.15 * nbytes / rate, 2),
        "bound_of_all_s": round(medians["start_up_s"] + 1.15 * (nbytes + medians["sums_MB"] * 1e6) / rate, 2),
        "step_s": round(usual, 2),
        "step_while_joining_s": round(during, 2),
        "step_after_s": None if after is None else round(after, 2),
        "incumbents_rate": round(usual / during, 3),
        "donors": len(load),
        "donor_load_max_over_mean": round(max(load.values()) * len(load) / sum(load.values()), 2),
        "in_the_midst": sum(isinstance(e, StageAmended) and e.entrant is not None for _, e in coordinator),
        "equal": report["equal"],
    }


def _write(
    folder: Path, name: str, options: argparse.Namespace, names: list[str], averaging: str, after_s: float
) -> None:
    """Write the run and its scenario, `folder`/NAME.toml."""
    run = RUN.format(
        steps=options.steps,
        dim=options.dim,
        ffn_dim=options.dim * 11 // 4 // 8 * 8,
        microbatches=options.microbatches,
        averaging=averaging,
    )
    (folder / f"RUN-{name}.toml").write_text(run)
    hosts = [f'[hosts.{host}]\noptions = ["--max-memory={options.memory}"]' for host in (*_incumbents(), *names)]
    scenario = SCENARIO.format(
        joiners=len(names),
        link=options.link,
        dim=options.dim,
        averaging=averaging,
        run=f"RUN-{name}.toml",
        incumbents=INCUMBENTS,
        forward_ms=options.forward_ms,
        backward_ms=options.backward_ms,
        hosts="\n".join(hosts),
        names=json.dumps(names),
        before=options.before,
        after_s=after_s,
        equal=str(options.equal).lower(),
    )
    (folder / f"{name}.toml").write_text(scenario)


def _incumbents() -> list[str]:
    return [f"p{number}" for number in range(INCUMBENTS)]


def _spawned_at(report: Report, coordinator: Log) -> float:
    """Return when the joiners' processes were started, in Unix seconds."""
    first = next(at for at, event in coordinator if isinstance(event, PassOpened) and event.pass_kind == "train")
    return float(first + next(episode["at_s"] for episode in report["episodes"] if episode["fault"] == "join"))


def _parts(log: Log, coordinator: Log, spawned_at: float) -> dict[str, float]:
    """Seconds of each part, from the start of the process to its first microbatch in a sum."""
    actor = next(event.actor for _, event in log if isinstance(event, ProcessStarted))
    placed = next(at for at, event in coordinator if isinstance(event, PeerJoined) and event.actor == actor)
    gathered_at, state = next((at, e) for at, e in log if isinstance(e, Gathered) and _is_state(e))
    loaded = next(at for at, event in log if isinstance(event, StateFetched))
    useful = next(at for at, event in log if isinstance(event, MicrobatchAccumulated))
    begun = next(at for at, event in log if isinstance(event, MicrobatchForwarded | MicrobatchAccumulated))
    caught_up = max((at for at, event in log if isinstance(event, StepApplied) and at < useful), default=loaded)
    sums = [e for at, e in log if isinstance(e, Gathered) and not _is_state(e) and at < begun]
    return {
        "sums_MB": sum(event.nbytes for event in sums) / 1e6,
        "start_up_s": placed - spawned_at,
        "until_told_s": gathered_at - state.index_s - state.pieces_s - placed,
        "index_s": state.index_s,
        "pieces_s": state.pieces_s,
        "load_s": loaded - gathered_at,
        "catching_up_and_waiting_s": caught_up - loaded,
        "first_microbatch_s": useful - caught_up,
        "until_loaded_s": loaded - spawned_at,
        "until_forwarded_s": begun - spawned_at,
        "total_s": useful - spawned_at,
    }


def _step_seconds(coordinator: Log, logs: dict[str, Log], before: int) -> tuple[float, float, float | None]:
    """The median steps: before anybody joined, while a state was being downloaded, and after all newcomers were of use,
    if any were.
    """
    opened = {
        e.pass_id.rsplit(":", 1)[1]: at for at, e in coordinator if isinstance(e, PassOpened) and e.pass_kind == "train"
    }
    steps = [(e.step, opened[str(e.step)], at) for at, e in coordinator if isinstance(e, StepDecided)]
    gathered = [(at, e) for log in logs.values() for at, e in log if isinstance(e, Gathered) and _is_state(e)]
    began = min(at - e.index_s - e.pieces_s for at, e in gathered)
    ended = max(at for at, _ in gathered)
    usual = [end - start for step, start, end in steps if 1 <= step < before]
    during = [end - start for step, start, end in steps if start < ended and end > began]
    useful = max(next(at for at, event in log if isinstance(event, MicrobatchAccumulated)) for log in logs.values())
    after = [end - start for _, start, end in steps if start > useful]
    return statistics.median(usual), statistics.median(during), statistics.median(after) if after else None


def _is_state(event: Gathered) -> bool:
    return event.what.startswith("state")


if __name__ == "__main__":
    main()
