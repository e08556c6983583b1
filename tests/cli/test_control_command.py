"""`swarm-peer control`: what it prints, and what is an error that its user can fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peers import cli
from peers.runtime import control_client
from peers.runtime.control_client import Refused, Reply


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["control", *words])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_a_command_is_given_with_who_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def send(*what: object) -> Reply:
        asked.append(what)
        return Reply(3, "the run ends after step 7", {})

    monkeypatch.setattr(control_client, "send", send)
    words = ("stop-after", "7", "--home", str(tmp_path), "--why", "enough", "--by", "Ann")
    assert run(capsys, *words) == (0, "command 3: the run ends after step 7\n", "")
    assert asked == [(tmp_path, "stop_after", "7", "Ann", "enough", 45.0)]
    code, out, _ = run(capsys, *words, "--json")
    assert code == 0 and json.loads(out) == {"ok": True, "number": 3, "text": "the run ends after step 7"}


def test_status_is_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "send", lambda *what: Reply(0, "open; 3 of 9 steps decided", {"rate": 1.0}))
    assert run(capsys, "status", "--home", str(tmp_path)) == (0, "open; 3 of 9 steps decided\n", "")
    assert json.loads(run(capsys, "status", "--home", str(tmp_path), "--json")[1])["state"] == {"rate": 1.0}


def test_what_is_refused_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, "pause", "--home", str(tmp_path))
    assert (code, out) == (2, "") and err.startswith("error: no coordinator runs in") and err.count("\n") == 1

    def send(*what: object) -> Reply:
        raise Refused("the run is \x1b[31mpaused already")

    monkeypatch.setattr(control_client, "send", send)
    code, _, err = run(capsys, "pause", "--home", str(tmp_path))
    assert code == 2 and "paused already" in err and "\x1b" not in err
