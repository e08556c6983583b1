"""What compression costs after millions of tokens: held-out loss, bytes, and the share of a boundary's worth kept.

    python -m benchmarks.at_length --data DATA [--rows "NAME;NAME"] [--tokens 4e6] [--rates 2e-3,4e-3,8e-3]
                                   [--screen 1e6] [--seeds 0] [--device cuda] [--beside 8] [--recorded FOLDER]
                                   [--docs docs]

`DATA` is a folder that `swarm-peer prepare` made, with a vocabulary of 4,096. benchmarks/length/rows.py tells
how rows are named. Each row is trained with each rate for `--screen` tokens, then with its best rate for `--tokens`, so
that no row is compared at another one's recipe. The model is the product's, in four stages of one layer; the boundaries
are coded as benchmarks/length/coding.py says.
What has been trained before is read from `--cache`, where each corpus has a folder, named after it and its digest: the
command goes on where it stopped. With `--recorded FOLDER` it reads that folder instead, and trains nothing: it shows
each row at the best rate of its recorded runs of `--tokens`.

    kept = (loss of ids alone − loss of the row) ÷ (loss of ids alone − loss of the dense model)

`ids alone` is the last stage by itself, which receives nothing but token ids. So kept is 0 for a boundary that is of no
use and 1 for one that costs nothing, however long the run is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.compression import RUN
from benchmarks.length.coding import told_apart
from benchmarks.length.rows import DENSE, IDS, row_named
from benchmarks.length.training import Point, Texts, Training, train_beside
from benchmarks.page import put_table
from benchmarks.results import write_results
from peers.run.resolved_run import resolve_run
from swarm.manifest import RunManifest

HELDOUT_BATCHES = 64
Points = tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One training run."""

    row: str
    seed: int
    rate: float
    warmup: int
    steps: int


class Study:
    """Trainings by job, from the cache where they have been done."""

    def __init__(self, options: argparse.Namespace, run_file: Path) -> None:
        self._options, self._run_file = options, run_file
        self._device = torch.device(options.device)
        self._texts: Texts | None = None
        self._ends = math.inf if options.limit is None else time.monotonic() + options.limit
        if options.recorded is not None:
            self._ends = -math.inf
        self._folder: Path = options.cache / (options.recorded or self._corpus())

    def steps(self, tokens: float) -> int:
        return max(1, round(tokens / self._manifest(Job(DENSE, 0, 1e-3, 1, 1)).batch.tokens_per_step))

    def best_recorded_rate(self, row: str, steps: int) -> float:
        """The rate whose recorded runs of this row and length ended best, by their mean; NaN if there are none."""
        ended: dict[float, list[float]] = {}
        for job, points in recorded_runs(self._folder, self._options.overrides, self._options.heldout).items():
            if (job.row, job.steps) == (row, steps):
                ended.setdefault(job.rate, []).append(points[-1].loss)
        means = {rate: statistics.mean(losses) for rate, losses in ended.items()}
        sound = {rate: loss for rate, loss in means.items() if math.isfinite(loss)}
        return min(sound, key=lambda rate: sound[rate], default=math.nan)

    def width(self) -> int:
        return self._manifest(Job(DENSE, 0, 1e-3, 1, 1)).model.dim

    def curves(self, jobs: Sequence[Job]) -> dict[Job, tuple[Point, ...]]:
        """Train the jobs that fit into the time, and return the known results of all of them."""
        missing = [job for job in jobs if not self._file(job).exists()]
        for chunk in _chunks(missing, self._options.beside):
            if time.monotonic() < self._ends:
                self._train(chunk)
        return {job: self._read(job) for job in jobs if self._file(job).exists()}

    def _train(self, jobs: Sequence[Job]) -> None:
        began = time.monotonic()
        trainings = [self._training(job) for job in jobs]
        ready = time.monotonic()
        train_beside(trainings, jobs[0].steps, self._options.points)
        spent = time.monotonic() - ready
        for job, training in zip(jobs, trainings, strict=True):
            points = [asdict(point) for point in training.curve]
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(job).write_text(json.dumps({"job": asdict(job), "points": points}) + "\n")
            last = training.curve[-1]
            size = (last.forward_bits + last.backward_bits) / 8
            print(f"{job.row}, seed {job.seed}, rate {job.rate:g}: {last.loss:.4f}, {size:.1f} bytes", flush=True)
        print(f"{len(jobs)} × {jobs[0].steps} steps in {spent:.0f} s, {ready - began:.0f} s before them", flush=True)

    def _training(self, job: Job) -> Training:
        manifest, row = self._manifest(job), row_named(job.row)
        if self._texts is None:
            self._texts = read_texts(self._options.data)
        held = self._options.heldout
        return Training(manifest, row.codings, self._texts, self._device, heldout_batches=held)

    def _manifest(self, job: Job) -> RunManifest:
        sets = [
            f"data.directory={self._options.data.resolve()}",
            *row_named(job.row).sets,
            *self._options.overrides,
            "run.name=at-length",
            f"run.steps={job.steps}",
            f"run.seed={job.seed}",
            f"optimizer.learning_rate={job.rate}",
            f"optimizer.warmup_steps={job.warmup}",
        ]
        return resolve_run(self._run_file, sets).manifest

    def _corpus(self) -> str:
        """The name of the corpus and a digest of its text and tokenizer."""
        data = self._manifest(Job(DENSE, 0, 1e-3, 1, 1)).data
        told = [data.tokenizer_sha256, *(shard.sha256 for shard in (*data.train, *data.heldout))]
        return f"{data.name}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]}"

    def _file(self, job: Job) -> Path:
        return self._folder / _file_name(job, self._options.overrides, self._options.heldout)

    def _read(self, job: Job) -> tuple[Point, ...]:
        return _read(self._file(job))[1]


def recorded_runs(folder: Path, overrides: Sequence[str] = (), heldout: int = HELDOUT_BATCHES) -> dict[Job, Points]:
    """The runs of a folder that were made with these overrides of the run file and this many held-out batches."""
    runs = {file: _read(file) for file in sorted(folder.glob("*.json"))}
    return {job: points for file, (job, points) in runs.items() if file.name == _file_name(job, overrides, heldout)}


def _file_name(job: Job, overrides: Sequence[str], heldout: int) -> str:
    meant = row_named(job.row)
    codings = [told_apart(coding) for coding in meant.codings]
    told = [meant.sets, codings, asdict(job), list(overrides), heldout]
    return f"{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}.json"


def _read(file: Path) -> tuple[Job, Points]:
    run = json.loads(file.read_text())
    return Job(**run["job"]), tuple(Point(**point) for point in run["points"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--rows", default="", help="names separated by ';'; the two controls come along")
    parser.add_argument("--tokens", type=float, default=4e6)
    parser.add_argument("--screen", type=float, default=1e6, help="tokens with which a rate is chosen; 0: no whole run")
    parser.add_argument("--rates", default="2e-3,4e-3,8e-3")
    parser.add_argument("--warmup", type=int, default=120)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--points", type=int, default=4, help="measurements of a run, evenly spread")
    parser.add_argument("--heldout", type=int, default=HELDOUT_BATCHES, help="held-out batches")
    parser.add_argument("--beside", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--limit", type=float, help="seconds after which no further training is begun")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/at_length"))
    parser.add_argument("--recorded", help="a folder of --cache with results of another corpus: train nothing")
    parser.add_argument("--docs", type=Path, help="a folder: write the table in compression.md")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = list(dict.fromkeys([DENSE, IDS, *filter(None, options.rows.split(";"))]))
    try:
        for name in names:
            row_named(name)
    except ValueError as error:
        parser.error(f"{error}: see benchmarks/length/rows.py")
    with tempfile.TemporaryDirectory(prefix="at-length-") as folder:
        path = Path(folder) / "RUN.toml"
        path.write_text(RUN)
        table = compare(Study(options, path), names, options)
    for row in table:
        print(json.dumps(row))
    write_results(options.out, "at_length", rows=table)
    if options.docs is not None:
        named = f" --recorded {options.recorded} --tokens {options.tokens:g}" if options.recorded else ""
        put_table(options.docs / "compression.md", f"at_length{named}", markdown(table))


def compare(study: Study, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, object]]:
    """A row of the table for each name whose best rate is known and whose whole run is done."""
    rates = [float(rate) for rate in options.rates.split(",")]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    best = dict.fromkeys(names, rates[0])
    if options.recorded is not None:
        best = {name: study.best_recorded_rate(name, study.steps(options.tokens)) for name in names}
    elif len(rates) > 1:
        steps = study.steps(options.screen)
        screened = study.curves([Job(name, 0, rate, options.warmup, steps) for name in names for rate in rates])
        losses = {(job.row, job.rate): points[-1].loss for job, points in screened.items()}
        for name in names:
            tried = {rate: losses[name, rate] for rate in rates if math.isfinite(losses.get((name, rate), math.nan))}
            best[name] = min(tried, key=lambda rate: tried[rate]) if tried else math.nan
    steps = study.steps(options.tokens)
    jobs = [
        Job(name, seed, best[name], options.warmup, steps)
        for seed in seeds
        for name in names
        if math.isfinite(best[name])
    ]
    return _table(study.curves(jobs), study.width())


def _table(curves: dict[Job, tuple[Point, ...]], width: int) -> list[dict[str, object]]:
    """Means over the seeds of each row."""
    by_row: dict[str, dict[int, tuple[Point, ...]]] = {}
    rates = {}
    for job, points in curves.items():
        by_row.setdefault(job.row, {})[job.seed] = points
        rates[job.row] = job.rate
    table = []
    for name, runs in by_row.items():
        whole = [run for seed, run in runs.items() if seed in by_row.get(DENSE, {}) and seed in by_row.get(IDS, {})]
        pairs = [(run, by_row[DENSE][seed], by_row[IDS][seed]) for seed, run in runs.items() if run in whole]
        shares = [[_kept(*at) for at in zip(*pair, strict=True)] for pair in pairs]
        gaps = [[100 * (a.loss / b.loss - 1) for a, b, _ in zip(*pair, strict=True)] for pair in pairs]
        forward = statistics.mean(point.forward_bits for run in runs.values() for point in run) / 8
        backward = statistics.mean(point.backward_bits for run in runs.values() for point in run) / 8
        ids = 2.0
        kept_at_end = [share[-1] for share in shares]
        table.append(
            {
                "row": name,
                "rate": rates[name],
                "seeds": len(runs),
                "tokens": [point.tokens for point in next(iter(runs.values()))],
                "bytes_forward": round(forward + ids, 2),
                "bytes_backward": round(backward, 2),
                "times_fewer_bytes": round(8 * width / (forward + ids + backward), 1),
                "loss": round(statistics.mean(run[-1].loss for run in runs.values()), 4),
                "gap_percent": [round(statistics.mean(at), 2) for at in zip(*gaps, strict=True)],
                "kept": [round(statistics.mean(at), 3) for at in zip(*shares, strict=True)],
                "kept_half_range": round((max(kept_at_end) - min(kept_at_end)) / 2, 3) if kept_at_end else 0.0,
            }
        )
    return table


def _kept(row: Point, dense: Point, ids: Point) -> float:
    return (ids.loss - row.loss) / (ids.loss - dense.loss)


def markdown(table: Sequence[dict[str, object]]) -> str:
    lines = [
        "| row | seeds | rate | bytes both ways | × fewer | loss | gap | kept | ± |",
        "|---|" + 8 * "---:|",
    ]
    for row in table:
        both = float(str(row["bytes_forward"])) + float(str(row["bytes_backward"]))
        gaps, kept = (", ".join(map(str, _list(row[key]))) for key in ("gap_percent", "kept"))
        cells = (row["row"], row["seeds"], row["rate"], f"{both:.1f}", row["times_fewer_bytes"], row["loss"])
        spread = row["kept_half_range"] if row["seeds"] != 1 else "–"
        lines.append("| " + " | ".join(map(str, (*cells, gaps, kept, spread))) + " |")
    return "\n".join(lines) + "\n"


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _chunks(jobs: Sequence[Job], size: int) -> Iterator[Sequence[Job]]:
    """Split into chunks of at most `size` jobs of the same length."""
    for steps in dict.fromkeys(job.steps for job in jobs):
        same = [job for job in jobs if job.steps == steps]
        for first in range(0, len(same), size):
            yield same[first : first + size]


def read_texts(data: Path) -> Texts:
    train, heldout = (
        np.concatenate([np.fromfile(file, dtype="<u2") for file in sorted(data.glob(f"{kind}-*.bin"))])
        for kind in ("train", "heldout")
    )
    return Texts(train, heldout)


if __name__ == "__main__":
    main()
