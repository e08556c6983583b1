"""RUN.toml as people and their editors write it: what is read, and the message for what is not."""

from pathlib import Path

import pytest

from peers.run.run_toml import render
from swarm.manifest import ManifestError, RunFile, load_run_file

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
        (b"[RUN]\nsteps = 6", "unknown key RUN; the nearest known key is run$"),
        (b"[run]\nstepps = 6", r"unknown key run\.stepps; the nearest known key is run\.steps$"),
        (b"[run]\nmicrobatches = 6", r"unknown key run\.microbatches; microbatches belongs to the table \[batch\]$"),
        (b"steps = 6", r"unknown key steps; steps belongs to the table \[run\]$"),
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


@pytest.mark.parametrize("override", ["run.name=" + "x" * 9000, "x" * 9000, "run.steps=" + "[" * 9000])
def test_a_long_override_is_not_repeated_in_full(override: str, tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(TEXT)
    with pytest.raises(ManifestError) as refused:
        load_run_file(path, [override])
    assert len(str(refused.value)) < len(str(path)) + 300
