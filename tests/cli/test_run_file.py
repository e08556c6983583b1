"""RUN.toml as people and their editors write it: what is read, and the message for what is not."""

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from peers.run.run_toml import render
from swarm.manifest import DataSection, ManifestError, RunFile, RunManifest, Shard, load_run_file
from swarm.manifest.run_file import read_run_tree
from swarm.manifest.run_manifest import MAX_MANIFEST_BYTES

TEXT = render(RunFile.model_validate({"run": {"steps": 12}}))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace("steps = 12", "\tsteps\t=\t12\t").encode(),
        TEXT.replace("steps = 12", 'steps = "12"').encode(),
    ],
    ids=["byte order mark", "CRLF", "CR", "tabs", "number as text"],
)
def test_what_an_editor_adds_changes_nothing(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_bytes(raw)
    assert load_run_file(path) == RunFile.model_validate({"run": {"steps": 12}})


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (TEXT.encode("utf-16"), r"is not UTF-8 text \(line 1\): save it with the encoding UTF-8"),
        (b'[run]\nname = "schw\xe4rm"', r"is not UTF-8 text \(line 2\): save it with the encoding UTF-8"),
        (b"[run]\nsteps = 6\nsteps = 7 # more\n", r"is not valid TOML: .*at line 3.*: steps = 7 # more$"),
        (b"[run]\nsteps = 6\n[run]\n", r"is not valid TOML: Cannot declare .*at line 3.*: \[run\]$"),
        (b"a = " + b"[" * 100_000, "is not valid TOML: it nests values too deeply"),
        (
            b"[run]\n\nsteps = " + b"9" * 5000,
            r"line 3 contains a number of more than 4,300 digits: write a smaller one$",
        ),
        (b"[run]\nsteps = " + b"9_" * 5000 + b"9", r"line 2 contains a number of more than 4,300 digits"),
        (b'[evaluation]\nprompt = "' + b"x" * 10_001 + b'"', "evaluation.prompt: .* at most 10000 characters"),
        (b"[audit]\nevery = true", r"audit\.every: true is not a number \(got True\)$"),
        (b"[model]\ncuts = [true, 4, 6]", r"model\.cuts: true is not a number"),
        (b"[RUN]\nsteps = 6", "unknown key RUN; the nearest known key is run$"),
        (b"[run]\nstepps = 6", r"unknown key run\.stepps; the nearest known key is run\.steps$"),
        (b"[run]\nmicrobatches = 6", r"unknown key run\.microbatches; microbatches belongs to the table \[batch\]$"),
        (b"steps = 6", r"unknown key steps; steps belongs to the table \[run\]$"),
        (b"#" * (1 << 20) + b"\n", "has more than 1,048,576 bytes, so it is no run file: name the right one"),
        (b"run = 5", "run: this is a table: write its keys, each with a value"),
        (b'[run]\nname = "' + b"x" * 9000 + b'"', "run.name: write up to 64 letters"),
        (b"[" + b"x" * 9000 + b"]\n", "unknown key x{80};"),
    ],
)
def test_what_cannot_be_read_is_named_in_a_short_message(raw: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_bytes(raw)
    with pytest.raises(ManifestError, match=says) as refused:
        load_run_file(path)
    assert len(str(refused.value)) < len(str(path)) + 300


def test_a_prompt_that_cannot_be_encoded_is_refused_by_its_key(tmp_path: Path) -> None:
    """The shell passes bytes that are not UTF-8. Once, only `coordinate` failed, when the run began."""
    path = tmp_path / "RUN.toml"
    path.write_text(TEXT)
    with pytest.raises(ManifestError, match=r"evaluation.prompt: it is not UTF-8: write it in RUN.toml, .*\(got 'a"):
        load_run_file(path, ["evaluation.prompt=" + os.fsdecode(b"a\xff")])
    assert load_run_file(path, ["evaluation.prompt=aä😀 "]).evaluation.prompt == "aä😀 "


def test_a_manifest_that_no_peer_would_read_is_refused() -> None:
    """Of exactly the largest size, it is read."""
    shard = Shard(file="train-00000.bin", sha256="ab" * 32, tokens=1 << 20)
    given: dict[str, Any] = {"tokenizer_sha256": "ab" * 32, "vocab_size": 300, "bytes_per_token": 2.0}
    corpus = DataSection(train=(shard,), heldout=(shard,), unigram_entropy=3.0, **given)
    run = RunFile()
    room = MAX_MANIFEST_BYTES - len(run.resolve(corpus).canonical())
    full = corpus.model_copy(update={"licence": "x" * room})
    assert RunManifest.from_canonical(run.resolve(full).canonical()).data == full
    with pytest.raises(ManifestError, match=r"has 1,048,577 bytes, and no peer reads one of more than 1,048,576: give"):
        run.resolve(corpus.model_copy(update={"licence": "x" * (room + 1)}))


@pytest.mark.parametrize(
    "override", ["run.steps=" + "9" * 5000, "run.name=" + "x" * 9000, "x" * 9000, "run.steps=" + "[" * 9000]
)
def test_a_long_override_is_not_repeated_in_full(override: str, tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(TEXT)
    with pytest.raises(ManifestError) as refused:
        load_run_file(path, [override])
    assert len(str(refused.value)) < len(str(path)) + 300


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("optimizer.learning_rate", 1e-30, 1e30),
        ("optimizer.beta1", 0.0, 0.999999),
        ("optimizer.beta2", 0.0, 0.999999),
        ("optimizer.eps", 1e-20, 1.0),
        ("optimizer.weight_decay", 0.0, 1e3),
        ("optimizer.clip_norm", 1e-30, 1e30),
        ("divergence.rate", 1e-36, 0.999999),
        ("model.rope_theta", 1.0, 1e12),
        ("model.norm_eps", 1e-20, 1.0),
    ],
)
def test_numbers_that_become_0_or_infinite_in_fp32_are_refused_with_their_range(key: str, least: float, most: float):
    table, name = key.split(".")
    for fits in (least, most):
        assert getattr(getattr(of(f"{key}={fits}"), table), name) == fits
    for wrong in (math.nextafter(least, -1.0), math.nextafter(most, 2e30), 1e300):
        says = f"{key}: Input should be a number from {least:g} to {most:g} (got {wrong!r})"
        with pytest.raises(ManifestError, match=re.escape(says)):
            of(f"{key}={wrong!r}")


def test_a_momentum_that_is_1_in_fp32_is_refused():
    with pytest.raises(ManifestError, match=r"optimizer.momentum: .* from 0 to 0.999999 \(got 0.99999999\)"):
        of("optimizer.kind=muon", "optimizer.momentum=0.99999999")


@pytest.mark.parametrize(
    "override",
    [
        "run.steps=5\nbatch.microbatches=7",
        "run.steps=5\n[batch]\nmicrobatches = 7",
        "run.steps=5 # for a test",
        'evaluation.prompt="a" # b',
        "model.cuts=[1, 5]\n# two cuts",
    ],
)
def test_nothing_after_the_value_of_an_override_is_dropped(override: str):
    """Once, the second of these keys kept its default without a word."""
    with pytest.raises(ManifestError, match=r"--set .* has a comment or further lines after its value .*: leave them"):
        of(override)


@pytest.mark.parametrize(
    ("written", "prompt"),
    [
        ("a # b", "a # b"),
        ("# Ants", "# Ants"),
        ('"a # b"', "a # b"),
        ("'#'", "#"),
        (r'"a\nb # c"', "a\nb # c"),
        ('"""a\nb # c"""', "a\nb # c"),
        ("a\nb", "a\nb"),
        (' "a" \n', "a"),
    ],
)
def test_texts_of_overrides_may_have_number_signs_and_lines(written: str, prompt: str):
    assert of(f"evaluation.prompt={written}").evaluation.prompt == prompt


def test_a_list_in_an_override_may_have_lines_and_comments():
    assert of("model.cuts=[1, # the embedding\n5]").model.cuts == (1, 5)


@pytest.mark.parametrize("value", ["Auto", "-1", "1.5", "[1]", "2024-01-01"])
def test_a_key_with_a_number_or_a_word_has_one_error(value: str):
    with pytest.raises(ManifestError) as refused:
        of(f"audit.every={value}")
    shown = repr(value) if value == "Auto" else value
    says = f'RUN.toml: audit.every: Input should be a whole number from 0 to 2147483647, or "auto" (got {shown})'
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("override", "got"),
    [
        ("run.name=2024-01-01", "2024-01-01"),
        ("run.name=2024-01-01T07:30:00", "2024-01-01T07:30:00"),
        ("run.name=07:30:00", "07:30:00"),
        ("codec.forward=8", "8"),
    ],
)
def test_a_text_that_toml_reads_as_something_else_needs_quotes(override: str, got: str):
    key, _, _ = override.partition("=")
    fix = f"put it in quotes, \"{got}\", and in a shell put '' around them, '\"{got}\"'"
    with pytest.raises(ManifestError, match=re.escape(f"{key}: this is a text: {fix} (got {got})")):
        of(override)
    table, name = key.split(".")
    if got[2:3] != ":" and "T" not in got:  # a name has no colons
        assert getattr(getattr(of(f'{key}="{got}"'), table), name) == got


@pytest.mark.parametrize("value", ["{}", "[[]]", "2024-01-01", "Wrong!", "1e999"])
def test_errors_name_only_keys_that_exist(value: str):
    """Pydantic adds the parts of a union to the key."""
    named = set()
    for table, keys in RunFile().model_dump().items():
        for key in (f"{table}.{name}" for name in keys):
            try:
                of(f"{key}={value}")
            except ManifestError as error:
                named.add(key)
                assert not re.search(rf"{key}\.(?!0: )", str(error)), "0: the first item of a list"
    assert {"audit.every", "run.steps", "model.cuts"} <= named


def of(*overrides: str) -> RunFile:
    """A run file of nothing but these overrides."""
    return read_run_tree({}, "RUN.toml", overrides)
