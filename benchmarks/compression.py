"""Measures how compression changes a model: held-out loss on equal tokens and bytes at a boundary, against named
controls.

    python -m benchmarks.compression [--rows "int8;int4"] [--seeds 0,1,2] [--steps 400]
    python -m benchmarks.compression --cached --seeds 0,1,2 --docs docs
    python -m benchmarks.compression --epochs 4 [--docs docs]

Each row is a run file with other codecs or another architecture, trained in one process as `swarm-peer reference` does
(a swarm's result is the same, bit for bit). If a row and seed was trained before, the result is read from `--cache`, so
the command continues where it stopped; with `--cached` nothing is trained. `--docs` writes the table and a plot of it.

Every row names its control: the same model whose whole residual crosses, neither narrowed nor rounded. The control of a
boundary with an anchor is a dense model with that anchor; the control of a boundary with modules at its receivers is a
dense model with those modules. `gap_to_dense_percent` compares every row with the plain dense model.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.corpus import prepare_some_leads
from benchmarks.local_swarm import PEERS
from benchmarks.results import write_results
from benchmarks.trained import Trained, trained
from peers.run.resolved_run import resolve_run
from swarm import codecs
from swarm.buffer import Buffer
from swarm.compute.body import BodyFormat, BodyKind
from swarm.manifest import RunManifest
from swarm.models.kinds import count_parameters
from swarm.net.stream import PREFIX_BYTES
from swarm.net.wire import Encoder
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term
from swarm.protocol.messages import Frame, Lineage

MODEL = """
[model]
vocab_size = 4096
dim = 256
layers = 4
heads = 8
kv_heads = 4
ffn_dim = 704
context = 128
cuts = [1, 2, 3]
"""
"""Four stages of one layer, whose boundaries are compressed."""
RUN = f"""
[run]
name = "compression"
steps = 400
{MODEL}[batch]
microbatches = 1
sequences = 8
sequence_length = 128
[optimizer]
learning_rate = 2e-3
warmup_steps = 40
[codec]
forward = "none"
backward = "none"
[evaluation]
every = 25
microbatches = 8
"""
CONTROL = "dense"
ANCHORED = "dense, anchor"
MODULES = "dense, anchor, table 64, MLP 512"
IDS = "ids alone: its last stage, and one value a sequence"
_MODULES = ("model.token_table_dim=64", "model.receiver_hidden=512")
_DIGEST = 2**62  # as long as any
_LAST_STAGES = ("model.layers=2", "model.cuts=[1]")
"""Overrides for a row in which nothing crosses. Then stages before the last change nothing, so there is only one
stage.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: overrides of RUN, and the row with which it is compared."""

    sets: tuple[str, ...]
    control: str = CONTROL


def _coded(forward: str, backward: str | None = None, *sets: str, control: str = CONTROL) -> Row:
    return Row((*sets, f"codec.forward={forward}", f"codec.backward={backward or forward}"), control)


def _subspace(k: int, forward: str, backward: str | None = None, *sets: str, control: str = ANCHORED) -> Row:
    model = ("model.residual=subspace", f"model.subspace_dim={k}", "model.tail_layers=1")
    return _coded(forward, backward, *model, *sets, control=control)


def _narrow(kind: str, k: int, forward: str, backward: str | None = None, *sets: str, control: str = ANCHORED) -> Row:
    return _coded(forward, backward, f"model.boundary={kind}", f"model.boundary_dim={k}", *sets, control=control)


def _averaging(codec: str) -> tuple[str, ...]:
    """Overrides for two replicas with half of the sequences each, which exchange sums in `codec`. The sums are over the
    same samples as without replicas.
    """
    return (f"sums.averaging={codec}", "swarm.replicas=2", "batch.microbatches=2", "batch.sequences=4")


_FINE = ("int5-channel", "log4-channel")
ROWS: dict[str, Row] = {
    CONTROL: Row(()),
    "int8": _coded("int8"),
    "int4": _coded("int4"),
    "topk 10 %, shared mask": _coded("topk:0.1", "topk-shared"),
    "topk 10 %, independent masks": _coded("topk:0.1", "topk-independent:0.1"),
    ANCHORED: Row(("model.anchor=frozen",)),
    "subspace 16, int8": _subspace(16, "int8"),
    "bottleneck 16, int8": _narrow("bottleneck", 16, "int8"),
    MODULES: Row(("model.anchor=frozen", *_MODULES)),
    "bottleneck 16, int5/log4, table 64, MLP 512": _narrow("bottleneck", 16, *_FINE, *_MODULES, control=MODULES),
    IDS: _narrow("bottleneck", 16, "topk:0.000001", "topk-shared", *_MODULES, *_LAST_STAGES, control=MODULES),
    "subspace 16, int5/log4, table 64, MLP 512": _subspace(16, *_FINE, *_MODULES, control=MODULES),
    "bottleneck 16, int5/log4": _narrow("bottleneck", 16, *_FINE),
    "bottleneck 16, int5/log4, MLP 512": _narrow("bottleneck", 16, *_FINE, _MODULES[1]),
    "bottleneck 16, int5/log4, table 64": _narrow("bottleneck", 16, *_FINE, _MODULES[0]),
    "bottleneck 12, int6/int6, table 64, MLP 512": _narrow(
        "bottleneck", 12, "int6-channel", None, *_MODULES, control=MODULES
    ),
    **{
        f"{kind} {k}, huffman {bits}/log4, table 64, MLP 512": row(
            k, f"huffman:{bits}-channel", "huffman:log4-channel", *_MODULES, control=MODULES
        )
        for k, bits in ((18, "int5"), (21, "int4"))
        for kind, row in (("bottleneck", partial(_narrow, "bottleneck")), ("subspace", _subspace))
    },
    "bottleneck 9, int8/int8, table 64, MLP 512": _narrow(
        "bottleneck", 9, "int8-channel", None, *_MODULES, control=MODULES
    ),
    "bottleneck 16, uncoded, table 64, MLP 512": _narrow("bottleneck", 16, "none", None, *_MODULES, control=MODULES),
    "projector 16, int5/log4, table 64, MLP 512": _narrow("projector", 16, *_FINE, *_MODULES, control=MODULES),
    "bottleneck 16, no anchor, int5/log4, table 256, MLP 512": _narrow(
        "bottleneck", 16, *_FINE, "model.anchor=none", "model.token_table_dim=256", _MODULES[1], control=MODULES
    ),
    "bf16": _coded("bf16"),
    "int6": _coded("int6"),
    "int5": _coded("int5"),
    "int4, log4 back": _coded("int4", "log4"),
    "int2": _coded("int2"),
    "int4, int2 back": _coded("int4", "int2"),
    "topk 10 % back only": _coded("none", "topk-independent:0.1"),
    "topk 30 %, shared mask": _coded("topk:0.3", "topk-shared"),
    "subspace 32": _subspace(32, "none"),
    "subspace 32, int8": _subspace(32, "int8"),
    "subspace 16, int4": _subspace(16, "int4"),
    "subspace 32, entropy 1.4/1, token means": _subspace(
        32, "entropy:1.4", "entropy-dithered:1", "model.token_means=true"
    ),
    "subspace 32, entropy 1.4/2, token means": _subspace(
        32, "entropy:1.4", "entropy-dithered:2", "model.token_means=true"
    ),
    "subspace 8, int8": _subspace(8, "int8"),
    "subspace 18, int8": _subspace(18, "int8"),
    "bottleneck 24, int6/int6": _narrow("bottleneck", 24, "int6-channel"),
    "bottleneck 32, int8": _narrow("bottleneck", 32, "int8"),
    "projector 16, int8": _narrow("projector", 16, "int8"),
    "projector 32, int8": _narrow("projector", 32, "int8"),
    "maxout 16, int8": _narrow("maxout", 16, "int8", control=CONTROL),
    "maxout 32, int8": _narrow("maxout", 32, "int8", control=CONTROL),
    "int4, int8 back": _coded("int4", "int8"),
    "int2, int8 back": _coded("int2", "int8"),
    "topk 10 %, int8 back": _coded("topk:0.1", "int8"),
    "ef topk 10 %, int8 back": _coded("ef:topk:0.1", "int8"),
    "ef topk 10 %, shared mask": _coded("ef:topk:0.1", "topk-shared"),
    "ef-mixed topk 10 %, int8 back": _coded("ef-mixed:topk:0.1", "int8"),
    "ef21 topk 10 %, int8 back": _coded("ef21:topk:0.1", "int8"),
    "ef int2, int8 back": _coded("ef:int2", "int8"),
    "ef21 2, int8 back": _coded("ef21:2", "int8"),
    "int8, averaging int8": _coded("int8", None, *_averaging("int8")),
    "subspace 8, int8, averaging int8": _subspace(8, "int8", None, *_averaging("int8")),
    "delta 4, int8 back": _coded("delta:4", "int8", "batch.order=steps"),
    "delta 2, int8 back": _coded("delta:2", "int8", "batch.order=steps"),
}
"""The rows in the order of their importance. Those with delta need several epochs.

int5/log4: forward/backward, with a scale for each channel.
"""
EPOCH_ROWS = (CONTROL, "int4, int8 back", "delta 4, int8 back", "int2, int8 back", "delta 2, int8 back")
"""The rows for several epochs, unless others are named."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names separated by ';' (default: all); their controls come along")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--cache", type=Path, default=Path("benchmarks/results/compression"))
    parser.add_argument("--cached", action="store_true", help="train nothing: what the cache holds of those rows")
    parser.add_argument("--data", type=Path, help="a prepared corpus; default: the Wikipedia leads, prepared anew")
    parser.add_argument("--epochs", type=int, help="of a part of the leads, as the steps make them; rows for that")
    parser.add_argument("--docs", type=Path, help="a folder: write compression.svg and the table in compression.md")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.rows.split(";") if options.rows else list(EPOCH_ROWS if options.epochs else ROWS)
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
        if options.epochs:
            some = Path(folder) / "some"
            run = resolve_run(path, common).manifest
            tokens = run.run.steps * run.batch.tokens_per_step // options.epochs
            prepare_some_leads(data, some, tokens, run.evaluation.microbatches * run.batch.tokens_per_microbatch)
            common += [f"data.directory={some}", "batch.order=steps"]
        seeds = [int(seed) for seed in options.seeds.split(",")]
        table = compare(path, common, names, seeds, options.cache, options.threads, train=not options.cached)
    for row in table:
        print(json.dumps(row))
    write_results(options.out, "compression", rows=table)
    if options.docs is not None:
        from benchmarks import pareto  # it needs matplotlib, of the extra 'dev'

        if options.epochs:
            pareto.write_table(table, options.docs / "compression.md", "compression --epochs")
        else:
            pareto.draw(table, options.docs / "compression.svg")
            pareto.write_table(table, options.docs / "compression.md", "compression")


def compare(
    path: Path,
    common: Sequence[str],
    names: Sequence[str],
    seeds: Sequence[int],
    cache: Path,
    threads: int,
    *,
    train: bool = True,
) -> list[dict[str, object]]:
    """A row of the table for each of `names` and their controls. `train` False leaves out what is not in `cache`."""
    torch.set_num_threads(threads)
    known: dict[str, dict[int, Trained]] = {}
    manifests = {}
    wanted = dict.fromkeys([*names, *(ROWS[name].control for name in names), CONTROL])
    for name in wanted:
        for seed in seeds:
            run = resolve_run(path, [*common, *ROWS[name].sets, f"run.seed={seed}"])
            found = trained(run, name, cache, train=train)
            if found is not None:
                known.setdefault(name, {})[seed] = found
                manifests[name] = run.manifest
                print(f"{name}, seed {seed}: {found.loss[-1]:.4f}", flush=True)
    return [_row(name, known, manifests[name]) for name in ROWS if name in known]


def _row(name: str, trained: Mapping[str, Mapping[int, Trained]], manifest: RunManifest) -> dict[str, object]:
    """Means over seeds. Gaps are relative to a control's loss after the same number of tokens, at each third of the
    run.
    """
    runs, control = trained[name], ROWS[name].control
    pairs = [(runs[seed], other) for seed, other in trained.get(control, {}).items() if seed in runs]
    plain = [(runs[seed], other) for seed, other in trained.get(CONTROL, {}).items() if seed in runs]
    forward, backward = _bytes(manifest, [run.frame_bytes for run in runs.values()])
    final = [run.loss[-1] for run in runs.values()]
    encode, decode = _codec_ms(manifest)
    return {
        "row": name,
        "control": control,
        "seeds": len(runs),
        "loss": round(statistics.mean(final), 4),
        "loss_spread": round(max(final) - min(final), 4) if math.isfinite(max(final)) else 0.0,
        "bits_per_byte": round(statistics.mean(final) / math.log(2) / manifest.data.bytes_per_token, 4),
        "loss_codec_off": round(statistics.mean(run.loss_uncoded for run in runs.values()), 4),
        "gap_percent_at_thirds": [_gap(pairs, third / 3) for third in (1, 2, 3)],
        "gap_to_dense_percent": _gap(plain, 1.0),
        "tokens_for_equal_loss": _pace(pairs),
        "bytes_forward": round(forward, 2),
        "bytes_backward": round(backward, 2),
        "times_fewer_bytes": round(2 * 4 * manifest.model.dim / (forward + backward), 1),
        "encode_ms": encode,
        "decode_ms": decode,
        "parameters": count_parameters(manifest.model),
        "cpu_seconds": round(statistics.mean(run.seconds for run in runs.values()), 1),
    }


def _gap(pairs: Sequence[tuple[Trained, Trained]], share: float) -> float | None:
    """The mean percentage by which rows are worse than their controls after `share` of the tokens.

    None without a control, or if a run diverged.
    """
    if not pairs or any(math.isinf(run.loss[-1]) for run, _ in pairs):
        return None
    places = [math.ceil(len(run.loss) * share) - 1 for run, _ in pairs]
    gaps = [run.loss[at] / other.loss[at] - 1 for at, (run, other) in zip(places, pairs, strict=True)]
    return round(100 * statistics.mean(gaps), 2)


def _pace(pairs: Sequence[tuple[Trained, Trained]]) -> float | None:
    """Tokens of the row ÷ tokens after which the control had the row's final loss. None if the control never had it."""
    if any(math.isinf(row.loss[-1]) for row, _ in pairs):
        return None
    ratios = []
    for row, other in pairs:
        points = list(zip(other.tokens, other.loss, strict=True))
        for (before, high), (after, low) in itertools.pairwise([(0, math.inf), *points]):
            if low <= row.loss[-1]:
                share = (high - row.loss[-1]) / (high - low) if math.isfinite(high) else 1.0
                ratios.append(row.tokens[-1] / (before + share * (after - before)))
                break
        else:
            return None
    return round(statistics.mean(ratios), 2) if ratios else None


def _bytes(manifest: RunManifest, measured: Sequence[tuple[float, float] | None] = ()) -> tuple[float, float]:
    """Bytes per token over one boundary, forward and backward: everything that the stream carries for a frame, as the
    mean of the run.

    `measured`: mean sizes of encoded activations and gradients in each run, if known. The sizes of some codecs depend
    on the values. If no run has measured them, normal values are encoded.
    """
    body = BodyFormat(manifest)
    batch = manifest.batch
    hidden = torch.randn(batch.sequences, batch.sequence_length, manifest.model.boundary_width(1))
    tokens = torch.zeros(batch.sequences, batch.sequence_length + 1, dtype=torch.int64)
    forward = body.pack_forward(1, BodyKind.BATCH, tokens, hidden)
    backward = body.pack_backward(1, hidden, forward)
    encoder = Encoder(Actor("a", 1), Actor("b", 1))

    def size(direction: Direction, payload: Buffer, lineage: Lineage | None = None) -> float:
        key = FrameKey(PassId(Term(1), StepNumber(1000)), 1, direction, Microbatch(1))
        header, sent = encoder.encode(Frame(key, payload, lineage))
        return (PREFIX_BYTES + len(header) + len(sent)) / batch.tokens_per_microbatch

    if not manifest.codec.remembers:
        sizes = [size(Direction.FORWARD, forward), size(Direction.BACKWARD, backward)]
        told = [each for each in measured if each is not None]
        ahead, back = codecs.pair(manifest.codec.forward, manifest.codec.backward)
        frame = ahead.encode(hidden)
        for place, encoded in enumerate((frame, back.beside(frame).encode(hidden))):
            if told:
                counted = statistics.mean(each[place] for each in told)
                sizes[place] += (counted - len(encoded)) / batch.tokens_per_microbatch
        return sizes[0], sizes[1]
    changed = body.pack_forward(1, BodyKind.BATCH, tokens, hidden, hidden.half())
    whole = size(Direction.FORWARD, forward, Lineage(source=_DIGEST, fresh=True))
    later = size(Direction.FORWARD, changed, Lineage(source=_DIGEST, base=_DIGEST))
    visits = manifest.step_blocks if manifest.codec.remembers == "samples" else 1
    first = min(1.0, visits / manifest.run.steps)
    return first * whole + (1 - first) * later, size(Direction.BACKWARD, backward, Lineage(_DIGEST, trail=_DIGEST))


def _codec_ms(manifest: RunManifest) -> tuple[float, float]:
    """CPU milliseconds to encode and to decode one microbatch, both directions together; medians of nine."""
    forward, backward = codecs.pair(manifest.codec.forward, manifest.codec.backward)
    batch = manifest.batch
    hidden = torch.randn(batch.sequences, batch.sequence_length, manifest.model.boundary_width(1))
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
