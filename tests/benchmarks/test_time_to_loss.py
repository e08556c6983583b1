"""Time to loss: a step's frames count as one batch, and the data centre's tokens are read off its own runs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.length.cells import Cells
from benchmarks.length.coding import Coder, Coding
from benchmarks.length.rows import DENSE, row_named
from benchmarks.length.training import Texts, Training
from benchmarks.time_to_loss import UNLIMITED_LINE, best_runs, codec_of, data_centre_tokens, figures, markdown
from swarm.manifest import BatchSection, DataSection, ModelSection, RunManifest, Shard

RUNS = {500: 5.0, 700: 4.5, 1000: 4.0}
SIZES = {"vocab_size": 300, "dim": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_dim": 48, "context": 16}


@pytest.mark.parametrize(
    ("loss", "tokens"),
    ((5.0, 500), (4.5, 700), (4.0, 1000), (3.9, 1000), (4.25, 700 * (10 / 7) ** 0.5), (5.5, 500 / 1.4)),
)
def test_tokens_lie_on_the_line_between_two_runs(loss: float, tokens: float) -> None:
    assert data_centre_tokens(RUNS, loss) == pytest.approx(tokens)


def test_a_run_whose_loss_rose_does_not_break_the_line() -> None:
    assert data_centre_tokens({500: 5.0, 700: 5.1, 1000: 4.0}, 4.5) == pytest.approx(1000 ** (6 / 11) * 700 ** (5 / 11))


def training(microbatches: int, sequences: int) -> Training:
    shard = Shard(file="train-0.bin", sha256="0" * 64, tokens=1000)
    text = {"tokenizer_sha256": "0" * 64, "vocab_size": 300, "unigram_entropy": 5.0, "bytes_per_token": 4.0}
    model = ModelSection(**SIZES, cuts=(1,), anchor="frozen")
    manifest = RunManifest(
        model=model,
        subspace_id=model.subspace_id,
        batch=BatchSection(microbatches=microbatches, sequences=sequences, sequence_length=16),
        data=DataSection(train=(shard,), heldout=(shard,), **text),
    )
    ids = np.random.default_rng(0).integers(0, 300, 4000).astype(np.uint16)
    return Training(manifest, row_named(DENSE).codings, Texts(ids, ids), torch.device("cpu"), heldout_batches=2)


def test_microbatches_of_a_step_give_the_gradients_of_one_large_batch() -> None:
    ids = torch.randint(0, 300, (8, 17), generator=torch.Generator().manual_seed(1))
    several, one = training(4, 2).gradients(ids.view(4, 2, 17)), training(1, 8).gradients(ids.view(1, 8, 17))
    for a, b in zip(several, one, strict=True):
        assert (a - b).norm() <= 0.02 * b.norm()  # computed in bfloat16
    assert any(part.any() for part in one)


def test_a_step_counts_its_microbatches() -> None:
    run = training(4, 2)
    run.advance()
    assert run.measure().tokens == 4 * 2 * 16


def test_means_change_once_per_step_from_all_of_its_frames() -> None:
    ids = torch.zeros(1, 2, dtype=torch.int64)
    coder = Coder(Coding("entropy", step=0.1, means=64), 1, 2, torch.device("cpu"))
    for value in (1.0, 3.0):
        coder.cross(torch.full((1, 2, 1), value), ids, learns=True)
    assert not coder.mean.any()
    coder.update_means()
    assert coder.mean[0].item() == pytest.approx(8 / 5, abs=0.15)  # four tokens, and one of zero as if before them
    before = coder.mean.clone()
    coder.update_means()
    assert torch.equal(coder.mean, before)


def test_a_coding_that_the_product_lacks_has_no_codec() -> None:
    assert [codec_of(coding) for coding in row_named("subspace 8, int8, back int4-channel").codings] == [
        "int8",
        "int4-channel",
    ]
    with pytest.raises(ValueError, match="no codec"):
        codec_of(Coding("entropy", means=64))
    coded = row_named("dense, anchor, entropy 0.5, back entropy 1 keyed peaky")
    assert [codec_of(coding) for coding in coded.codings] == ["entropy:0.5", "entropy-dithered:1"]


def test_the_figure_is_tokens_times_time(tmp_path: Path) -> None:
    cells = Cells(tmp_path / "cells.json")
    for row, tokens, loss in ((DENSE, 500, 5.0), (DENSE, 1000, 4.0), ("dense, anchor, int8", 1000, 5.0)):
        cells.put("losses", f"{row} {tokens}", {"row": row, "tokens": tokens, "rate": 1e-3, "points": [{"loss": loss}]})
    for row, line, step_s in ((DENSE, UNLIMITED_LINE, 3.0), ("dense, anchor, int8", "80 Mbit/s, 50 ms", 4.0)):
        cell = {"row": row, "replicas": 1, "chips": "", "line": line, "step_s": step_s, "ideal_s": 2.0}
        cell |= {"sums": "none", "microbatches": 32}
        cells.put("times", f"{row} {line}", {**cell, "bytes per token and boundary": 100.0})
    runs = best_runs(list(cells.group("losses").values()), 1000)
    table = {each["row"]: each for each in figures(*runs, cells.group("times"))}
    assert table["dense, anchor, int8"]["tokens_share"] == 0.5
    assert table["dense, anchor, int8"]["figure"] == {"80 Mbit/s, 50 ms": 0.375}
    assert table[DENSE]["figure"] == {UNLIMITED_LINE: 1.0}
    lines = markdown(list(table.values())).splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert set(json.loads((tmp_path / "cells.json").read_text())) == {"losses", "times"}


def test_the_data_centre_has_the_shortest_step_without_limits() -> None:
    cell = {"replicas": 2, "chips": "", "ideal_s": 2.0, "microbatches": 64, "bytes per token and boundary": 100.0}
    times = {
        "centre": {**cell, "row": DENSE, "line": UNLIMITED_LINE, "sums": "none", "step_s": 3.0},
        "unlimited": {**cell, "row": DENSE, "line": UNLIMITED_LINE, "sums": "dither:1", "step_s": 2.0},
        "coarse": {**cell, "row": DENSE, "line": "80 Mbit/s, 50 ms", "sums": "dither:1", "step_s": 4.0},
    }
    runs = [
        {"row": DENSE, "tokens": tokens, "rate": 1e-3, "points": [{"loss": loss}]}
        for tokens, loss in ((500, 5.0), (1000, 4.0))
    ]
    table = {each["sums"]: each for each in figures(*best_runs(runs, 1000), times)}
    assert table["dither:1"]["figure"] == {UNLIMITED_LINE: 1.0, "80 Mbit/s, 50 ms": 0.5}
    assert "| dither:1 | 64 |" in markdown([table["dither:1"]])
