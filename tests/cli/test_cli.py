"""The command line as a whole: fast help, exit codes, one-line errors."""

import errno
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
import typer

from peers import cli
from peers.commands import COMMANDS
from swarm.events import EventLog, RunPaused
from swarm.manifest import ManifestError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peers", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_help_imports_neither_torch_nor_hivemind():
    """What makes it slow."""
    code = (
        "import sys\n"
        "from peers.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'torch', 'hivemind.utils', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    for name in COMMANDS:
        assert name in result.stdout


def test_a_peer_imports_no_optimisers_of_other_packages():
    """hivemind's `__init__` would import them, and scipy: half a second for each process."""
    code = (
        "import sys\n"
        "import peers.runtime.directory, peers.stage.process, peers.coordinator.process\n"
        "heavy = {'scipy', 'hivemind.averaging', 'hivemind.optim', 'hivemind.moe'} & set(sys.modules)\n"
        "assert 'hivemind.dht' in sys.modules and not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_a_prepared_command_parses_without_making_its_options_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are forked after `prepare` do: it would be a tenth of the start of each."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("made anew")

    cli.prepare("join")
    made = cli._load("join")
    monkeypatch.setattr(pydantic.TypeAdapter, "__init__", refuse)
    monkeypatch.setattr(typer.main, "get_command", refuse)
    assert cli._load("join", ["--home", "."]) is made
    parsed = made.make_context("join", ["an invite", "--threads=2", "--capacity=1.5"]).params
    assert (parsed["invite"], parsed["threads"], parsed["capacity"]) == ("an invite", 2, 1.5)


def test_the_light_modules_stay_light():
    """What `status`, `events`, `demo` and the dashboard stand on must not wait seconds for torch."""
    modules = [
        "report.progress",
        "report.metrics",
        "fold",
        "run.home",
        "run.dry_run",
        "run.run_toml",
        "run.resolved_run",
        "options",
    ]
    code = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(f'peers.{{name}}')\n"
        "assert not {'torch', 'hivemind.utils'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]):
    assert exit_code(name, "--help") == 0
    assert "--help" in capsys.readouterr().out
    module = importlib.import_module(f"peers.commands.{name.replace('-', '_')}")
    assert module.command.__doc__, "the docstring of `command` is its help"


def test_no_arguments_print_help(capsys: pytest.CaptureFixture[str]):
    assert exit_code() == 0
    assert "Usage" in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.strip().count(".") == 2


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert exit_code("prepar") == 2
    assert "nearest one is 'prepare'" in capsys.readouterr().err


def test_an_unknown_option_is_a_user_error(capsys: pytest.CaptureFixture[str]):
    assert exit_code("prepare", "--vocabulary", "3") == 2
    assert "--vocab" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["reference", "--threads"], ["join", "x", "--threads"], ["generate", "--seed"]])
def test_numbers_that_no_machine_takes_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]):
    assert exit_code(*command, str(2**64)) == 2
    assert command[-1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["simulate", "--trace"], "name it with --seed"),
        (["simulate", "--seed", "5", "--seeds", "10"], "leave out --seeds"),
        (["demo", "--codec", "int9"], "did you mean 'int8'?"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_done(
    command: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    assert exit_code(*command) == 2
    assert says in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_user_errors_are_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code("prepare", "--input", str(tmp_path / "nowhere.txt")) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "nowhere.txt does not exist" in error and "\n" not in error


@pytest.mark.parametrize("command", [["status", "--home"], ["coordinate"], ["init", "r.toml", "--name"]])
def test_an_error_does_not_repeat_pages_of_what_was_pasted(command: list[str], capsys: pytest.CaptureFixture[str]):
    assert exit_code(*command, "x" * 5000) == 2
    said = capsys.readouterr().err
    assert "x" * 70 + "…" in said and len(said) < 700


def test_errors_about_a_path_are_user_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code("events", str(tmp_path / "none.jsonl")) == 2
    error = capsys.readouterr().err
    assert f"error: {tmp_path / 'none.jsonl'}: No such file or directory; check the path" in error


def test_a_folder_and_a_file_that_change_places_name_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    assert exit_code("generate", "hi", "--home", str(tmp_path / "file")) == 2
    assert "Not a directory; a part of this path is a file; name a folder" in capsys.readouterr().err
    assert exit_code("coordinate", str(tmp_path), "--dry-run") == 2
    assert f"{tmp_path} is a folder: name the run file in it" in capsys.readouterr().err
    assert exit_code("prepare", "--images", str(tmp_path), "--out", str(tmp_path / "out")) == 2
    assert "Is a directory; name a file, or move the folder away" in capsys.readouterr().err


def test_internal_errors_show_their_traceback_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("not named by us")

    monkeypatch.setattr("swarm.data.prepare", broken)
    assert exit_code("prepare", "--out", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error and "internal error: ValueError: not named by us" in error


def test_which_errors_are_the_users():
    assert cli.is_user_error(ManifestError("x"))
    assert cli.is_user_error(FileNotFoundError(2, "No such file", "a.txt"))
    assert cli.is_user_error(OSError(errno.ENOSPC, "No space left on device"))
    assert not cli.is_user_error(OSError(errno.ENOMEM, "out of something"))
    assert not cli.is_user_error(ValueError("x"))
    assert not cli.is_user_error(KeyError("x"))


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, clock=lambda: 0.0)
    for i in range(20_000):
        log.append(RunPaused(f"pause {i}"))
    log.close()
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m peers events {path} | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "pause 0" in result.stdout
    assert result.stderr == ""
    assert result.returncode == 0


def test_module_runs_like_the_script(tmp_path: Path):
    assert run("--version").stdout.strip().count(".") == 2
    assert json.loads(run("init", str(tmp_path / "R.toml"), "--no-measure", "--json").stdout)["measured"] is False


@pytest.mark.parametrize(
    "words",
    [
        ("join", "invite", "--max-rate"),
        ("join", "invite", "--max-memory"),
        ("join", "invite", "another"),
        ("join", "invite"),
        ("simulate", "--scenario", "calm", "--seeds"),
        (),
    ],
    ids=lambda words: words[-1] if words else "command",
)
@pytest.mark.parametrize("pasted", ["x" * 9000, "x y " * 3000], ids=["word", "text"])
def test_a_very_long_value_is_shortened_in_the_message(words, pasted, capsys):
    """It filled a box of 80 lines and more, above which the reason was lost."""
    long = f"--{pasted}" if words == ("join", "invite") else pasted
    assert exit_code(*words, long) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) < 30 and len(said) < 3000
