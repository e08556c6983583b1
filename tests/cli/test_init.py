"""init: a RUN.toml that reads back, is explained key by key, and is never lost by accident."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers import cli
from peers.run.coding import ENTROPY, coding
from peers.run.run_toml import MEANINGS, TABLES, render
from swarm.manifest import ManifestError, RunFile, RunSection, load_run_file


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_every_key_of_the_model_has_a_meaning_and_no_other():
    keys = {f"{table}.{key}" for table, section in RunFile().model_dump().items() for key in section}
    assert keys == set(MEANINGS)
    assert set(TABLES) == set(RunFile.model_fields)


def test_the_text_reads_back_as_the_same_run(tmp_path: Path):
    path = tmp_path / "RUN.toml"
    path.write_text(render(RunFile()))
    assert load_run_file(path) == RunFile()
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    assert len(lines) == len(MEANINGS)
    assert all("  # " in line for line in lines)


@given(
    prompt=st.text(st.characters(exclude_categories=("Cs",)), max_size=30),
    rate=st.floats(min_value=1e-30, max_value=1e30),
    seed=st.integers(0, 2**63 - 1),
    directory=st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_any_value_survives(prompt: str, rate: float, seed: int, directory: str):
    tree = RunFile(data=RunFile.Data(directory=directory), run=RunSection(seed=seed)).model_dump()
    tree["evaluation"]["prompt"] = prompt
    tree["optimizer"]["learning_rate"] = rate
    run = RunFile.model_validate(tree)
    assert RunFile.model_validate(tomllib.loads(render(run))) == run


@pytest.mark.parametrize(("preset", "stages"), [("1m", 2), ("5m", 4), ("125m", 3), ("1b", 8)])
def test_presets_are_written_and_read_back(tmp_path: Path, preset: str, stages: int):
    path = tmp_path / "RUN.toml"
    assert exit_code("init", str(path), "--preset", preset, "--stages", str(stages), "--no-measure") == 0
    assert load_run_file(path).model.stages == stages


def test_costs_are_measured_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code("init", str(tmp_path / "RUN.toml"), "--preset", "1m", "--stages", "2", "--name", "mine") == 0
    out = capsys.readouterr().out
    assert "measured cost" in out and "stage 1:" in out and "swarm-peer prepare --vocab-size 2048" in out
    assert load_run_file(tmp_path / "RUN.toml").run.name == "mine"


@pytest.mark.parametrize("balance", ["--measure", "--no-measure"])
def test_a_subspace_run_is_written_with_its_last_stage_free(tmp_path: Path, balance: str):
    path = tmp_path / "RUN.toml"
    options = ("--preset", "1m", "--stages", "2", "--subspace-dim", "16", balance)
    assert exit_code("init", str(path), *options) == 0
    model = load_run_file(path).model
    assert (model.residual, model.subspace_dim) == ("subspace", 16)
    assert model.tail_layers == len(model.layer_range(1))


@pytest.mark.parametrize("kind", ["bottleneck", "maxout", "projector"])
def test_a_run_with_narrow_boundaries_is_written(tmp_path: Path, kind: str):
    path = tmp_path / "RUN.toml"
    options = ("--preset", "1m", "--stages", "2", "--boundary", kind, "--boundary-dim", "16", "--no-measure")
    assert exit_code("init", str(path), *options) == 0
    model = load_run_file(path).model
    assert (model.residual, model.boundary, model.boundary_dim, model.widest_boundary) == ("dense", kind, 16, 16)


def test_keys_are_set_in_the_file_that_is_written(tmp_path: Path):
    path = tmp_path / "RUN.toml"
    modules = ("model.token_table_dim=8", "model.receiver_hidden=32", "codec.forward=int5-channel", "run.steps=7")
    options = ("--preset", "1m", "--stages", "2", "--boundary", "bottleneck", "--boundary-dim", "16", "--no-measure")
    assert exit_code("init", str(path), *options, *(word for key in modules for word in ("--set", key))) == 0
    run = load_run_file(path)
    assert (run.model.token_table_dim, run.model.receiver_hidden, run.model.boundary_dim) == (8, 32, 16)
    assert (run.codec.forward, run.run.steps) == ("int5-channel", 7)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_a_run_that_is_compressed_from_end_to_end_is_one_option(tmp_path: Path, codec: str):
    path = tmp_path / "RUN.toml"
    assert exit_code("init", str(path), "--preset", "1m", "--stages", "2", "--compress", codec, "--no-measure") == 0
    run = load_run_file(path)
    assert (run.codec.forward, run.codec.backward, run.sums.averaging) == (codec, codec, codec)
    assert f'averaging = "{codec}"' in path.read_text()


def test_cuts_and_words_are_those_of_the_keys_that_are_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    sets = ("model.layers=12", "model.vocab_size=8000", "model.receiver_hidden=8", "data.directory=there")
    assert exit_code("init", str(path), "--no-measure", *(word for key in sets for word in ("--set", key))) == 0
    assert f"prepare --vocab-size 8000 --out {tmp_path / 'there'}" in capsys.readouterr().out
    assert load_run_file(path).model.cuts == (3, 7, 11)
    assert exit_code("init", str(path), "--no-measure", "--force", "--set", "model.layers=12") == 0
    assert load_run_file(path).model.cuts == (3, 6, 10), "half the vocabulary: the head is worth a layer less"


def test_a_tail_that_is_set_stays(tmp_path: Path):
    path = tmp_path / "RUN.toml"
    options = ("--preset", "15m", "--stages", "2", "--subspace-dim", "16", "--no-measure")
    assert exit_code("init", str(path), *options, "--set", "model.tail_layers=1") == 0
    model = load_run_file(path).model
    assert model.tail_layers == 1 < len(model.layer_range(1))


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    path.write_text("mine")
    assert exit_code("init", str(path), "--no-measure", "--force", "--data", "d\udcff") == 2
    assert path.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
    assert exit_code("init", str(tmp_path / "none" / "RUN.toml"), "--no-measure") == 2
    assert f"{tmp_path / 'none' / 'RUN.toml'}: No such file or directory" in capsys.readouterr().err


def test_a_file_is_overwritten_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    path.write_text("mine")
    assert exit_code("init", str(path), "--no-measure") == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert exit_code("init", str(path), "--no-measure", "--force") == 0
    assert load_run_file(path).model.stages == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "6m"], "--preset 6m: no such preset; choose one of 1m, 2m, 5m"),
        (["--stages", "9"], "--stages 9: preset 5m has 8 layers"),
        (["--name", "two words"], "--name 'two words': letters, digits, dot"),
        (["--subspace-dim", "192"], "--subspace-dim 192: preset 5m has model.dim = 192"),
        (["--boundary-dim", "8"], "--boundary-dim 8 needs --boundary KIND"),
        (["--boundary", "maxout"], "--boundary maxout needs a width"),
        (["--boundary", "maxout", "--boundary-dim", "17"], "model.boundary_dim = 17 does not divide model.dim = 192"),
        (["--boundary", "projector", "--boundary-dim", "192"], "model.boundary_dim = 192 must be from 1 to"),
        (["--boundary", "projector", "--boundary-dim", "8", "--stages", "1"], "has no effect without a cut"),
        (["--boundary", "projector", "--boundary-dim", "8", "--subspace-dim", "8"], "exclude each other"),
        (["--set", "model.width=8"], "unknown key model.width; the nearest known key is model."),
        (["--set", "model.cuts=[1]"], "init computes the cuts itself"),
        (["--set", "model.layers=3"], "--stages 4: preset 5m has 3 layers"),
        (["--set", "model.layers=-3"], "model.layers: Input should be greater than 0"),
        (["--data", "d\udcff"], "directory = '\"d\\udcff\"' cannot be written as UTF-8"),
        (["--subspace-dim", "16", "--set", "model.tail_layers=6"], "model.tail_layers = 6 must lie in the last stage"),
        (["--set", "codec.forward=entropy:0"], "codec.forward: codec 'entropy:0': a step of 0 is not from 0.05 to 16"),
        (["--set", "codec.backward=topk:0.1"], "codec.backward = 'topk:0.1'"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str):
    assert exit_code("init", str(tmp_path / "RUN.toml"), "--no-measure", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "RUN.toml").exists()


def test_the_next_command_is_the_one_that_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ("init", str(tmp_path / "RUN.toml"), "--no-measure", "--preset", "1m", "--force")
    assert exit_code(*options) == 0
    assert f"next: swarm-peer prepare --vocab-size 2048 --out {tmp_path / 'data'}" in capsys.readouterr().out
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.json").write_text("{}")
    assert exit_code(*options) == 0
    said = capsys.readouterr().out
    assert f"next: swarm-peer coordinate {tmp_path / 'RUN.toml'} --dry-run" in said and "prepare" not in said


def load(tmp_path: Path, text: str, *overrides: str) -> RunFile:
    path = tmp_path / "RUN.toml"
    path.write_text(text)
    return load_run_file(path, overrides)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.steps=true", r"run\.steps: true is not a number \(got True\)"),
        ("optimizer.learning_rate=false", r"optimizer\.learning_rate: false is not a number"),
        ('coordinator.group=["x"]', r"coordinator\.group\.0: write a peer id, as `swarm-peer id` prints it"),
        ("run.name='a b'", r"run\.name: write up to 64 letters"),
        ("model.cuts=3", r"model\.cuts: write a list, such as \[2, 4\] \(got 3\)"),
    ],
)
def test_a_value_of_another_kind_is_named_with_what_to_write(tmp_path: Path, override: str, says: str):
    with pytest.raises(ManifestError, match=says):
        load(tmp_path, "", override)


def test_unknown_keys_name_the_nearest(tmp_path: Path):
    with pytest.raises(ManifestError, match=r"unknown key batch\.microbatchs; the nearest known key is batch\.microb"):
        load(tmp_path, "[batch]\nmicrobatchs = 3\n")
    with pytest.raises(ManifestError, match="unknown key optimiser; the nearest known key is optimizer"):
        load(tmp_path, "[optimiser]\n")
    with pytest.raises(ManifestError, match=r"unknown key run\.step; the nearest known key is run\.steps"):
        load(tmp_path, "", "run.step=3")


def test_overrides_take_toml_values_and_bare_words(tmp_path: Path):
    run = load(tmp_path, "[run]\nsteps = 3\n", "run.steps=7", "codec.forward=none", "model.cuts=[1, 5]", "run.name=x")
    assert (run.run.steps, run.codec.forward, run.model.cuts, run.run.name) == (7, "none", (1, 5), "x")
    assert load(tmp_path, "", "evaluation.prompt= In 1900 ").evaluation.prompt == " In 1900 "
    for bad in ("run.steps", "steps=3", "a.b.c=1", "=1"):
        with pytest.raises(ManifestError, match=r"expected table\.key=value"):
            load(tmp_path, "", bad)
    with pytest.raises(ManifestError, match=r"run\.steps: .*greater than 0 \(got 0\)"):
        load(tmp_path, "", "run.steps=0")


@pytest.mark.parametrize(
    "key",
    [
        *(f"model.{key}={1 << 30}" for key in ("vocab_size", "dim", "layers", "heads", "ffn_dim", "context")),
        *("run.steps=2147483648", "batch.sequences=100000", "swarm.replicas=100000", "model.rope_theta=1e300"),
        *("optimizer.learning_rate=inf", "optimizer.eps=nan", "timing.step_budget_s=1e-300"),
        *("swarm.start_timeout_s=inf", "timing.recruit_after_s=1e300"),
    ],
)
def test_values_that_no_run_can_have_are_refused_by_name(tmp_path: Path, key: str):
    with pytest.raises(ManifestError, match=rf"{key.partition('=')[0]}: Input should be "):
        load(tmp_path, "", key)


def test_bad_toml_and_missing_files_are_named(tmp_path: Path):
    with pytest.raises(ManifestError, match=r"RUN\.toml is not valid TOML: .*line 1"):
        load(tmp_path, "[run\n")
    with pytest.raises(ManifestError, match="make one with `swarm-peer init"):
        load_run_file(tmp_path / "none.toml")
    with pytest.raises(ManifestError, match=r"model\.cuts = \[4, 2\] must grow strictly"):
        load(tmp_path, "[model]\ncuts = [4, 2]\n")


def test_a_preset_of_images_leaves_out_what_only_text_has(tmp_path: Path):
    path = tmp_path / "RUN.toml"
    assert exit_code("init", str(path), "--preset", "digits", "--stages", "3", "--no-measure") == 0
    run = load_run_file(path)
    assert (run.model.kind, run.model.classes, run.model.stages) == ("resnet", 10, 3)
    assert run.batch.sequence_length == 64 and run.evaluation.sample_tokens == 0
    assert "\nheads = " not in path.read_text() and "classes = 10" in path.read_text()
    assert exit_code("init", str(path), "--preset", "digits", "--force", "--subspace-dim", "4") == 2


def test_width_codec_and_averaging_follow_from_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"

    def chosen(line: str, *options: str) -> RunFile:
        assert (
            exit_code("init", str(path), "--no-measure", "--force", "--gpu", "rtx3060:8", "--line", line, *options) == 0
        )
        return load_run_file(path)

    slow = chosen("80Mbit/20Mbit,50ms", "--json")
    told = json.loads(capsys.readouterr().out)["choice"]
    assert (slow.model.residual, slow.model.subspace_dim) == ("subspace", told["subspace_dim"])
    assert slow.codec == coding(told["codec"]).section != coding("none").section
    assert slow.model.token_means == (told["codec"] == ENTROPY)
    assert slow.sums.averaging == told["averaging"] == "dither:1"
    assert told["hours"] > 0 and told["loss_percent"] > 0 and told["tokens"] > 1
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("chosen for rtx3060:8 and lines of 80Mbit/20Mbit,50ms" in line for line in comment)
    [row] = [line.split() for line in comment if line.endswith(" chosen")]
    assert row[1:4] == [str(slow.model.subspace_dim), told["codec"], told["averaging"]]
    assert any("hours" in line and "unlimited" in line for line in comment)

    near = chosen("9999999Mbit,0ms")
    assert (near.model.residual, near.sums.averaging) == ("dense", "none"), "exact sums where they fit"
    assert "chosen" in path.read_text() and "wrote" in capsys.readouterr().out


def test_what_is_set_by_hand_is_not_chosen(tmp_path: Path):
    path = tmp_path / "RUN.toml"
    line = ("--no-measure", "--force", "--gpu", "rtx3060:8", "--line", "20Mbit,50ms")
    assert exit_code("init", str(path), *line, "--compress", "int4", "--subspace-dim", "12") == 0
    run = load_run_file(path)
    assert (run.model.subspace_dim, run.codec.forward, run.sums.averaging) == (12, "int4", "int4")
    sets = ("model.tie_embeddings=true", "codec.forward=int4", "codec.backward=int4")
    assert exit_code("init", str(path), *line, *(word for key in sets for word in ("--set", key))) == 0
    run = load_run_file(path)
    assert (run.model.tie_embeddings, run.codec.forward, run.sums.averaging) == (True, "int4", "dither:1")
    assert exit_code("init", str(path), *line, "--set", "sums.averaging=none", "--stages", "1") == 0
    run = load_run_file(path)
    assert (run.model.residual, run.sums.averaging, run.codec.forward) == ("dense", "none", "int8")


def test_a_run_waits_for_no_more_peers_than_there_are_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    options = ("--no-measure", "--force", "--preset", "1m", "--set", "model.residual=dense", "--line", "80Mbit,50ms")

    def chosen(*more: str) -> RunFile:
        assert exit_code("init", str(path), *options, *more) == 0
        return load_run_file(path)

    few = chosen("--stages", "4", "--gpu", "rtx3060:4")
    assert (few.swarm.replicas, few.sums.averaging) == (1, "none")
    assert "# swarm.replicas = 1: with these cards, a stage gets no more peers." in path.read_text()
    assert chosen("--stages", "4", "--gpu", "rtx3060:8").swarm.replicas == 2
    assert "swarm.replicas = 2:" not in path.read_text()
    capsys.readouterr()
    own = chosen("--stages", "2", "--gpu", "rtx3060:2", "--set", "swarm.replicas=3")
    assert own.swarm.replicas == 3, "what is set stays"
    said = capsys.readouterr().out
    assert "Warning: swarm.replicas = 3, but a stage gets 1: the run begins 600 s (swarm.start_timeout_s) later" in said


def test_what_the_peers_must_do_with_their_cards_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    options = ("--no-measure", "--preset", "1b", "--stages", "2", "--set", "model.residual=dense")
    assert exit_code("init", str(path), *options, "--line", "80Mbit,50ms", "--gpu", "rtx3060:4") == 0
    said = "# Warning: 2 × rtx3060 can hold stage 0 only with --offload, which takes"
    assert said in path.read_text() and said.removeprefix("# ") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--line", "banana"], "'banana' is not a line: write 80Mbit,50ms or 80Mbit/20Mbit,50ms"),
        (["--line", "0Mbit,50ms"], "'0Mbit' is less than 64kbit: too little even for heartbeats"),
        (["--line", "80Mbit/0,50ms"], "'0' is not a rate: write for example 20Mbit"),
        (["--line", ""], "'' is not a line"),
        (["--gpu", "rtx3060:8"], "it has an effect only with --line"),
        (["--line", "80Mbit,50ms", "--gpu", "rtx306"], "did you mean 'rtx3060'"),
        (["--line", "80Mbit,50ms", "--gpu", "rtx3060:2"], "2 cards cannot hold 4 stages"),
        (
            ["--line", "80Mbit,50ms", "--gpu", "rtx3060:8", "--set", "codec.forward=log4"],
            "none was measured for codec log4",
        ),
        (["--line", "80Mbit,50ms", "--preset", "digits"], "preset digits is a classifier"),
        (
            ["--line", "80Mbit,50ms", "--preset", "1b", "--stages", "1", "--gpu", "rtx2060"],
            "no card can hold stage 0: it needs 35.3 GB on rtx2060, which has",
        ),
    ],
)
def test_lines_that_cannot_be_chosen_for_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
):
    assert exit_code("init", str(tmp_path / "RUN.toml"), "--no-measure", *options) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "RUN.toml").exists()


@pytest.mark.parametrize(
    ("words", "rate", "warmup"),
    [
        (("--preset", "1m"), 0.004, 10),
        (("--preset", "15m"), 0.0032, 10),
        (("--preset", "15m", "--set", "optimizer.kind=adamw"), 0.0016, 10),
        (("--preset", "40m", "--set", "optimizer.momentum=0.9"), 0.002, 10),
        (("--preset", "15m", "--subspace-dim", "16"), 0.0032, 10),
        (("--preset", "15m", "--boundary", "bottleneck", "--boundary-dim", "16"), 0.0032, 10),
        (("--preset", "1m", "--subspace-dim", "16"), 0.004, 10),
        (("--preset", "5m", "--set", "run.steps=900"), 0.004, 90),
        (("--preset", "5m", "--set", "model.dim=384"), 0.0027, 10),
        (("--preset", "digits"), 0.001, 10),
        (("--set", "optimizer.learning_rate=0.5"), 0.5, 10),
        (("--set", "optimizer.warmup_steps=3"), 0.004, 3),
    ],
)
def test_learning_rate_and_warm_up_suit_the_model_and_what_is_set_stays(
    tmp_path: Path, words: tuple[str, ...], rate: float, warmup: int
):
    path = tmp_path / "RUN.toml"
    assert exit_code("init", str(path), "--no-measure", *words) == 0
    optimizer = load_run_file(path).optimizer
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (rate, warmup)
