"""Measures the step time of a swarm on slow uplinks for each codec, against unlimited links, over real libp2p.

    python -m benchmarks.slow_links [--stages 4] [--replicas 1,2] [--overload 12.5] [--microbatches 64]

Compute is a calibrated sleep, so that more peers than cores can be measured. Frames have the bytes of the real codec
and are decoded; random gradients are added and averaged exactly; every stage has the parameters of a middle stage.
Every peer sends at most `--max-rate`. This rate is such that a peer in the middle needs `--overload` times its compute
time to send its activations and gradients in fp32. A row's ratio is the step time of the fastest unlimited row ÷ its
own; the first step of a row is not counted. Bytes include headers, token ids and scales; data that goes through a third
peer counts twice (`detours`: how often this began; 0 if all peers reach each other). Rows `auto` choose their codecs
during the run: they run longer, and only the steps since the last choice count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import at_least, each, some_of
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.results import write_results
from peers.launching.nursery import nursery_or_cold
from peers.launching.process import Launcher
from peers.run.resolved_run import resolve_run
from swarm.events import CodecChosen, RouteChanged, TrafficMeasured
from swarm.manifest import AUTO
from swarm.models.kinds import count_parameters
from swarm.protocol.coordinator.codec_choice.choice import DWELL

RUN = """
[run]
name = "slow-links"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = {vocab_size}
dim = {dim}
layers = {stages}
heads = 4
kv_heads = 4
ffn_dim = {ffn_dim}
context = {length}
cuts = {cuts}
{narrow}
[batch]
microbatches = {microbatches}
sequences = {sequences}
sequence_length = {length}
[codec]
forward = "{codec}"
backward = "{codec}"
[sums]
grid_bits = {grid_bits}
averaging = "{averaging}"
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = {replicas}
[timing]
step_budget_s = 1200.0
"""
FEW_STEPS = 2
SETTLING_STEPS = 2 * DWELL


@dataclass(frozen=True, slots=True)
class Row:
    codec: str
    subspace: bool = False
    averaging: str = "none"
    """The value of sums.averaging: what replicas exchange."""
    unlimited: bool = False
    slow: bool = False
    """True if the row is slow. It then runs FEW_STEPS only."""


ROWS: dict[str, Row] = {
    "unlimited, none": Row("none", unlimited=True),
    "none": Row("none", slow=True),
    "bf16": Row("bf16", slow=True),
    "int8": Row("int8"),
    "int4": Row("int4"),
    "subspace, int8": Row("int8", subspace=True),
    "subspace, int4": Row("int4", subspace=True),
    "subspace, int8, averaging int8": Row("int8", subspace=True, averaging="int8"),
    "subspace, int8, averaging dither:1": Row("int8", subspace=True, averaging="dither:1"),
    "subspace, int4, averaging int4": Row("int4", subspace=True, averaging="int4"),
    "unlimited, subspace, int8": Row("int8", subspace=True, unlimited=True),
    "auto": Row("auto"),
    "unlimited, auto": Row("auto", unlimited=True),
}


def main() -> None:
    options = parser().parse_args()
    with folder_with_corpus("slow-links", options.data) as folder:
        table = measure(options, folder)
    print(as_markdown(table))
    write_results(options.out, "slow_links", rows=table)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, help="a prepared corpus; else one is prepared")
    made.add_argument(
        "--rows", type=some_of(ROWS, ";"), default=";".join(ROWS), help="some of the rows, with ; between them"
    )
    made.add_argument("--stages", type=int, default=4, help="of one layer each")
    made.add_argument("--replicas", type=each(at_least(1), ","), default="1,2")
    made.add_argument("--microbatches", type=int, default=64, help="per replica of a stage")
    made.add_argument("--sequences", type=int, default=4, help="in a microbatch")
    made.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    made.add_argument("--dim", type=int, default=128)
    made.add_argument("--subspace-dim", type=int, default=16)
    made.add_argument("--vocab-size", type=int, default=4096)
    made.add_argument("--grid-bits", type=int, default=30, help="of the exact sums")
    made.add_argument("--forward-ms", type=float, default=20.0, help="of a microbatch at a stage")
    made.add_argument("--backward-ms", type=float, default=40.0)
    made.add_argument("--overload", type=float, default=12.5, help="time to send fp32 frames ÷ time to compute")
    made.add_argument("--steps", type=at_least(2), default=4, help="the first is not counted")
    made.add_argument("--out", type=Path)
    return made


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """Measure the table, row by row. `folder` contains a corpus in `data`."""
    table = []
    with nursery_or_cold() as launcher:
        for replicas in map(int, options.replicas.split(",")):
            names = options.rows.split(";")
            rows = {name: _measure(folder, options, name, ROWS[name], replicas, launcher) for name in names}
            table += with_ratios(rows, ROWS)
    return table


def with_ratios(found: dict[str, dict[str, Any]], rows: Mapping[str, Row]) -> list[dict[str, object]]:
    """The results of `rows`, each with the step time of the fastest unlimited row ÷ its own. None if there is no
    unlimited row.
    """
    best = min((each["step_s"] for name, each in found.items() if rows[name].unlimited), default=None)
    return [{**each, "ratio": None if best is None else round(best / each["step_s"], 3)} for each in found.values()]


def as_markdown(table: list[dict[str, object]]) -> str:
    names = list(table[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in table)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def upload_rate(options: argparse.Namespace) -> int:
    """Bytes per second that every peer may send."""
    fp32 = 2 * 4 * options.sequences * options.length * options.dim
    return int(fp32 / ((options.forward_ms + options.backward_ms) / 1000) / options.overload)


def _measure(
    folder: Path, options: argparse.Namespace, name: str, row: Row, replicas: int, launcher: Launcher
) -> dict[str, object]:
    steps = FEW_STEPS if row.slow else options.steps
    if row.codec == AUTO:
        steps += SETTLING_STEPS
    path = run_file(folder, options, row, replicas, steps)
    manifest = resolve_run(path).manifest
    parameters = count_parameters(manifest.model, 0 if options.stages < 3 else 1)
    words = [*script("emulated_peer"), str(options.forward_ms / 1000), str(options.backward_ms / 1000), str(parameters)]
    if not row.unlimited:
        words += ["--max-rate", f"{upload_rate(options)}B"]
    home = folder / f"{replicas} x {name}"
    with LocalSwarm(home, path, [words] * (options.stages * replicas), launcher=launcher) as swarm:
        swarm.finish(3600)
        chosen = [event for _, event in swarm.events() if isinstance(event, CodecChosen)]
        settled = max((event.step for event in chosen), default=0)
        seconds = swarm.step_seconds(steps, max(1, settled))
        sent = [sent_bytes(swarm, number) for number in range(options.stages * replicas)]
        logs = [swarm.events(f"peer-{number}") for number in range(options.stages * replicas)]
        detours = sum(isinstance(event, RouteChanged) for log in logs for _, event in log)
    codecs = {(event.boundary, event.direction): event.codec for event in chosen}
    pairs = [f"{codecs[b, 'forward']}/{codecs[b, 'backward']}" for b in sorted({boundary for boundary, _ in codecs})]
    averaging = sum(each["reduce"] for each in sent) / len(sent) / steps
    found = {
        "replicas": replicas,
        "row": name,
        "codecs": " ".join(pairs) or row.codec,
        **wire_figures(sent, options.stages, manifest.batch.tokens_per_step, steps),
        "averaging, bytes per parameter": round(averaging / parameters, 2),
        "step_s": round(seconds, 3),
        "detours": detours,
    }
    print(json.dumps(found), flush=True)
    return found


def run_file(folder: Path, options: argparse.Namespace, row: Row, replicas: int, steps: int) -> Path:
    """Write RUN.toml of a row into `folder`."""
    narrow = f'residual = "subspace"\nsubspace_dim = {options.subspace_dim}\ntail_layers = 1' if row.subspace else ""
    path = folder / "RUN.toml"
    path.write_text(
        RUN.format(
            steps=steps,
            vocab_size=options.vocab_size,
            dim=options.dim,
            stages=options.stages,
            ffn_dim=options.dim * 8 // 3 // 8 * 8,
            length=options.length,
            cuts=list(range(1, options.stages)),
            narrow=narrow,
            microbatches=options.microbatches * replicas,
            sequences=options.sequences,
            codec=row.codec,
            grid_bits=options.grid_bits,
            averaging=row.averaging,
            replicas=replicas,
        )
    )
    return path


def wire_figures(sent: Sequence[dict[str, int]], stages: int, tokens_per_step: int, steps: int) -> dict[str, float]:
    """The bytes that crossed, from what each peer sent in all (`sent_bytes`)."""
    crossed = sum(each["activation"] + each["gradient"] for each in sent)
    averaged, padding = (sum(each[kind] for each in sent) for kind in ("reduce", "padding"))
    return {
        "bytes per token and boundary": round(crossed / ((stages - 1) * tokens_per_step * steps), 1),
        "averaging, kB per peer and step": round(averaged / len(sent) / steps / 1000, 1),
        "padding, kB per peer and step": round(padding / len(sent) / steps / 1000, 1),
    }


def sent_bytes(swarm: LocalSwarm, number: int) -> dict[str, int]:
    """Bytes that a peer sent in all, by channel."""
    return [event for _, event in swarm.events(f"peer-{number}") if isinstance(event, TrafficMeasured)][-1].sent


if __name__ == "__main__":
    main()
