"""prepare: what it prints, and bad input."""

import importlib
import json
import signal
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from peers import cli
from peers.run.resolved_run import resolve_run
from peers.run.run_toml import render
from swarm.codecs import UnknownCodec
from swarm.data import CorpusError, CorpusReader, read_corpus
from swarm.manifest import ManifestError, RunFile


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def write_texts(path: Path, field: str = "text") -> None:
    with path.open("w") as file:
        for i in range(500):
            file.write(json.dumps({field: f"text {i} of the corpus, number {i * i}", "id": i}) + "\n")


def test_facts_and_licence_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_texts(tmp_path / "a.jsonl", "body")
    arguments = ["--input", str(tmp_path / "a.jsonl"), "--field", "body", "--vocab-size", "300", "--heldout", "0.2"]
    assert exit_code("prepare", *arguments, "--out", str(tmp_path / "out"), "--licence", "CC0") == 0
    out = capsys.readouterr().out
    section = read_corpus(tmp_path / "out")
    assert section.name == "a" and section.vocab_size == 300
    assert "500 documents; the first line to be trained on: 'text" in out and "unknown tokens: 0.00 %" in out
    for fact in ("corpus a in", "tokenizer of 300 tokens", section.tokenizer_sha256, "licence: CC0"):
        assert fact in out
    assert exit_code("prepare", *arguments, "--out", str(tmp_path / "json"), "--licence", "CC0", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("directory") == str(tmp_path / "json")
    sight, passed_over = printed.pop("sight"), printed.pop("passed_over")
    assert printed == section.model_dump(mode="json")
    assert (sight["documents"], sight["unknown"], sight["lost"], passed_over) == (500, 0.0, 0.0, [])
    assert sight["first_line"] == "text 0 of the corpus, number 0"


def test_the_default_corpus_states_its_licence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code("prepare", "--out", str(tmp_path / "out")) == 0
    assert "CC BY-SA 4.0" in capsys.readouterr().out
    assert read_corpus(tmp_path / "out").name == "wikipedia-leads"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "{}/a.jsonl", "--field", "txt"], "line 1: no field 'txt'; the nearest one is 'text'"),
        (["--input", "{}/a.jsonl", "--tokenizer", "{}/a.jsonl"], "is not a tokenizer.json"),
        (["--input", "{}/a.jsonl", "--tokenizer", "{}/none.json"], "none.json: No such file"),
        (["--input", "{}/a.jsonl", "--heldout", "2"], "is not between 0 and 1"),
        (["--input", "{}/a.jsonl", "--vocab-size", "9"], "--vocab-size"),
        (["--input", "{}/a.jsonl", "--vocab-size", str(10**12)], "--vocab-size"),
        (["--input", "/dev/null"], "/dev/null is neither a file nor a folder"),
        (["--images", "digits", "--field", "x"], "images have no text options: drop --field"),
        (["--images", "digits", "--vocab-size", "300", "--input", "{}/a.jsonl"], "drop --vocab-size and --input"),
        (["--images", "digits", "--name", "x"], "their name and licence are known: drop --name"),
        (["--licence", "CC0", "--field", "x"], "the text is the one of the installation: drop --field and --licence"),
        (["--tokenizer", "{}/a.jsonl", "--vocab-size", "300"], "is used as it is: drop --vocab-size"),
    ],
)
def test_bad_input_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    write_texts(tmp_path / "a.jsonl")
    filled = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    assert exit_code("prepare", "--out", str(tmp_path / "out"), *filled) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_resolves_over_its_corpus(tmp_path: Path):
    write_texts(tmp_path / "a.jsonl")
    path = tmp_path / "RUN.toml"
    path.write_text(render(RunFile()))
    with pytest.raises(CorpusError, match="swarm-peer prepare --out"):
        resolve_run(path)
    options = ["--input", str(tmp_path / "a.jsonl"), "--vocab-size", "300", "--heldout", "0.2"]
    assert exit_code("prepare", *options, "--out", str(tmp_path / "data")) == 0
    small = ["batch.sequence_length=16", "evaluation.microbatches=1"]
    run = resolve_run(path, small)
    assert run.corpus == tmp_path / "data"
    assert CorpusReader(run.corpus, run.manifest).microbatch(0, 0).shape == (4, 17)
    with pytest.raises(ManifestError, match=r"set model\.vocab_size = 300"):
        resolve_run(path, [*small, "model.vocab_size=200"])
    for wrong in ("codec.forward=int9", "codec.backward=delta:4", "sums.averaging=log4"):
        with pytest.raises(UnknownCodec):
            resolve_run(path, [*small, wrong])


@pytest.mark.parametrize("unknown_token", ["<unk>", None])
def test_a_tokenizer_that_does_not_know_the_text_is_shown(
    unknown_token: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """English letters alone, and Greek text: unknown tokens, or nothing at all, would be trained on."""
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", "</s>", " ", *"abcdefghijklmnopqrstuvwxyz"])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown_token))
    inner.add_special_tokens(["<unk>", "</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    texts = [{"text": f"a river {'ποτάμι ' * 5}{'b' * number}"} for number in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, texts)))
    (tmp_path / "picture.png").write_bytes(b"")
    arguments = ["--input", str(tmp_path / "a.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert exit_code("prepare", *arguments, "--heldout", "0.3", "--out", str(tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "is this the right tokenizer for this text?" in out
    assert ("unknown tokens: 0.00 %" in out) == (unknown_token is None)
    assert "% of the characters are lost" in out


@pytest.mark.parametrize("images", [False, True])
def test_a_name_and_a_licence_of_several_lines_stay_on_one(
    images: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path / "a.jsonl")
    rows = [f"{number % 3},{number % 5},{number % 7},{number % 11},{number % 2}" for number in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    given = ["--images", "a.csv"] if images else ["--input", "a.jsonl", "--vocab-size", "300"]
    given = [str(tmp_path / each) if each.startswith("a.") else each for each in given]
    told = ("--name", "mine\n  licence: CC0", "--licence", "none\x1b[2K\n  licence: CC0")
    assert exit_code("prepare", *given, *told, "--out", str(tmp_path / "out")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  licence: ")] == [line for line in lines if "none" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_leave_removes_what_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
):
    write_texts(tmp_path / "a.jsonl")
    out = tmp_path / "data"
    kept = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGHUP)}
    seen: list[bool] = []

    def be_told(*_: object) -> None:
        seen.append((out / ".preparing").is_dir())
        if signal.getsignal(number) is not signal.SIG_DFL:  # else it would end the tests
            signal.raise_signal(number)

    monkeypatch.setattr(importlib.import_module("swarm.data.prepare"), "_encode", be_told)
    try:
        assert (
            exit_code("prepare", "--input", str(tmp_path / "a.jsonl"), "--vocab-size", "300", "--out", str(out)) == 130
        )
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
    assert seen == [True] and list(out.iterdir()) == []
