"""events: reading, filtering, following."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from peers import cli
from swarm.events import Event, EventLog, PeerFenced, RunPaused, StepApplied, read_log


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def write(path: Path, *events: Event) -> None:
    log = EventLog(path, clock=lambda: 1_700_000_000.25)
    for event in events:
        log.append(event)
    log.close()


FENCED = PeerFenced("abc.1", 0, "1:3", [1], [2], "silent for 3.1 s")


def test_a_line_has_time_kind_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "events.jsonl", FENCED)
    assert exit_code("events", str(tmp_path)) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert ".250  PeerFenced" in line and "silent for 3.1 s" in line


def test_json_passes_lines_through_even_of_another_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "log.jsonl"
    write(path, FENCED)
    path.write_bytes(path.read_bytes() + b'{"at":1,"kind":"FromTheFuture","x":1}\nnot json\n{"torn')
    assert exit_code("events", str(path), "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == path.read_text().splitlines()[:2]
    assert exit_code("events", str(path)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


DAMAGED = (
    b'{"at":null,"kind":"ProcessStopped","reason":"x"}',
    b'{"at":1e300,"kind":"ProcessStopped","reason":"x"}',
    b'{"at":NaN,"kind":"ProcessStopped","reason":"x"}',
    b'{"at":1,"kind":"PeerFenced","actor":"a.1","stage":0,"pass_id":5,"finished":1,"unfinished":2,"reason":"x"}',
    b'{"at":1,"kind":"ProcessStarted","role":5,"actor":[],"run":{},"version":null,"max_rate":-1}',
    b"[" * 100_000,
)


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: line[:40].decode())
def test_a_damaged_line_hides_no_other_line(line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "events.jsonl"
    write(path, FENCED)
    path.write_bytes(path.read_bytes() + line + b"\n" + path.read_bytes())
    for how in ((), ("--json",)):
        assert exit_code("events", str(path), *how) == 0
        assert capsys.readouterr().out.count("silent for 3.1 s") == 2
    assert [event for _, event in read_log(path)].count(FENCED) == 2


def test_a_file_without_events_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    path.write_text("[run]\nsteps = 3\n")
    assert exit_code("events", str(path)) == 2
    assert "is not an event log" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_kinds_are_filtered_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "log.jsonl"
    write(path, FENCED, RunPaused("x" * 200_000), StepApplied(3, "ab"), RunPaused("y"))
    assert exit_code("events", str(path), "--kind", "RunPaused", "-k", "StepApplied", "--json") == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["RunPaused", "StepApplied", "RunPaused"]
    assert exit_code("events", str(path), "--kind", "PeerFence") == 2
    assert "nearest one is PeerFenced" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_following_shows_whole_lines_as_they_come_and_survives_a_mended_tail(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    write(path, RunPaused("first"))
    process = subprocess.Popen(
        [sys.executable, "-m", "peers", "events", str(path), "--follow", "--json"], stdout=subprocess.PIPE, text=True
    )
    deadline = threading.Timer(60.0, process.kill)
    deadline.start()
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["reason"] == "first"
        with path.open("ab") as file:
            file.write(b'{"at":1,"kind":"RunPau')
            file.flush()
            file.write(b'sed","reason":"second"}\n{"at":2,"kind":"Torn')
        assert json.loads(process.stdout.readline())["reason"] == "second"
        write(
            path, RunPaused("third, which is longer than the torn line")
        )  # cuts the torn tail, as a restarted process does
        assert json.loads(process.stdout.readline())["reason"].startswith("third")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=60)
        deadline.cancel()
        if process.stdout is not None:
            process.stdout.close()
    assert code == 130
