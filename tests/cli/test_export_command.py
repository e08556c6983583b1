"""export and generate: what they say when there is nothing to read. The demo's test runs them for real."""

import os
from pathlib import Path

import pytest

from peers import cli
from peers.run.archived_run import MANIFEST_FILE, describe_archive
from peers.run.resolved_run import resolve_run
from peers.run.run_toml import render
from swarm.data import open_source, prepare
from swarm.data.folder import TOKENIZER_FILE
from swarm.manifest import BatchSection, ModelSection, RunFile


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive of a run that has just begun."""
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(f'{{"text": "document {i} has words {i * 7}"}}' for i in range(400)))
    corpus = prepare(open_source([text]), tmp_path / "data", vocab_size=300, heldout_fraction=0.2)
    model = ModelSection(vocab_size=corpus.vocab_size, dim=16, layers=2, heads=2, kv_heads=1, ffn_dim=16, cuts=(1,))
    path = tmp_path / "RUN.toml"
    path.write_text(render(RunFile(model=model, batch=BatchSection(microbatches=2, sequences=1, sequence_length=8))))
    run = resolve_run(path)
    describe_archive(tmp_path / "archive", run.manifest, (run.corpus / TOKENIZER_FILE).read_bytes())
    return tmp_path / "archive"


@pytest.mark.parametrize("command", [["export", "out"], ["generate", "Hello"]], ids=["export", "generate"])
def test_a_home_without_archive_is_named(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert _exit_code(*command, "--home", str(tmp_path)) == 2
    assert f"{tmp_path / 'archive'}: no archive here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "holds no complete checkpoint of run "), (["--version", "7"], "holds no complete version 7 of run ")],
)
def test_what_the_archive_lacks_is_named(
    options: list[str], message: str, archive: Path, capsys: pytest.CaptureFixture[str]
):
    assert _exit_code("export", "out", "--archive", str(archive), *options) == 2
    error = capsys.readouterr().err
    assert message in error and "complete versions: none" in error


@pytest.mark.parametrize(
    ("file", "message"),
    [(MANIFEST_FILE, "manifest cannot be read"), (TOKENIZER_FILE, "the manifest expects")],
)
def test_a_damaged_archive_is_named(file: str, message: str, archive: Path, capsys: pytest.CaptureFixture[str]):
    with (archive / file).open("r+b") as opened:
        opened.truncate(100)
    assert _exit_code("generate", "--archive", str(archive)) == 2
    error = capsys.readouterr().err
    assert f"{archive}: not a usable archive" in error and message in error


def test_a_prompt_that_cannot_be_encoded_is_named(archive: Path, capsys: pytest.CaptureFixture[str]):
    assert _exit_code("generate", os.fsdecode(b"a\xff"), "--archive", str(archive)) == 2
    assert "PROMPT: it is not UTF-8" in " ".join(capsys.readouterr().err.split())


def _exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code
