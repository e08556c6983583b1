"""The command `reference`: a run that diverges stops, as the swarm does."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers import cli
from peers.run.run_toml import render
from swarm.data.corpus import Source
from swarm.data.prepare import prepare
from swarm.manifest import RunFile

SMALL = {
    "model.vocab_size": 300,
    "model.dim": 16,
    "model.layers": 2,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.ffn_dim": 16,
    "model.cuts": "[1]",
    "batch.sequence_length": 16,
    "batch.sequences": 1,
    "batch.microbatches": 2,
    "evaluation.every": 0,
    "run.steps": 8,
    "optimizer.warmup_steps": 1,
}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    texts = [f"the river runs under bridge {i} in the quiet morning" for i in range(500)]
    prepare(Source("river", "", lambda: iter(texts)), tmp_path / "data", vocab_size=300, heldout_fraction=0.2)
    path = tmp_path / "RUN.toml"
    path.write_text(render(RunFile()), encoding="utf-8")
    return path


def reference(path: Path, *arguments: str, **overrides: object) -> int:
    told = [f"--set={key}={value}" for key, value in {**SMALL, **overrides}.items()]
    with pytest.raises(SystemExit) as caught:
        cli.main(["reference", str(path), *told, *arguments])
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_it_stops_after_as_many_skipped_steps_as_the_run_file_says(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = {"optimizer.learning_rate": 1e30, "divergence.skips": 2}
    assert reference(run_file, **wild) == 4
    told = capsys.readouterr()
    assert "reference step 3/8" in told.out and "reference step 4/8" not in told.out
    assert "digest" not in told.out, "no result that could be compared"
    assert "the run has diverged: 2 steps in a row up to step 3" in told.err
    assert "Lower optimizer.learning_rate" in told.err


def test_a_sound_run_comes_to_its_end(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference(run_file) == 0
    told = capsys.readouterr()
    assert "reference step 8/8" in told.out and "at version 8" in told.out and not told.err
