"""The comparison of codecs and architectures, small: three rows of thirty steps, and what is cached."""

import json
from pathlib import Path

import pytest

from benchmarks import compression
from swarm.data import open_source, prepare

TINY = (
    *("model.vocab_size=300", "model.dim=32", "model.layers=4", "model.cuts=[1, 2, 3]", "model.ffn_dim=64"),
    *("model.heads=2", "model.kv_heads=1", "model.context=16"),
    *("batch.microbatches=2", "batch.sequences=4", "batch.sequence_length=16"),
    *("optimizer.learning_rate=1e-2", "optimizer.warmup_steps=2", "run.steps=30"),
    *("evaluation.every=5", "evaluation.microbatches=4"),
)
ROWS = ("dense", "int8", "topk 10 %, shared mask")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("run")
    text = folder / "text.jsonl"
    text.write_text("\n".join(f'{{"text": "document {i} has words {i * 7} and {i % 3}"}}' for i in range(1500)))
    prepare(open_source([text]), folder / "data", vocab_size=300, heldout_fraction=0.2)
    path = folder / "RUN.toml"
    path.write_text(compression.RUN)
    return path, [f"data.directory={folder / 'data'}", *TINY]


def test_three_rows_of_thirty_steps(run: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, common = run
    table = compression.compare(path, common, ROWS, [0, 1], tmp_path, threads=1)
    assert {row["row"] for row in table} == set(ROWS)
    control, int8, topk = ({row["row"]: row for row in table}[name] for name in ROWS)
    assert control["gap_percent_at_thirds"] == [0.0, 0.0, 0.0] and control["tokens_for_equal_loss"] == 1.0
    assert control["loss"] == control["loss_codec_off"] and control["times_fewer_bytes"] == 1.0
    assert abs(int8["gap_percent_at_thirds"][-1]) < 2 < topk["gap_percent_at_thirds"][-1]
    assert topk["loss_codec_off"] != topk["loss"], "TopK changes what is evaluated"
    assert 3 < int8["times_fewer_bytes"] < 4, "ids, headers and scales count"
    assert len(list(tmp_path.iterdir())) == 2 * len(ROWS)


def test_what_was_trained_before_is_not_trained_again(
    run: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, common = run
    short = [*common, "run.steps=5"]
    first = compression.compare(path, short, ROWS[:2], [0], tmp_path, threads=1)
    monkeypatch.setattr("benchmarks.trained._train", lambda *_: pytest.fail("trained again"))
    again = compression.compare(path, short, ROWS[:2], [0], tmp_path, threads=1)
    assert [row["loss"] for row in again] == [row["loss"] for row in first]
    some = compression.compare(path, short, ROWS, [0, 1], tmp_path, threads=1, train=False)
    assert [(row["row"], row["seeds"]) for row in some] == [("dense", 1), ("int8", 1)]
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        compression.compare(path, [*short, "run.seed=5"], ROWS[:1], [7], tmp_path, threads=1)


def test_a_row_is_held_against_its_own_control(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, common = run
    name = "bottleneck 16, int5/log4"
    table = compression.compare(path, [*common, "run.steps=5"], [name], [0], tmp_path, threads=1)
    assert [row["row"] for row in table] == [compression.CONTROL, compression.ANCHORED, name]
    dense, anchored, narrow = table
    assert narrow["control"] == compression.ANCHORED and anchored["control"] == compression.CONTROL
    assert narrow["gap_percent_at_thirds"][-1] == pytest.approx(100 * (narrow["loss"] / anchored["loss"] - 1), abs=0.02)
    assert narrow["gap_to_dense_percent"] == pytest.approx(100 * (narrow["loss"] / dense["loss"] - 1), abs=0.02)
    assert narrow["bytes_forward"] + narrow["bytes_backward"] < anchored["bytes_forward"]


def test_every_row_is_a_run_and_its_control_sends_everything(run: tuple[Path, list[str]]) -> None:
    path, _ = run
    data = next(override for override in run[1] if override.startswith("data."))
    controls = {row.control for row in compression.ROWS.values()}
    for name, row in compression.ROWS.items():
        control = compression.resolve_run(path, [data, *compression.ROWS[row.control].sets]).manifest
        assert (control.codec.forward, control.codec.backward) == ("none", "none")
        assert control.model.widest_boundary == control.model.dim
        model = compression.resolve_run(path, [data, *row.sets]).manifest.model
        if set(compression._MODULES) & set(row.sets) and name not in controls:
            assert row.control in (compression.MODULES, compression.ANCHORED)
        assert name == compression.IDS or (model.layers, model.cuts) == (control.model.layers, control.model.cuts)


def test_the_moonshot_row_sends_a_hundredth_of_fp32(run: tuple[Path, list[str]]) -> None:
    path, _ = run
    data = next(override for override in run[1] if override.startswith("data."))
    row = compression.ROWS["bottleneck 16, int5/log4, table 64, MLP 512"]
    manifest = compression.resolve_run(path, [data, *row.sets]).manifest
    assert 2 * 4 * manifest.model.dim / sum(compression._bytes(manifest)) > 100


def test_the_page_gets_the_table_and_the_plot(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import pareto

    path, common = run
    table = compression.compare(path, [*common, "run.steps=5"], ROWS[:2], [0], tmp_path / "cache", threads=1)
    table = json.loads(json.dumps(table))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: written by benchmarks.compression -->\nold\n<!-- end of table -->\nafter\n")
    pareto.write_table(table, page, "compression")
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "| int8 |" in text
    pareto.draw(table, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("int8") >= 1


def test_where_sizes_depend_on_the_values_those_of_the_runs_count(run: tuple[Path, list[str]]) -> None:
    path, _ = run
    data = next(override for override in run[1] if override.startswith("data."))
    coded = ("entropy:1.4", "entropy-dithered:1"), ("huffman:int5-channel", "huffman:log4-channel"), ("int8", "int8")
    for forward, backward in coded:
        sets = (data, f"codec.forward={forward}", f"codec.backward={backward}")
        manifest = compression.resolve_run(path, sets).manifest
        tokens = manifest.batch.tokens_per_microbatch
        ids = manifest.batch.sequences * (manifest.batch.sequence_length + 1) * 2 / tokens
        sizes = compression._bytes(manifest, [(100.0 * tokens, 50.0 * tokens), None, (140.0 * tokens, 70.0 * tokens)])
        assert sizes == pytest.approx((120 + ids, 60), abs=0.1), "the mean of the runs, and little more"


def test_the_page_has_the_rows_that_the_command_writes() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "compression.md").read_text(encoding="utf-8")
    for place in ("compression", "compression --epochs"):
        _, _, rest = page.partition(f"<!-- table: written by benchmarks.{place} -->\n")
        lines = rest.partition("<!-- end of table -->")[0].splitlines()[2:]
        names = [line.split("|")[1].strip() for line in lines]
        assert names and names == [name for name in compression.ROWS if name in names]
