"""Logs in parts: a volunteer's stays small, a coordinator's keeps everything, and readers go on over the seam."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peers.commands.status import folded
from peers.coordinator.mirror import Copy, chunk_of
from peers.coordinator.untold import untold
from peers.demo.event_tail import EventTail
from peers.fold.views import status_view
from swarm.events import (
    ControlGiven,
    EventLog,
    LogContinued,
    LogTail,
    ProcessStarted,
    Rotation,
    RunPaused,
    WholeLog,
    parts_of,
    read_log,
    whole_log,
)
from swarm.protocol.messages import Command

STARTED = ProcessStarted("coordinator", "abc.1", "f" * 64, "0.1.0")
SMALL = Rotation(600)
DAY_S = 86_400.0


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def reasons(events: object) -> list[str]:
    return [event.reason for _, event in events if isinstance(event, RunPaused)]  # type: ignore[attr-defined]


def opened(path: Path, rotation: Rotation | None = SMALL, clock: Clock | None = None) -> EventLog:
    log = EventLog(path, clock or Clock(), rotation)
    log.append(STARTED)
    return log


def test_a_volunteers_log_drops_its_oldest_parts_and_stays_within_its_size(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = opened(path, Rotation(600, parts=2))
    for number in range(100):
        log.append(RunPaused(f"{number}"))
    parts = whole_log(path)
    assert len(parts) == 3 and parts[-1] == path
    assert all(part.stat().st_size <= 600 + 200 for part in parts)
    found = reasons(read_log(path))
    assert found == [str(number) for number in range(100 - len(found), 100)]
    first = json.loads(path.read_bytes().splitlines()[0])
    assert first["kind"] == "LogContinued" and first["actor"] == "abc.1", "each part says whose it is"


def test_a_coordinators_log_has_dated_parts_and_loses_nothing_over_restarts(tmp_path: Path) -> None:
    path, clock = tmp_path / "events.jsonl", Clock()
    rotation = Rotation(1 << 20, daily=True)
    log = opened(path, rotation, clock)
    log.append(RunPaused("first day"))
    clock.now += DAY_S
    log.append(RunPaused("second day"))
    log.close()
    clock.now += DAY_S
    again = EventLog(path, clock, rotation)
    again._day = "20231115"  # as the file's own time says after a night
    again.append(RunPaused("before the start"))
    again.append(STARTED)
    again.append(RunPaused("third day"))
    assert [part.name for part in parts_of(path)] == ["events-20231114-000001.jsonl", "events-20231115-000002.jsonl"]
    assert reasons(read_log(path)) == ["first day", "second day", "before the start", "third day"]
    assert [type(event) for _, event in read_log(path)].count(LogContinued) == 2


@pytest.mark.parametrize("between", [1, 7, 40])
def test_a_reader_follows_over_any_number_of_parts(tmp_path: Path, between: int) -> None:
    path = tmp_path / "events.jsonl"
    tail, found = EventTail(path), []
    assert tail.read() == []
    log = opened(path)
    for number in range(120):
        log.append(RunPaused(f"{number}"))
        if number % between == 0:
            found += reasons(tail.read())
    found += reasons(tail.read())
    assert found == [str(number) for number in range(120)]
    assert tail.read() == [] and len(parts_of(path)) > 10


def test_a_reader_that_was_away_for_too_long_goes_on_with_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log, tail = opened(path, Rotation(600, parts=2)), EventTail(path)
    log.append(RunPaused("early"))
    assert reasons(tail.read()) == ["early"]
    for number in range(100):
        log.append(RunPaused(f"{number}"))
    assert reasons(tail.read()) == reasons(read_log(path))


@pytest.mark.parametrize("how", ["renamed", "removed", "replaced"])
def test_a_log_that_somebody_moves_goes_on_under_its_name(tmp_path: Path, how: str) -> None:
    path = tmp_path / "events.jsonl"
    log, tail = opened(path, None), EventTail(path)
    log.append(RunPaused("before"))
    assert reasons(tail.read()) == ["before"]
    if how == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "events.jsonl.1")  # as logrotate does
    if how == "replaced":
        path.touch()
    log.append(RunPaused("after"))
    log.append(RunPaused("later"))
    assert reasons(tail.read()) == ["after", "later"]
    assert reasons(read_log(path)) == ["after", "later"]
    assert json.loads(path.read_bytes().splitlines()[0])["kind"] == "LogContinued", "the new file says whose it is"


def test_a_log_whose_folder_is_gone_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "home" / "events.jsonl"
    log = opened(path)
    path.parent.rename(tmp_path / "elsewhere")
    log.append(RunPaused("still written"))
    assert reasons(read_log(tmp_path / "elsewhere" / "events.jsonl")) == ["still written"]


def test_a_log_without_news_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests, the demo and the dashboard look at logs up to 200 times a second."""
    path = tmp_path / "events.jsonl"
    log, tail = opened(path), EventTail(path)
    log.append(RunPaused("before"))
    assert reasons(tail.read()) == ["before"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("opened although it has no news")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        assert tail.read() == [] == tail.read()
    log.append(RunPaused("after"))
    assert reasons(tail.read()) == ["after"]


def test_a_reader_that_stops_halfway_gets_no_line_again_and_misses_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    tail = LogTail(path)
    assert next(tail.lines()) == b'{"n": 1}\n'
    assert list(tail.lines()) == [b'{"n": 2}\n', b'{"n": 3}\n']


def test_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"at": 1, "kind": "Half')
    tail = LogTail(path)
    assert list(tail.lines()) == []
    with path.open("ab") as file:
        file.write(b'"}\n')
    assert list(tail.lines()) == [b'{"at": 1, "kind": "Half"}\n']


def test_a_part_that_cannot_get_its_name_costs_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    log = opened(path)

    def refuse(*_: object) -> None:
        raise PermissionError("a folder of somebody else")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        for number in range(20):
            log.append(RunPaused(f"{number}"))
    assert whole_log(path) == [path]
    for number in range(20, 40):
        log.append(RunPaused(f"{number}"))
    assert parts_of(path), "it is tried again"
    assert reasons(read_log(path)) == [str(number) for number in range(40)]


def test_the_whole_log_is_one_sequence_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = opened(path)
    for number in range(30):
        log.append(RunPaused(f"{number}"))
    everything = b"".join(part.read_bytes() for part in whole_log(path))
    whole = WholeLog(path)
    assert whole.size == len(everything) and whole.read(0, 1 << 20) == everything
    for offset in range(0, len(everything), 97):
        assert whole.read(offset, 700) == everything[offset : offset + 700]
    assert whole.first_line(4096) == everything.splitlines(keepends=True)[0]
    for number in range(30):
        log.append(RunPaused(f"{number}"))
    with pytest.raises(OSError, match="was replaced by a different one"):
        whole.read(len(everything) - 10, 10)


def test_a_copy_of_a_log_in_parts_is_one_file_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log, copy = opened(path), Copy(tmp_path / "mirrors" / "abc.jsonl")
    for number in range(60):
        log.append(RunPaused(f"{number}"))
        if number % 11 == 0:
            while (chunk := chunk_of(path, copy.want(), 500)) is not None:
                copy.take(chunk)
    while (chunk := chunk_of(path, copy.want(), 500)) is not None:
        copy.take(chunk)
    assert copy.path.read_bytes() == b"".join(part.read_bytes() for part in whole_log(path))
    assert [each.name for each in copy.path.parent.iterdir()] == ["abc.jsonl"], "no copy was set aside"


def test_status_and_resume_read_all_parts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = opened(path)
    log.append(ControlGiven(1, "pause", "", "Ann", "lunch"))
    for number in range(40):
        log.append(RunPaused(f"{number}"))
    assert parts_of(path)
    status = status_view(folded(path))
    assert (status["role"], status["actor"]) == ("coordinator", "abc.1")
    commands = [Command(number, "pause", "", "Ann", "lunch", f"r{number}") for number in (1, 2)]
    assert untold(commands, whole_log(path)) == [commands[1]]
    parts_of(path)[0].unlink()
    status = status_view(folded(path))
    assert (status["role"], status["actor"]) == ("coordinator", "abc.1"), "also without the beginning"


def test_events_follow_goes_on_over_a_new_part(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = opened(path)
    words = [sys.executable, "-m", "peers", "events", str(tmp_path), "--follow", "--json", "--kind", "RunPaused"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        for number in range(40):
            log.append(RunPaused(f"{number}"))
            assert json.loads(following.stdout.readline())["reason"] == str(number)
        following.terminate()
    assert len(parts_of(path)) > 3


def test_a_part_that_cannot_be_begun_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    log = opened(path)
    really, refused = Path.open, []

    def refuse(self: Path, *args: object, **more: object) -> object:
        if self == path and len(refused) < 5:
            refused.append(self)
            raise OSError(24, "Too many open files")
        return really(self, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    for number in range(60):
        log.append(RunPaused(f"{number}"))
    log.close()
    assert len(refused) == 5
    assert reasons(read_log(path)) == [f"{number}" for number in range(60)]
