"""How much a swarm on home links learns per hour ÷ how much a data centre with the same chips learns per hour.

    python -m benchmarks.time_to_loss losses --data DATA [--rows "NAME;NAME"] [--tokens 4e6]   # trains, in one process
    python -m benchmarks.time_to_loss times --data DATA [--rows …] [--lines …] [--sums …]      # step times; as root
    python -m benchmarks.time_to_loss table [--recorded FOLDER] [--tokens 4e6] [--docs docs]   # from what is there

    figure = (N_dc ÷ N) × (t_dc ÷ t_swarm)

N: tokens of the swarm's run. N_dc: tokens that the data centre needs for the loss which the swarm has after N tokens.
t_dc, t_swarm: seconds per step. The data centre has the same pipeline and chips, links without limits, and the codec
`none`: the row "dense, anchor". fp32 frames take time of the two cores here that chips of their own would not take, so
t_dc is the shortest step of any row without limits. Its loss over tokens comes from runs of 50, 70, 85 and 100 % of N,
each with its own whole schedule, with a straight line between the logarithms of tokens; never from the middle of a
longer run. Where the swarm's loss is above the shortest run's loss, N_dc is at most that run's length; where it is
below the whole run's loss, N_dc is N.

A row (benchmarks/length/rows.py) has one run file, `RUN` with the row's settings. Losses are trained with it in one
process, with the row's codings at the boundaries (benchmarks/length/training.py). Times are of a swarm of real
processes with it, whose compute is a calibrated sleep, over the emulated internet (benchmarks/home_links.py). All of
them, the data centre's too, have the schedule that `swarm-peer join` has by default: zero bubble. Sums of replicas are
exact, so the loss does not depend on replicas. With `--sums dither:1` they have a coarser grid, whose cost in loss the
figure does not contain.

With `--recorded FOLDER`, losses are those of benchmarks/at_length.py in this folder, whose steps have one microbatch.
They count for all step sizes that were timed. Otherwise losses and times have the same step size.
The time of a row whose coding the product lacks is that of `STAND_IN`, which sends no fewer bytes.

Each result is written to `--results` as soon as it is known. The command goes on where it stopped; several processes
may work on different rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import at_least, each, some_of
from benchmarks.at_length import Job, read_texts, recorded_runs
from benchmarks.compression import MODEL
from benchmarks.length.cells import Cells
from benchmarks.length.coding import Coding
from benchmarks.length.rows import DENSE, row_named
from benchmarks.length.training import Point, Texts, Training, train_beside
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.page import put_table
from benchmarks.slow_links import sent_bytes, wire_figures
from peers.chaos.internet import Namespaces, Place
from peers.chaos.pipe import UNLIMITED, Shape
from peers.chaos.scenario import HostPlan, NetworkPlan
from peers.launching.nursery import nursery_or_cold
from peers.launching.process import Launcher
from peers.run.pipeline_model import Pipeline, step_time
from peers.run.resolved_run import resolve_run
from swarm.events import StepDecided
from swarm.manifest import RunManifest
from swarm.models.kinds import count_parameters

RUN = f"""
[run]
name = "time-to-loss"
steps = 4
{MODEL}[batch]
sequences = 8
sequence_length = 128
[audit]
every = 0
[checkpoint]
every = 1000
[evaluation]
every = 0
[timing]
step_budget_s = 1200.0
"""
MICROBATCH_TOKENS = 8 * 128
"""Of RUN."""
ROWS = (DENSE, f"{DENSE}, int8", "subspace 32, int8", "subspace 8, int8")
STAND_IN = "subspace 8, int8"
_SAME = 1.02
"""Runs whose tokens differ by no more than this factor are equally long."""
WARMUP = 6
"""A run warms up for one of so many parts of its steps."""
CHIPS = {"": 1.0, "3 × faster": 1 / 3, "3 × slower": 3.0}
"""Seconds of a microbatch, of FORWARD_S and BACKWARD_S."""
CHIPS_OF_THE_GOALS = "30 + 60 ms"
FORWARD_S, BACKWARD_S = 0.030, 0.060
"""Of a microbatch of 1,024 tokens at a stage."""
STEPS, FEW_STEPS = 14, 3
"""Steps of a run, of which the second half is counted; few where fp32 frames take minutes."""


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes/s of every host in each direction (None: no limit), and seconds between two hosts, one way. `slow_start`:
    whether a connection sends slowly again after a pause (docs/slow-links.md#pauses). `pads`: whether peers fill the
    pauses.
    """

    up: int | None
    down: int | None
    delay_s: float
    slow_start: bool = True
    pads: bool = True


UNLIMITED_LINE = "unlimited"
DISTANCE = "no limit, 50 ms"
LINES: dict[str, Line | None] = {
    UNLIMITED_LINE: None,
    DISTANCE: Line(None, None, 0.05),
    "80 Mbit/s, 50 ms": Line(10_000_000, 10_000_000, 0.05),
    "40 Mbit/s, 50 ms": Line(5_000_000, 5_000_000, 0.05),
    "15 Mbit/s up, 80 down, 50 ms": Line(1_875_000, 10_000_000, 0.05),
    "80 Mbit/s, 50 ms, no slow start": Line(10_000_000, 10_000_000, 0.05, slow_start=False),
    "40 Mbit/s, 50 ms, no slow start": Line(5_000_000, 5_000_000, 0.05, slow_start=False),
    "15 Mbit/s up, 80 down, 50 ms, no slow start": Line(1_875_000, 10_000_000, 0.05, slow_start=False),
    "80 Mbit/s, 50 ms, no padding": Line(10_000_000, 10_000_000, 0.05, pads=False),
    "40 Mbit/s, 50 ms, no padding": Line(5_000_000, 5_000_000, 0.05, pads=False),
    "15 Mbit/s up, 80 down, 50 ms, no padding": Line(1_875_000, 10_000_000, 0.05, pads=False),
}


def main() -> None:
    options = parser().parse_args()
    if options.part != "table" and options.data is None:
        parser().error(f"{options.part} needs --data, a prepared corpus with a vocabulary of 4,096")
    cells = Cells(options.results)
    rows = options.rows.split(";")
    if options.part == "losses":
        _train(cells, rows, options)
    elif options.part == "times":
        _time(cells, rows, options)
    shown: list[dict[str, Any]] = []
    runs: tuple[dict[str, dict[str, Any]], dict[int, float]] = {}, {}
    for microbatches in sorted({cell["microbatches"] for cell in cells.group("times").values()}):
        runs = best_runs(_losses(cells, options.recorded, microbatches), options.tokens)
        times = {name: cell for name, cell in cells.group("times").items() if cell["microbatches"] == microbatches}
        shown += [line for line in figures(*runs, times) if line["row"] in rows]
    order = [chips or CHIPS_OF_THE_GOALS for chips in CHIPS]
    shown.sort(
        key=lambda line: (
            order.index(line["chips"]),
            line["replicas"],
            rows.index(line["row"]),
            line["sums"],
            line["microbatches"],
        )
    )
    print(markdown(shown))
    if options.docs is not None:
        from benchmarks import hours  # it needs matplotlib, of the extra 'dev'

        put_table(options.docs / "slow-links.md", "time_to_loss", markdown(shown))
        hours.draw(shown, runs[0], options.docs / "time-to-loss.svg")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("part", choices=("losses", "times", "table"))
    made.add_argument("--data", type=Path, help="a prepared corpus with a vocabulary of 4,096")
    made.add_argument("--rows", type=each(row_named, ";"), default=";".join(ROWS), help="names separated by ';'")
    made.add_argument("--tokens", type=float, default=4e6, help="of the swarm's run")
    made.add_argument("--rates", default="4e-3,8e-3", help="learning rates to choose from")
    made.add_argument(
        "--shares", default="0.5,0.7,0.85,1", help="lengths of the data centre's runs; rates are chosen on the first"
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--heldout", type=int, default=64, help="held-out batches of 1,024 tokens")
    made.add_argument("--lines", type=some_of(LINES, ";"), default=";".join(LINES), help="names separated by ';'")
    made.add_argument("--replicas", type=each(at_least(1), ","), default="1,2")
    made.add_argument("--microbatches", type=int, default=64, help="of a step, of all replicas")
    made.add_argument("--sums", default="none", help="how replicas average: none or dither:STEP")
    made.add_argument(
        "--chips",
        type=some_of(CHIPS, ","),
        default=",".join(CHIPS),
        help="names separated by ','; the empty one: 30 + 60 ms",
    )
    made.add_argument("--device", default="cpu")
    made.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of the trainings' matrix products")
    made.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE")
    made.add_argument("--results", type=Path, default=Path("benchmarks/results/time_to_loss.json"))
    made.add_argument("--recorded", type=Path, help="a folder of benchmarks/results/at_length: its losses")
    made.add_argument("--docs", type=Path, help="a folder: write the table in slow-links.md, and the plot")
    return made


def codec_of(coding: Coding) -> str:
    """The product's codec for a coding of the study. Raises ValueError for one that the product lacks."""
    if coding.kind == "none":
        return "none"
    if coding.kind == "uniform":
        return f"int{coding.bits}{'-channel' if coding.channels else ''}"
    if coding == Coding("entropy", step=coding.step):
        return f"entropy:{coding.step:g}"
    if coding == Coding("entropy", step=coding.step, keyed=True, peaky=True):
        return f"entropy-dithered:{coding.step:g}"
    raise ValueError(f"no codec does what the coding {coding.kind!r} does")


def settings(row: str, data: Path, more: Sequence[str] = ()) -> list[str]:
    """Overrides of RUN for a row. Raises ValueError for a name that means nothing or has no codec."""
    meant = row_named(row)
    forward, backward = (codec_of(coding) for coding in meant.codings)
    codecs = (f"codec.forward={forward}", f"codec.backward={backward}")
    return [f"data.directory={data.resolve()}", *meant.sets, *codecs, *more]


def data_centre_tokens(runs: Mapping[int, float], loss: float) -> float:
    """Tokens that the data centre needs for `loss`.

    `runs`: loss in nats by tokens of a run with its own schedule. Between two runs, loss falls linearly in the
    logarithm of the tokens. Below the shortest run, the line through the two shortest goes on; beyond the longest, the
    answer is the longest.
    """
    known = sorted(runs.items())
    if loss <= known[-1][1]:
        return float(known[-1][0])
    pairs = list(itertools.pairwise(known))
    (fewer, worse), (more, better) = next((pair for pair in pairs if pair[1][1] <= loss <= pair[0][1]), pairs[0])
    part = (worse - loss) / (worse - better)
    return fewer * math.exp(part * math.log(more / fewer))


# -- losses --


def _losses(cells: Cells, recorded: Path | None, microbatches: int) -> list[dict[str, Any]]:
    """All known runs whose steps have so many microbatches; with `recorded`, the runs of that folder."""
    if recorded is not None:
        return cells_of(recorded_runs(recorded))
    return [cell for cell in cells.group("losses").values() if cell["microbatches"] == microbatches]


def _train(cells: Cells, rows: Sequence[str], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="time-to-loss-") as folder:
        path = Path(folder) / "RUN.toml"
        path.write_text(RUN)
        texts = read_texts(options.data)
        for row in rows:
            rates = [float(rate) for rate in options.rates.split(",")]
            best = rates[0]
            first, *others = [float(share) for share in options.shares.split(",")]
            if row == DENSE or len(rates) > 1:
                trials = {rate: _loss(cells, path, texts, options, row, first, rate) for rate in rates}
                best = min(rates, key=lambda rate: trials[rate] if math.isfinite(trials[rate]) else math.inf)
            for share in others if row == DENSE else (1.0,):
                _loss(cells, path, texts, options, row, share, best)


def _loss(
    cells: Cells, path: Path, texts: Texts, options: argparse.Namespace, row: str, share: float, rate: float
) -> float:
    """Held-out loss of a row after a run of its own of this share of the tokens, from the cells where it is known."""
    manifest = _manifest(path, options, row, 1, rate)
    steps = max(1, round(share * options.tokens / manifest.batch.tokens_per_step))
    name = f"{row} | {steps} steps of {manifest.batch.microbatches} microbatches | rate {rate:g} | seed {options.seed}"
    known = cells.group("losses").get(name)
    if known is None:
        manifest = _manifest(path, options, row, steps, rate)
        training = Training(
            manifest,
            row_named(row).codings,
            texts,
            torch.device(options.device),
            heldout_batches=options.heldout,
            compiled=options.device == "cpu",
            half=options.precision == "bf16",
        )
        train_beside([training], steps, 4)
        known = {
            "row": row,
            "steps": steps,
            "microbatches": manifest.batch.microbatches,
            "tokens": steps * manifest.batch.tokens_per_step,
            "rate": rate,
            "warmup": manifest.optimizer.warmup_steps,
            "seed": options.seed,
            "precision": options.precision,
            "points": [asdict(point) for point in training.curve],
        }
        cells.put("losses", name, known)
        print(f"{name}: {training.curve[-1].loss:.4f}", flush=True)
    return float(known["points"][-1]["loss"])


def _manifest(path: Path, options: argparse.Namespace, row: str, steps: int, rate: float) -> RunManifest:
    more = [
        *options.overrides,
        f"batch.microbatches={options.microbatches}",
        f"run.steps={steps}",
        f"run.seed={options.seed}",
        f"optimizer.learning_rate={rate}",
        f"optimizer.warmup_steps={math.ceil(steps / WARMUP)}",
    ]
    return resolve_run(path, settings(row, options.data, more)).manifest


# -- times --


def _time(cells: Cells, rows: Sequence[str], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="time-to-loss-") as made, nursery_or_cold() as launcher:
        folder = Path(made)
        (folder / "RUN.toml").write_text(RUN)
        for chips in options.chips.split(","):
            for replicas in map(int, options.replicas.split(",")):
                for row in rows:
                    for line in options.lines.split(";"):
                        told = f"{replicas} replicas, sums {options.sums} | {options.microbatches} microbatches"
                        name = f"{row} | {told} | {line} | {chips or CHIPS_OF_THE_GOALS}"
                        if name not in cells.group("times"):
                            found = _step_time(folder, options, row, replicas, line, chips, launcher)
                            cells.put("times", name, found)
                            print(json.dumps(found), flush=True)


def _step_time(
    folder: Path, options: argparse.Namespace, row: str, replicas: int, line: str, chips: str, launcher: Launcher
) -> dict[str, Any]:
    path = folder / "RUN.toml"
    slow = row == DENSE and line != UNLIMITED_LINE
    steps = FEW_STEPS if slow else STEPS
    batch = (f"batch.microbatches={options.microbatches}", f"sums.averaging={options.sums}")
    more = [*options.overrides, *batch, f"run.steps={steps}", f"swarm.replicas={replicas}"]
    overrides = settings(row, options.data, more)
    manifest = resolve_run(path, overrides).manifest
    stages = manifest.model.stages
    seconds = [str(CHIPS[chips] * each) for each in (FORWARD_S, BACKWARD_S)]
    words = [*script("emulated_peer"), *seconds, str(count_parameters(manifest.model, 1)), "--zero-bubble=always"]
    peers = stages * replicas
    shape = LINES[line]
    words += ["--no-padding"] * (shape is not None and not shape.pads)
    with ExitStack() as stack:
        places: list[Place] = []
        if shape is not None:
            internet = stack.enter_context(
                Namespaces(NetworkPlan(Shape(delay_s=shape.delay_s), slow_start=shape.slow_start))
            )
            up, down = (UNLIMITED if rate is None else Shape(rate) for rate in (shape.up, shape.down))
            hosts = ["coordinator", *(f"peer-{number}" for number in range(peers))]
            places = [internet.add(HostPlan(host, up, down)) for host in hosts]
        home = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        swarm = stack.enter_context(
            LocalSwarm(Path(home) / "swarm", path, [words] * peers, places, launcher, overrides)
        )
        swarm.finish(3600)
        decided = [at for at, event in swarm.events() if isinstance(event, StepDecided)]
        swarm.seconds_by_step(steps)  # raises if a step was run twice
        sent = [sent_bytes(swarm, number) for number in range(peers)]
    forward_s, backward_s = (CHIPS[chips] * each for each in (FORWARD_S, BACKWARD_S))
    pipeline = Pipeline((forward_s,) * stages, (backward_s,) * stages, zero_bubble=True)
    microbatches = manifest.batch.microbatches // replicas
    return {
        "row": row,
        "replicas": replicas,
        "sums": options.sums,
        "microbatches": options.microbatches,
        "line": line,
        "chips": chips or CHIPS_OF_THE_GOALS,
        "step_s": round(statistics.median([b - a for a, b in itertools.pairwise(decided)][steps // 2 - 1 :]), 3),
        "ideal_s": round(step_time(pipeline, microbatches), 3),
        **wire_figures(sent, stages, manifest.batch.tokens_per_step, steps),
    }


# -- the measure --


def figures(
    whole: Mapping[str, Mapping[str, Any]], centre: Mapping[int, float], times: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A line for each row, number of replicas, kind of sums and chips of which loss and times are known.

    `whole`, `centre`: what `best_runs` returns. `times`: cells by name, all of one step size.
    """
    seconds = {
        (cell["row"], cell["replicas"], cell["sums"], cell["chips"], cell["line"]): cell for cell in times.values()
    }
    table: list[dict[str, Any]] = []
    if len(centre) < 2:  # no line to read tokens from
        return table
    for row, replicas, sums, chips in dict.fromkeys((row, *key[1:4]) for key in seconds for row in whole):
        unlimited = [
            cell["step_s"] for key, cell in seconds.items() if (key[1], *key[3:]) == (replicas, chips, UNLIMITED_LINE)
        ]
        timed = row if has_codec(row) else STAND_IN
        asked = {line: (timed, replicas, sums, chips, line) for line in LINES}
        found = {line: seconds[key] for line, key in asked.items() if key in seconds}
        if not found or (DENSE, replicas, "none", chips, UNLIMITED_LINE) not in seconds:
            continue
        centre_s = min(unlimited)
        loss, tokens = whole[row]["points"][-1]["loss"], whole[row]["tokens"]
        share = data_centre_tokens(centre, loss) / tokens
        step_s = {line: cell["step_s"] for line, cell in found.items()}
        cell = next(iter(found.values()))
        table.append(
            {
                "row": row,
                "timed_as": timed,
                "replicas": replicas,
                "sums": sums,
                "microbatches": cell["microbatches"],
                "chips": chips,
                "rate": whole[row]["rate"],
                "loss": loss,
                "tokens": tokens,
                "tokens_share": round(share, 3),
                "bytes": cell["bytes per token and boundary"] if timed == row else coded_bytes(whole[row]["points"]),
                "ideal_s": cell["ideal_s"],
                "step_s": step_s,
                "centre_s": centre_s,
                "figure": {line: round(share * centre_s / step, 3) for line, step in step_s.items()},
            }
        )
    return table


def best_runs(losses: Sequence[dict[str, Any]], tokens: float) -> tuple[dict[str, dict[str, Any]], dict[int, float]]:
    """By row, the run of `tokens` that ended best; and the data centre's loss by tokens, up to `tokens`."""
    whole: dict[str, dict[str, Any]] = {}
    centre: dict[int, float] = {}
    for run in losses:
        loss = run["points"][-1]["loss"]
        if not math.isfinite(loss) or run["tokens"] > _SAME * tokens:
            continue
        if run["row"] == DENSE:
            centre[run["tokens"]] = min(loss, centre.get(run["tokens"], math.inf))
        if run["tokens"] * _SAME > tokens and loss < whole.get(run["row"], run)["points"][-1]["loss"] + 1e-9:
            whole[run["row"]] = run
    return whole, centre


def cells_of(runs: Mapping[Job, Sequence[Point]]) -> list[dict[str, Any]]:
    """Runs of benchmarks/at_length.py with the fields of a cell of `losses`."""
    told = {job: [asdict(point) for point in points] for job, points in runs.items()}
    return [{**asdict(job), "points": points, "tokens": points[-1]["tokens"]} for job, points in told.items()]


def coded_bytes(points: Sequence[Mapping[str, Any]]) -> float:
    """Bytes of a token at a boundary, both ways, with its id of 2 bytes: the mean over a run's points."""
    bits = [float(point["forward_bits"] + point["backward_bits"]) for point in points]
    return round(2 + statistics.mean(bits) / 8, 1)


def has_codec(row: str) -> bool:
    """True if the product has a codec for each of the row's codings."""
    try:
        [codec_of(coding) for coding in row_named(row).codings]
    except ValueError:
        return False
    return True


def markdown(table: Sequence[dict[str, Any]]) -> str:
    """Under each line that was timed: seconds per step, and the figure."""
    timed = [line for line in LINES if any(line in row["step_s"] for row in table)]
    heads = ["compute", "replicas", "row", "sums", "microbatches", "bytes", "loss", "N_dc ÷ N", "data centre", *timed]
    lines = ["| " + " | ".join(heads) + " |", "|---|---:|---|---|" + (len(heads) - 4) * "---:|"]
    for row in table:
        sums = "–" if row["replicas"] == 1 else {"none": "exact"}.get(row["sums"], row["sums"])
        cells = [row["chips"], row["replicas"], row["row"], sums, row["microbatches"], row["bytes"]]
        cells += [f"{row['loss']:.3f}", row["tokens_share"]]
        cells.append(f"{row['centre_s']:.2f}")
        for line in timed:
            step_s = row["step_s"].get(line)
            cells.append("–" if step_s is None else f"{step_s:.2f}: **{row['figure'][line]:.2f}**")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
