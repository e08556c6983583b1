"""What compression costs a model: held-out loss on equal tokens beside bytes at a boundary, against one control.

    python -m benchmarks.compression [--rows "int8;int4"] [--seeds 0,1,2] [--steps 600]

Each row is a run file with other codecs or another architecture, trained in one process as `swarm-peer reference` does
(a swarm's result is the same, bit for bit). A row and seed that was trained before, by its run hash, is read from
`--cache`, so that the command goes on where it stopped. The control is dense, with nothing cut off or rounded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.local_swarm import PEERS
from benchmarks.results import write_results
from peers.reference import ReferenceModel
from peers.resolved_run import ResolvedRun, resolve_run
from swarm import codecs
from swarm.compute.body import BodyFormat, BodyKind
from swarm.data.reader import CorpusReader
from swarm.manifest import RunManifest
from swarm.models.kinds import count_parameters
from swarm.net.stream import PREFIX_BYTES
from swarm.net.wire import Encoder
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term
from swarm.protocol.messages import Frame

RUN = """
[run]
name = "compression"
steps = 600
[model]
vocab_size = 4096
dim = 256
layers = 8
heads = 8
kv_heads = 4
ffn_dim = 704
context = 256
cuts = [2, 4, 6]
[batch]
microbatches = 4
sequences = 4
sequence_length = 256
[optimizer]
learning_rate = 2e-3
warmup_steps = 40
[codec]
forward = "none"
backward = "none"
[evaluation]
every = 50
microbatches = 16
"""
CONTROL = "dense"


def _subspace(k: int, codec: str) -> tuple[str, ...]:
    model = ("model.residual=subspace", f"model.subspace_dim={k}", "model.tail_layers=2")
    return (*model, f"codec.forward={codec}", f"codec.backward={codec}")


def _narrow(kind: str, k: int, codec: str) -> tuple[str, ...]:
    model = (f"model.boundary={kind}", f"model.boundary_dim={k}")
    return (*model, f"codec.forward={codec}", f"codec.backward={codec}")


ROWS: dict[str, tuple[str, ...]] = {
    CONTROL: (),
    "bf16": ("codec.forward=bf16", "codec.backward=bf16"),
    "int8": ("codec.forward=int8", "codec.backward=int8"),
    "int4": ("codec.forward=int4", "codec.backward=int4"),
    "int4, log4 back": ("codec.forward=int4", "codec.backward=log4"),
    "int2": ("codec.forward=int2", "codec.backward=int2"),
    "int4, int2 back": ("codec.forward=int4", "codec.backward=int2"),
    "topk 10 %, shared mask": ("codec.forward=topk:0.1", "codec.backward=topk-shared"),
    "topk 10 %, independent masks": ("codec.forward=topk:0.1", "codec.backward=topk-independent:0.1"),
    "topk 10 % back only": ("codec.forward=none", "codec.backward=topk-independent:0.1"),
    "topk 30 %, shared mask": ("codec.forward=topk:0.3", "codec.backward=topk-shared"),
    "subspace 32": _subspace(32, "none"),
    "subspace 32, int8": _subspace(32, "int8"),
    "subspace 16, int8": _subspace(16, "int8"),
    "subspace 16, int4": _subspace(16, "int4"),
    "subspace 8, int8": _subspace(8, "int8"),
    "bottleneck 32, int8": _narrow("bottleneck", 32, "int8"),
    "bottleneck 16, int8": _narrow("bottleneck", 16, "int8"),
    "projector 32, int8": _narrow("projector", 32, "int8"),
    "maxout 32, int8": _narrow("maxout", 32, "int8"),
}
"""Overrides of RUN, by row."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One row with one seed. Losses are held-out, in nats per token, with the codecs on and off."""

    row: str
    seed: int
    run_hash: str
    tokens: tuple[int, ...]
    loss: tuple[float, ...]
    loss_uncoded: float
    """At the end, without the codecs; the architecture stays."""
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names separated by ';' (default: all); the control is always there")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/compression"))
    parser.add_argument("--data", type=Path, help="a prepared corpus; default: the Wikipedia leads, prepared anew")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [CONTROL, *(name for name in (options.rows.split(";") if options.rows else ROWS) if name != CONTROL)]
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row named {unknown[0]!r}: there are {'; '.join(ROWS)}")
    with tempfile.TemporaryDirectory(prefix="compression-") as folder:
        data = options.data
        if data is None:
            data = Path(folder) / "data"
            subprocess.run([*PEERS, "prepare", "--out", str(data)], check=True, stdout=subprocess.DEVNULL)
        path = Path(folder) / "RUN.toml"
        path.write_text(RUN)
        common = [f"data.directory={data.resolve()}", f"run.steps={options.steps}", *options.overrides]
        table = compare(path, common, names, [int(s) for s in options.seeds.split(",")], options.cache, options.threads)
    for row in table:
        print(json.dumps(row))
    write_results(options.out, "compression", rows=table)


def compare(
    path: Path, common: Sequence[str], names: Sequence[str], seeds: Sequence[int], cache: Path, threads: int
) -> list[dict[str, object]]:
    """One row of the table for each of `names`, of which the first is the control."""
    torch.set_num_threads(threads)
    cache.mkdir(parents=True, exist_ok=True)
    trained: dict[str, list[Trained]] = {}
    manifests = {}
    for name in names:
        for seed in seeds:
            run = resolve_run(path, [*common, *ROWS[name], f"run.seed={seed}"])
            trained.setdefault(name, []).append(_cached(run, name, seed, cache))
            manifests[name] = run.manifest
            print(f"{name}, seed {seed}: {trained[name][-1].loss[-1]:.4f}", flush=True)
    control = trained[names[0]]
    sent = _bytes(manifests[names[0]])
    return [_row(name, trained[name], control, manifests[name], sum(sent)) for name in names]


def _cached(run: ResolvedRun, name: str, seed: int, cache: Path) -> Trained:
    file = cache / f"{run.manifest.hash[:16]}.json"
    if file.exists():
        found = json.loads(file.read_text())
        return Trained(**{**found, "tokens": tuple(found["tokens"]), "loss": tuple(found["loss"])})
    trained = _train(run, name, seed)
    file.write_text(json.dumps(asdict(trained)) + "\n")
    return trained


def _train(run: ResolvedRun, name: str, seed: int) -> Trained:
    manifest = run.manifest
    reader = CorpusReader(run.corpus, manifest)
    model = ReferenceModel(manifest)
    tokens, losses = [], []
    began = time.process_time()
    for step in range(manifest.run.steps):
        model.train(step, reader)
        if (step + 1) % manifest.evaluation.every == 0 or step + 1 == manifest.run.steps:
            tokens.append((step + 1) * manifest.batch.tokens_per_step)
            losses.append(model.heldout_loss(reader))
    uncoded = model.heldout_loss(reader, coded=False)
    spent = time.process_time() - began
    return Trained(name, seed, manifest.hash, tuple(tokens), tuple(losses), uncoded, round(spent, 1))


def _row(
    name: str, trained: Sequence[Trained], control: Sequence[Trained], manifest: RunManifest, control_bytes: float
) -> dict[str, object]:
    """Means over seeds; `gap` is relative to the control's loss after the same tokens, at thirds of the run."""
    forward, backward = _bytes(manifest)
    thirds = [math.ceil(len(control[0].tokens) * third / 3) - 1 for third in (1, 2, 3)]
    gaps = [statistics.mean(t.loss[i] / c.loss[i] - 1 for t, c in zip(trained, control, strict=True)) for i in thirds]
    final = [t.loss[-1] for t in trained]
    encode, decode = _codec_ms(manifest)
    return {
        "row": name,
        "seeds": len(trained),
        "loss": round(statistics.mean(final), 4),
        "loss_spread": round(max(final) - min(final), 4),
        "bits_per_byte": round(statistics.mean(final) / math.log(2) / manifest.data.bytes_per_token, 4),
        "loss_codec_off": round(statistics.mean(t.loss_uncoded for t in trained), 4),
        "gap_percent_at_thirds": [round(100 * gap, 2) for gap in gaps],
        "tokens_for_equal_loss": _pace(trained, control),
        "bytes_forward": round(forward, 2),
        "bytes_backward": round(backward, 2),
        "times_fewer_bytes": round(control_bytes / (forward + backward), 1),
        "encode_ms": encode,
        "decode_ms": decode,
        "parameters": count_parameters(manifest.model),
        "cpu_seconds": round(statistics.mean(t.seconds for t in trained), 1),
    }


def _pace(trained: Sequence[Trained], control: Sequence[Trained]) -> float | None:
    """Tokens of the row ÷ tokens after which the control had the row's final loss. None where it never had."""
    ratios = []
    for row, other in zip(trained, control, strict=True):
        points = list(zip(other.tokens, other.loss, strict=True))
        for (before, high), (after, low) in itertools.pairwise([(0, math.inf), *points]):
            if low <= row.loss[-1]:
                share = (high - row.loss[-1]) / (high - low) if math.isfinite(high) else 1.0
                ratios.append(row.tokens[-1] / (before + share * (after - before)))
                break
        else:
            return None
    return round(statistics.mean(ratios), 2)


def _bytes(manifest: RunManifest) -> tuple[float, float]:
    """Per token over one boundary, forward and back: everything the stream carries for a frame."""
    body = BodyFormat(manifest)
    batch = manifest.batch
    hidden = torch.randn(batch.sequences, batch.sequence_length, manifest.model.boundary_width)
    tokens = torch.zeros(batch.sequences, batch.sequence_length + 1, dtype=torch.int64)
    forward = body.pack_forward(1, BodyKind.BATCH, tokens, hidden)
    backward = body.pack_backward(1, hidden, forward)
    encoder = Encoder(Actor("a", 1), Actor("b", 1))
    sizes = []
    for direction, payload in ((Direction.FORWARD, forward), (Direction.BACKWARD, backward)):
        key = FrameKey(PassId(Term(1), StepNumber(1000)), 1, direction, Microbatch(1))
        header, sent = encoder.encode(Frame(key, payload))
        sizes.append((PREFIX_BYTES + len(header) + len(sent)) / batch.tokens_per_microbatch)
    return sizes[0], sizes[1]


def _codec_ms(manifest: RunManifest) -> tuple[float, float]:
    """To encode and to decode one microbatch, both directions together: CPU milliseconds, medians of nine."""
    forward, backward = codecs.pair(manifest.codec.forward, manifest.codec.backward)
    batch = manifest.batch
    hidden = torch.randn(batch.sequences, batch.sequence_length, manifest.model.boundary_width)
    frame = forward.encode(hidden)
    beside = backward.beside(frame)
    gradient = beside.encode(hidden)
    encode = _median_ms(lambda: (forward.encode(hidden), beside.encode(hidden)))
    decode = _median_ms(lambda: (forward.decode(frame, hidden.shape), beside.decode(gradient, hidden.shape)))
    return encode, decode


def _median_ms(run: Callable[[], object]) -> float:
    times = []
    for _ in range(9):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    return round(1e3 * statistics.median(times), 3)


if __name__ == "__main__":
    main()
