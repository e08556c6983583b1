"""Compares the step time over emulated home links with that over unlimited links: hosts with separate addresses, as
root.

    python -m benchmarks.home_links [--rate 80Mbit] [--delay-ms 50] [--compute emulated,real] [--replicas 1,2]

Every host is a network namespace (docs/chaos.md) that sends and receives at `--rate`, and is `--delay-ms` away from
every other host, one way. Emulated compute is a calibrated sleep, with frames of real size and the schedule that
`swarm-peer join` has by default, zero bubble; real compute is a small model of `--dim` on the cores of this machine. A
row has the step time of the fastest row with unlimited links ÷ its own; the first step is not counted. Unlimited links
are the loopback interface.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

from benchmarks.arguments import at_least, each, some_of
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm, script
from benchmarks.results import write_results
from benchmarks.slow_links import FEW_STEPS, Row, as_markdown, run_file, sent_bytes, wire_figures, with_ratios
from peers.chaos.internet import Namespaces, Place
from peers.chaos.pipe import Shape
from peers.chaos.scenario import HostPlan, NetworkPlan
from peers.options import parse_rate
from peers.run.resolved_run import resolve_run
from swarm.models.kinds import count_parameters

ROWS: dict[str, Row] = {
    "unlimited, none": Row("none", unlimited=True),
    "unlimited, subspace, int8": Row("int8", subspace=True, unlimited=True),
    "unlimited, subspace, int8, averaging dither:1": Row("int8", subspace=True, averaging="dither:1", unlimited=True),
    "none": Row("none", slow=True),
    "int8": Row("int8"),
    "int8, averaging int8": Row("int8", averaging="int8"),
    "subspace, int8": Row("int8", subspace=True),
    "subspace, int8, averaging int8": Row("int8", subspace=True, averaging="int8"),
    "subspace, int8, averaging dither:1": Row("int8", subspace=True, averaging="dither:1"),
    "subspace, int4": Row("int4", subspace=True),
    "subspace, int4, averaging int4": Row("int4", subspace=True, averaging="int4"),
}

COMPUTE = ("emulated", "real")


def main() -> None:
    options = parser().parse_args()
    with folder_with_corpus("home-links", options.data) as folder:
        table = measure(options, folder)
    print(as_markdown(table))
    write_results(options.out, "home_links", rows=table)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="a prepared corpus; else one is prepared")
    made.add_argument(
        "--rows", type=some_of(ROWS, ";"), default=";".join(ROWS), help="some of the rows, with ; between them"
    )
    made.add_argument("--compute", type=some_of(COMPUTE, ","), default=",".join(COMPUTE))
    made.add_argument("--rate", type=parse_rate, default=parse_rate("80Mbit"), help="of every host, each way")
    made.add_argument("--delay-ms", type=float, default=50.0, help="between two hosts, one way")
    made.add_argument("--mtu", type=int, default=1500)
    made.add_argument("--no-slow-start", action="store_true", help="hosts have net.ipv4.tcp_slow_start_after_idle = 0")
    made.add_argument("--stages", type=int, default=4, help="of one layer each")
    made.add_argument("--replicas", type=each(at_least(1), ","), default="1")
    made.add_argument("--microbatches", type=int, default=64, help="per replica of a stage")
    made.add_argument("--sequences", type=int, default=4, help="in a microbatch")
    made.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    made.add_argument("--dim", type=int, default=512)
    made.add_argument("--subspace-dim", type=int, default=32)
    made.add_argument("--vocab-size", type=int, default=4096)
    made.add_argument("--grid-bits", type=int, default=30, help="of the exact sums")
    made.add_argument("--forward-ms", type=float, default=20.0, help="of a microbatch at a stage, emulated")
    made.add_argument("--backward-ms", type=float, default=40.0)
    made.add_argument("--no-padding", action="store_true", help="peers do not fill the pauses of their connections")
    made.add_argument("--steps", type=at_least(2), default=8, help="the first half is not counted")
    made.add_argument("--out", type=Path)
    return made


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """Measure the table, row by row. `folder` contains a corpus in `data`."""
    table = []
    for compute in options.compute.split(","):
        for replicas in map(int, options.replicas.split(",")):
            rows = {name: _measure(folder, options, compute, name, replicas) for name in options.rows.split(";")}
            table += with_ratios(rows, ROWS)
    return table


def _measure(folder: Path, options: argparse.Namespace, compute: str, name: str, replicas: int) -> dict[str, object]:
    row = ROWS[name]
    steps = FEW_STEPS if row.slow else options.steps
    path = run_file(folder, options, row, replicas, steps)
    manifest = resolve_run(path).manifest
    parameters = count_parameters(manifest.model, 0 if options.stages < 3 else 1)
    words = [*PEERS, "join", "--threads=1", "--device=cpu", "--max-memory=2GB"]
    if compute == "emulated":
        times = (str(options.forward_ms / 1000), str(options.backward_ms / 1000))
        words = [*script("emulated_peer"), *times, str(parameters), "--zero-bubble=always"]
        words += ["--no-padding"] * options.no_padding
    peers = options.stages * replicas
    access = Shape(options.rate)
    with ExitStack() as stack:
        places: list[Place] = []
        if not row.unlimited:
            plan = NetworkPlan(
                Shape(delay_s=options.delay_ms / 1000), mtu=options.mtu, slow_start=not options.no_slow_start
            )
            internet = stack.enter_context(Namespaces(plan))
            hosts = ["coordinator", *(f"peer-{number}" for number in range(peers))]
            places = [internet.add(HostPlan(host, access, access)) for host in hosts]
        swarm = stack.enter_context(
            LocalSwarm(folder / f"{compute} {replicas} x {name}", path, [words] * peers, places)
        )
        swarm.finish(3600)
        seconds = swarm.step_seconds(steps)
        sent = [sent_bytes(swarm, number) for number in range(peers)]
    found = {
        "compute": compute,
        "replicas": replicas,
        "row": name,
        **wire_figures(sent, options.stages, manifest.batch.tokens_per_step, steps),
        "step_s": round(seconds, 3),
    }
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    main()
