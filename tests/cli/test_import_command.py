"""import: from somebody else's model to a run of ours, and back out as what it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from peers import cli
from peers.run.archived_run import describe_archive
from peers.run.first_version import archive_first
from peers.run.home import Home
from peers.run.resolved_run import resolve_run
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import ModelSection, load_run_file
from swarm.models.kinds import build_stage
from swarm.state.archive import Archive
from swarm.state.import_record import RECORD_FILE, write_record
from swarm.state.whole import whole_parameters
from tests.state.test_gguf import METADATA, gguf, metadata_of, model_tensors
from tests.state.test_gguf import MODEL as GGUF_MODEL

MODEL = ModelSection(vocab_size=400, dim=32, layers=3, heads=4, kv_heads=2, ffn_dim=48, context=64, cuts=())
WORDS = [f"document {i} has words {i * 7}" for i in range(400)]


@pytest.fixture(scope="module")
def tokenizer() -> bytes:
    return Tokenizer.train(WORDS, 300).raw


@pytest.fixture
def source(tokenizer: bytes, tmp_path: Path) -> Path:
    """A Hugging Face folder with an untied model, in fp16."""
    folder = tmp_path / "source"
    folder.mkdir()
    values = {name: p.detach().half() for name, p in build_stage(MODEL, 0, seed=5).named_parameters()}
    safetensors.torch.save_file(values, folder / "model.safetensors")
    (folder / "tokenizer.json").write_bytes(tokenizer)
    write_config(folder)
    return folder


def write_config(folder: Path, **changes: object) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 400,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_the_run_begins_with_the_model(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out, "--stages", "3") == 0
    shown = capsys.readouterr().out
    assert "in 3 stages" in shown and f"--tokenizer {out / 'tokenizer.json'}" in shown
    file = load_run_file(out / "RUN.toml")
    assert file.model == MODEL.model_copy(update={"cuts": (1, 2)})
    assert file.initial.sha256 in shown and file.batch.sequence_length == 64
    prepare(out, tmp_path)
    resolved = resolve_run(out / "RUN.toml")
    archive = archived(out, tmp_path / "home")
    stored = safetensors.torch.load_file(source / "model.safetensors")
    parameters = whole_parameters(archive, resolved.manifest, 0)
    assert parameters.keys() == stored.keys()
    assert all(torch.equal(parameters[name], value.float()) for name, value in stored.items())
    assert run("reference", out / "RUN.toml", "--against", tmp_path / "home") == 0, "at version 0 it is the same"
    assert "EQUAL" in capsys.readouterr().out
    cut_again = resolve_run(out / "RUN.toml", ["model.cuts=[1]"]).manifest
    assert cut_again.initial.sha256 == resolved.manifest.initial.sha256 and len(cut_again.initial.digests) == 2


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["model.rope_theta=500000.0"], r"(model.rope_theta was 10000.0, is 500000.0)"),
        (["model.norm_eps=1e-6"], "(model.norm_eps was 1e-05, is 1e-06)"),
        (["model.heads=2", "model.kv_heads=1"], "(model.heads was 4, is 2; model.kv_heads was 2, is 1)"),
        (["model.layers=4"], "(model.layers was 3, is 4)"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_another_model_than_the_imported_one_is_refused_by_its_key(
    sets: list[str], told: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    prepare(out, tmp_path)
    given = [f"--set={text}" for text in sets]
    capsys.readouterr()
    assert run("coordinate", out / "RUN.toml", "--dry-run", *given) == 2
    said = capsys.readouterr().err
    assert f"{out / 'parameters'}: the parameters were imported with another [model] {told}" in said
    record = out / "parameters" / RECORD_FILE
    assert f"make it in {record} too" in said
    if sets[0].startswith("model.layers"):  # nothing else could serve
        return
    changed = load_run_file(out / "RUN.toml", sets)
    vocabulary = json.loads(record.read_text())["vocabulary"]
    write_record(out / "parameters", changed.model, changed.initial.sha256, vocabulary)
    assert run("coordinate", out / "RUN.toml", "--dry-run", *given) == 0, "if it is meant"


def test_what_computes_the_same_may_be_edited_after_the_import(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    prepare(out, tmp_path)
    capsys.readouterr()
    free = ("model.cuts=[1]", "model.context=32", "batch.sequence_length=32", "model.anchor=none")
    assert run("coordinate", out / "RUN.toml", "--dry-run", *(f"--set={text}" for text in free)) == 0
    assert "warning" not in capsys.readouterr().err


def test_an_import_without_a_record_is_used_with_a_warning_and_a_damaged_one_is_not(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    prepare(out, tmp_path)
    record = out / "parameters" / RECORD_FILE
    whole = json.loads(record.read_text())
    later = {**whole, "model": {**whole["model"], "unheard_of": 1}}
    for damaged in (b"", b"{}", b"[" * 100_000, b"\xff", json.dumps(later).encode()):
        record.write_bytes(damaged)
        assert run("coordinate", out / "RUN.toml", "--dry-run") == 2
        assert f"{record}: is damaged, or of a later release: import the model again" in capsys.readouterr().err
    record.write_text(json.dumps({**whole, "sha256": "0" * 64}))  # of another import
    assert run("coordinate", out / "RUN.toml", "--dry-run") == 0
    assert "has no record of the [model]" in capsys.readouterr().err
    record.unlink()
    assert run("coordinate", out / "RUN.toml", "--dry-run", "--set=model.rope_theta=500000.0") == 0
    assert "has no record of the [model]" in capsys.readouterr().err


def test_a_corpus_with_the_ids_of_another_tokenizer_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likely slip: `prepare` without --tokenizer trains one."""
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    prepare(out, tmp_path)
    text, data = tmp_path / "text.jsonl", out / "data"
    own = ("prepare", "--input", text, "--out", data, "--heldout", "0.5", "--force")
    assert run(*own, "--vocab-size", "290") == 0
    capsys.readouterr()
    for command in (("reference", out / "RUN.toml"), ("coordinate", out / "RUN.toml", "--dry-run")):
        assert run(*command) == 2
        said = capsys.readouterr().err
        imported = out / "tokenizer.json"
        assert f"{data / 'tokenizer.json'} has other tokens than {imported}, with which" in said
        assert f"`swarm-peer prepare --input TEXT --tokenizer {imported} --out {data} --force`" in said
    record = out / "parameters" / RECORD_FILE
    told = json.loads(record.read_text())
    del told["vocabulary"]
    record.write_text(json.dumps(told))
    assert run("coordinate", out / "RUN.toml", "--dry-run") == 0, "an earlier release did not record the tokens"


@pytest.mark.parametrize("given", ["tokenizer.json of the import", "tokenizer.json of the model", "--end-of-text"])
def test_the_tokens_are_compared_not_the_file(given: str, source: Path, tokenizer: bytes, tmp_path: Path) -> None:
    """Other programs write the same tokenizer in another way, and the end of text may be another one."""
    tree = json.loads(tokenizer)
    (end,) = tree["added_tokens"]
    tree["added_tokens"].append({**end, "id": max(tree["model"]["vocab"].values()) + 1, "content": "<|eot|>"})
    (source / "tokenizer.json").write_text(json.dumps(tree, indent=2))
    write_config(source, eos_token_id=end["id"])
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    path = (source if given.endswith("of the model") else out) / "tokenizer.json"
    if given.endswith("of the model"):
        (source / "config.json").unlink()
        tree["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
        tree["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": end["content"]}
        path.write_text(json.dumps(tree))
    prepare(out, tmp_path, path, *(("--end-of-text", "<|eot|>") if given == "--end-of-text" else ()))
    assert (out / "data" / "tokenizer.json").read_bytes() != tokenizer
    assert run("coordinate", out / "RUN.toml", "--dry-run") == 0


def test_a_corpus_with_the_tokens_of_a_gguf_file_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {name: p.detach().numpy() for name, p in build_stage(GGUF_MODEL, 0, seed=5).named_parameters()}
    path = tmp_path / "tokenizer.json"
    path.write_bytes(Tokenizer.train(WORDS, 300).raw)
    ends = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    told = {**METADATA, **metadata_of(path, "gpt-2"), **ends}
    (tmp_path / "model.gguf").write_bytes(gguf(told, model_tensors(values)))
    out = tmp_path / "run"
    assert run("import", tmp_path / "model.gguf", "--out", out) == 0
    prepare(out, tmp_path)
    assert run("coordinate", out / "RUN.toml", "--dry-run") == 0
    own = ("--vocab-size", "290", "--out", out / "data", "--heldout", "0.5", "--force")
    assert run("prepare", "--input", tmp_path / "text.jsonl", *own) == 0
    capsys.readouterr()
    assert run("coordinate", out / "RUN.toml", "--dry-run") == 2
    assert "has other tokens than" in capsys.readouterr().err


def test_other_parameters_than_those_of_the_run_are_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    prepare(out, tmp_path)
    (path,) = (out / "parameters").glob("*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    for command in (("reference", out / "RUN.toml"), ("coordinate", out / "RUN.toml", "--dry-run")):
        assert run(*command) == 2
        assert "the parameters hash to" in capsys.readouterr().err


def test_a_tied_model_stays_tied_unless_it_is_told_apart(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out, "--untie") == 2
    assert f"--untie: embedding and head of {source} are two matrices already" in capsys.readouterr().err
    write_config(source, tie_word_embeddings=True)
    values = safetensors.torch.load_file(source / "model.safetensors")
    del values["lm_head.weight"]
    safetensors.torch.save_file(values, source / "model.safetensors")
    assert run("import", source, "--out", out) == 0
    assert load_run_file(out / "RUN.toml").model.shares_embedding
    stored = safetensors.torch.load_file(next((out / "parameters").iterdir()))
    assert "lm_head.weight" not in stored
    prepare(out, tmp_path)
    archive = archived(out, tmp_path / "home")
    copies = [archive.open_shard(stage, 0).of_kind("param")["model.embed_tokens.weight"] for stage in range(2)]
    assert torch.equal(copies[0], copies[1]) and torch.equal(copies[0], stored["model.embed_tokens.weight"])
    assert run("import", source, "--out", out, "--untie", "--force") == 0
    assert not load_run_file(out / "RUN.toml").model.tie_embeddings
    stored = safetensors.torch.load_file(next((out / "parameters").iterdir()))
    assert torch.equal(stored["lm_head.weight"], stored["model.embed_tokens.weight"])


def test_mistakes_are_told_before_anything_is_written(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    for arguments, message in (
        ((source, "--stages", "4"), "the model has 3 layers"),
        ((source, "--name", "no good"), "--name 'no good'"),
        ((tmp_path / "nowhere",), "nowhere: No such file"),
        ((source, "--tokenizer", tmp_path / "none.json"), "with --tokenizer"),
    ):
        assert run("import", *arguments, "--out", out) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()
    assert run("import", source, "--out", out) == 0
    assert run("import", source, "--out", out) == 2
    assert "--force" in capsys.readouterr().err
    assert run("import", source, "--out", out, "--force", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cuts"] == [2]


def test_an_import_that_fails_leaves_the_one_before(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    (out / "data").mkdir()
    before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    assert len(before) == 4
    values = safetensors.torch.load_file(source / "model.safetensors")
    values["model.norm.weight"][3] = float("nan")
    safetensors.torch.save_file(values, source / "model.safetensors")
    assert run("import", source, "--out", out, "--force") == 2
    assert f"error: {source}: model.norm.weight: contains NaN" in capsys.readouterr().err
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*.*") if path.is_file()} == before
    values["model.norm.weight"][3] = 5.0
    safetensors.torch.save_file(values, source / "model.safetensors")
    assert run("import", source, "--out", out, "--force") == 0
    after = {path.relative_to(out): path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    assert after.keys() == before.keys() and after[Path("RUN.toml")] != before[Path("RUN.toml")]
    assert sorted(path.name for path in out.iterdir()) == ["RUN.toml", "data", "parameters", "tokenizer.json"]


@pytest.mark.parametrize("there", ["tokenizer.json", "parameters"])
def test_what_another_program_wrote_is_not_overwritten(
    there: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / there).write_text("mine")
    assert run("import", source, "--out", tmp_path / "run") == 2
    assert f"{tmp_path / 'run' / there} exists" in capsys.readouterr().err
    for force in ((), ("--force",)):
        assert run("import", source, "--out", source, *force) == 2
    assert (tmp_path / "run" / there).read_text() == "mine"


def test_what_is_read_is_not_overwritten(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model in run/parameters: the message once said to overwrite it with --force, which removed it."""
    out = tmp_path / "run"
    out.mkdir()
    source.rename(out / "parameters")
    before = files(out)
    link = tmp_path / "link"
    link.symlink_to(out / "parameters")
    (out / "parameters" / "inner").mkdir()
    for given in (out / "parameters", link, out / "parameters" / "inner", out / "parameters" / "model.gguf"):
        for force in ((), ("--force",)):
            assert run("import", given, "--out", out, *force) == 2
            said = capsys.readouterr().err
            assert f"SOURCE {given} would be lost: this import writes {out / 'parameters'}: choose another" in said
    assert run("import", link, "--out", tmp_path / "other") == 0
    tokenizer = tmp_path / "other" / "tokenizer.json"
    capsys.readouterr()
    assert run("import", link, "--tokenizer", tokenizer, "--out", tmp_path / "other", "--force") == 2
    assert f"--tokenizer {tokenizer} would be lost" in capsys.readouterr().err
    assert files(out) == before


def test_a_second_import_into_the_same_folder_is_refused_and_the_first_is_whole(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    tried: list[object] = []

    def meanwhile(*arguments: Any) -> None:
        if not tried:
            tried.append(None)
            tried.append(run("import", source, "--out", out, "--force"))
        write_record(*arguments)

    monkeypatch.setattr("swarm.state.import_record.write_record", meanwhile)
    assert run("import", source, "--out", out) == 0
    assert tried == [None, 2] and f"{out}: another swarm-peer writes to this folder" in capsys.readouterr().err
    prepare(out, tmp_path)
    assert run("coordinate", out / "RUN.toml", "--dry-run") == 0


@pytest.mark.parametrize("moves", range(3))
def test_ctrl_c_while_the_files_are_replaced_leaves_the_import_before(
    moves: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    assert run("import", source, "--out", out) == 0
    before = files(out)
    move, left = Path.replace, [moves]

    def interrupt(path: Path, target: Path) -> Path:
        if path.parent == out / ".importing" / "new" and path.suffix != ".tmp":
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        return move(path, target)

    monkeypatch.setattr(Path, "replace", interrupt)
    assert run("import", source, "--out", out, "--stages", "3", "--force") == 130
    assert left == [-1] and files(out) == before


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_damaged_checkpoint_is_told_wherever_it_is_passed_over(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, home = tmp_path / "run", tmp_path / "home"
    assert run("import", source, "--out", out) == 0
    prepare(out, tmp_path)
    archived(out, home)
    folder = Home(home).archive
    shutil.copytree(folder / "00000000", folder / "00000010")
    capsys.readouterr()
    for command in (
        ("reference", out / "RUN.toml", "--against", home),
        ("export", tmp_path / "exported", "--home", home),
        ("generate", "Hello", "--tokens", "1", "--home", home),
    ):
        assert run(*command, "--json") == 0
        printed = capsys.readouterr()
        (told,) = json.loads(printed.out)["refused"]
        assert f"{folder / '00000010'}" in told and printed.err == f"warning: {told}\n"
    assert run("reference", out / "RUN.toml", "--against", home) == 0
    assert "single-process run; damaged, so not compared: checkpoint " in capsys.readouterr().out
    (shard, *_) = (folder / "00000000").glob("*.safetensors")
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    assert run("generate", "--home", home) == 2
    error = capsys.readouterr().err
    assert "holds no complete checkpoint" in error and "damaged versions: 0" in error and str(shard) in error


@pytest.mark.hf
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_of_transformers_goes_in_and_comes_out_with_the_same_logits(
    tied: bool, tokenizer: bytes, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    assert (tmp_path / "source" / "model.safetensors.index.json").exists()
    (tmp_path / "source" / "tokenizer.json").write_bytes(tokenizer)
    out = tmp_path / "run"
    assert run("import", tmp_path / "source", "--out", out) == 0
    prepare(out, tmp_path)
    archived(out, tmp_path / "home")
    assert run("export", tmp_path / "out", "--home", tmp_path / "home", "--version", "0") == 0
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    tokens = torch.randint(0, 400, (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        a, b = theirs(tokens).logits, back(tokens).logits
    assert a.std() > 0.1
    assert (a - b).abs().max() <= 1e-4
    assert back.config.tie_word_embeddings == tied
    assert (back.lm_head.weight is back.model.embed_tokens.weight) == tied


def prepare(out: Path, tmp_path: Path, tokenizer: Path | None = None, *more: str) -> None:
    """The corpus of a run, with its own tokenizer or another one."""
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(json.dumps({"text": words}) for words in WORDS))
    used = tokenizer or out / "tokenizer.json"
    arguments = ("--input", text, "--tokenizer", used, "--out", out / "data", "--heldout", "0.5")
    assert run("prepare", *arguments, *more) == 0


def archived(out: Path, home: Path) -> Archive:
    """A coordinator's archive before the first step."""
    resolved = resolve_run(out / "RUN.toml")
    folder = Home(home).archive
    describe_archive(folder, resolved.manifest, (resolved.corpus / TOKENIZER_FILE).read_bytes())
    archive = Archive(folder, resolved.manifest.hash, resolved.manifest.model.stages, 1, keep_first=True)
    assert resolved.initial is not None
    archive_first(archive, resolved.initial, resolved.manifest)
    return archive


def run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return caught.value.code
