"""The history: what was true when, through restarts, torn lines, other logs, lost databases and full disks."""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generated_log import Shape, generate
from peers.dashboard.history import history as history_module
from peers.dashboard.history import store as store_module
from peers.dashboard.history import tail as tail_module
from peers.dashboard.history import timeline as timeline_module
from peers.dashboard.history.history import History
from peers.dashboard.history.store import Store
from peers.fold import RunState, apply_record, views
from swarm import events as e
from swarm.events import EventLog, ProcessStarted, Rotation, StateChanged, parts_of

SHAPE = Shape(peers=6, stages=2, hours=0.05, step_seconds=10, kills_per_hour=120, spans=True, seed=3)
LINES, LONG = list(generate(SHAPE)), list(generate(dataclasses.replace(SHAPE, hours=0.4)))
NOON = 1_795_953_600.0
"""Noon of a day in UTC, in Unix time."""
SOURCE = f"coordinator/{LINES[0]['actor']}"


def encoded(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "events.jsonl").write_bytes(encoded(LINES))
    return tmp_path / "home"


@pytest.fixture
def long_home(home: Path) -> Path:
    """Its log needs a database of some 200 kB."""
    (home / "events.jsonl").write_bytes(encoded(LONG))
    return home


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "history.sqlite"


def caught_up(history: History) -> History:
    while history.follow():
        pass
    return history


def folded(lines: list[dict[str, Any]]) -> RunState:
    state = RunState()
    for line in lines:
        apply_record(state, line, line["at"], SOURCE)
    return state


def same(one: RunState, other: RunState) -> bool:
    return list(one.to_lines()) == list(other.to_lines())


def rows(history: History) -> list[Any]:
    tables = ("steps", "evaluations", "faults", "marks", "work", "lines")
    return [history._store.rows(f"SELECT count(*) FROM {table}") for table in tables]


def test_it_is_the_fold_of_the_log(home: Path, database: Path):
    history = caught_up(History([home], database))
    assert same(history.now, folded(LINES))
    assert history.span == (LINES[0]["at"], LINES[-1]["at"])


def test_what_was_true_at_any_moment(home: Path, database: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history_module, "SNAPSHOT_EVENTS", 40)
    monkeypatch.setattr(history_module, "SNAPSHOT_SHARE", 1e9)
    monkeypatch.setattr(history_module, "MOST_WAITING", 20)
    history = caught_up(History([home], database))
    assert history._store.value("SELECT count(*) FROM snapshots") > 3
    times = [line["at"] for line in LINES]
    for moment in (times[50], times[51], times[len(times) // 2], times[-1], times[10], times[-3], times[0] - 5):
        before = [line for line in LINES if line["at"] <= moment]
        assert same(history.at(moment), folded(before)), moment
    assert same(history.now, folded(LINES))


def test_it_follows_a_log_as_it_grows_and_takes_whole_lines_only(home: Path, database: Path):
    log = home / "events.jsonl"
    raw = encoded(LINES)
    log.write_bytes(b"")
    history, position = History([home], database), ""
    for start in range(0, len(raw), 5_000):
        with log.open("ab") as file:
            file.write(raw[start : start + 5_000])
        caught_up(history)
        assert history.position != position or start + 5_000 >= len(raw)
        position = history.position
    assert same(history.now, folded(LINES))
    caught_up(history)
    assert history.position == position


def test_a_restart_goes_on_where_it_was_without_telling_anything_twice(home: Path, database: Path):
    log, cut = home / "events.jsonl", len(LINES) // 2
    whole = caught_up(History([home], database.with_name("whole.sqlite")))
    log.write_bytes(encoded(LINES[:cut]))
    first = caught_up(History([home], database))
    first.close()
    log.write_bytes(encoded(LINES))
    again = caught_up(History([home], database))
    assert again.position.endswith(f"-{len(LINES) - cut}")  # the first half was not read again
    assert same(again.now, whole.now) and rows(again) == rows(whole)


def test_a_killed_process_loses_nothing_and_tells_nothing_twice(
    home: Path, database: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(history_module, "SNAPSHOT_EVENTS", 60)
    monkeypatch.setattr(history_module, "SNAPSHOT_SHARE", 1e9)
    whole = caught_up(History([home], database.with_name("whole.sqlite")))
    log, cut = home / "events.jsonl", len(LINES) - 30
    log.write_bytes(encoded(LINES[: cut - 40]))
    killed = caught_up(History([home], database))
    log.write_bytes(encoded(LINES[:cut]))
    caught_up(killed)  # it is not closed: its newest lines are beyond its newest snapshot
    assert killed._store.value("SELECT max(line) FROM snapshots") < killed._store.value("SELECT max(id) FROM lines")
    log.write_bytes(encoded(LINES))
    again = caught_up(History([home], database))
    assert same(again.now, whole.now) and rows(again) == rows(whole)


@pytest.mark.parametrize("lost", ["database", "database while it is open", "garbage", "another format"])
def test_a_lost_database_is_made_anew(home: Path, database: Path, lost: str):
    history = caught_up(History([home], database))
    expected = rows(history)
    if lost == "database while it is open":
        database.unlink()
        assert rows(caught_up(history)) == expected and database.exists()
        assert same(history.now, folded(LINES))
        return
    if lost == "another format":
        history._store.execute("UPDATE meta SET value = '0'")
    history.close()
    if lost == "database":
        database.unlink()
    elif lost == "garbage":
        database.write_bytes(b"no database" * 1000)
    again = caught_up(History([home], database))
    assert rows(again) == expected and same(again.now, folded(LINES)) and not again.warnings


@pytest.mark.parametrize("change", ["cut", "another run"])
def test_another_log_is_read_anew(home: Path, database: Path, change: str):
    history = caught_up(History([home], database))
    other = LINES[:40] if change == "cut" else [LINES[0] | {"run": "0" * 64}, *LINES[1:]]
    (home / "events.jsonl").write_bytes(encoded(other))
    caught_up(history)
    assert same(history.now, folded(other))


def test_garbage_in_a_log_is_passed_over(home: Path, database: Path):
    middle = len(LINES) // 2
    odd = (
        b"\x00\xff\n[1,2]\n{}\n" + b"[" * 5000 + b'\n{"at":"x","kind":3}\n{"at":1e999,"kind":"PeerSeen","actor":"a"}\n'
    )
    odd += b'{"at":1790000000.0,"kind":"NoSuchKind"}\n' + b"x" * (5 << 20) + b"\n\n"
    (home / "events.jsonl").write_bytes(encoded(LINES[:middle]) + odd + encoded(LINES[middle:]))
    history = caught_up(History([home], database))
    assert history.now.run.step == folded(LINES).run.step
    assert set(history.now.members.here) == set(folded(LINES).members.here)
    assert history.warnings == ["7 lines of events.jsonl cannot be read, so what they say is missing here"]


def test_unreadable_lines_count_once_however_they_are_read(home: Path, database: Path):
    history, log = caught_up(History([home], database)), home / "events.jsonl"
    assert not history.warnings
    for count, more in ((1, b"no event\n"), (1, b""), (2, encoded(LINES[-1:]) + b"\xff\n"), (2, encoded(LINES[-1:]))):
        with log.open("ab") as file:
            file.write(more)
        caught_up(history)
        lines = f"{count} lines" if count > 1 else "1 line"
        assert [text.partition(" of ")[0] for text in history.warnings] == [lines]
    history.close()
    again = caught_up(History([home], database))
    assert again.warnings == history.warnings, "after a restart, which reads no line again"


def test_a_home_whose_name_is_not_utf8_and_a_text_that_is_not(home: Path, database: Path):
    """Python keeps such bytes as surrogates, which SQLite refuses."""
    odd = home.rename(home.with_name(os.fsdecode(b"h\xfcme")))
    refused = {"at": LINES[-1]["at"], "kind": "CheckpointRefused", "path": "\udcfc/shard", "reason": "\ud800"}
    stranger = {"at": LINES[-1]["at"], "kind": "ControlGiven", "command": "\ud800", "value": "", "by": "\udcfc"}
    actor = {"at": LINES[-1]["at"], "kind": "PeerJoined", "actor": "\ud800.1", "stage": 0, "reason": "\ud801"}
    (odd / "events.jsonl").write_bytes(encoded([*LINES, refused, stranger, actor]))
    history = caught_up(History([odd], database))
    kept, state = rows(history), history.now
    history.close()
    again = caught_up(History([odd], database))
    assert rows(again) == kept and same(again.now, state)
    assert again._store.known(str(odd / "events.jsonl")) is not None, "under the name that the file has"


def test_a_full_disk_stops_the_database_and_not_the_state(home: Path, database: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(home)
    monkeypatch.setattr(history_module.shutil, "disk_usage", lambda path: usage._replace(free=10**8))
    history = caught_up(History([home], database))
    assert same(history.now, folded(LINES))
    assert "less than 1 GB is free" in history.warnings[0]
    assert rows(history)[0] == [(0,)]
    moment = LINES[len(LINES) // 2]["at"]
    assert history.at(moment).run.step == folded([line for line in LINES if line["at"] <= moment]).run.step
    monkeypatch.setattr(history_module.shutil, "disk_usage", lambda path: usage._replace(free=10**11))
    caught_up(history)
    caught_up(history)
    assert not history.warnings and rows(history)[0][0][0] > 3 and same(history.now, folded(LINES))


@contextlib.contextmanager
def quota(pages: int) -> Iterator[None]:
    """The database may not have more pages."""

    class Small(Store):
        def __init__(self, path: Path | None) -> None:
            super().__init__(path)
            self.execute(f"PRAGMA max_page_count={pages}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module, "Store", Small)
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320k", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def goes_on_without_growing(history: History) -> None:
    """Answers come from the state and the logs."""
    assert same(history.now, folded(LONG))
    assert len(history.warnings) == 1 and "stores no further history" in history.warnings[0], history.warnings
    moment = LONG[len(LONG) // 2]["at"]
    assert history.at(moment).run.step == folded([line for line in LONG if line["at"] <= moment]).run.step
    history.timeline(0, 3), history.lines(), history.marks(0, 1e18, 10), history.faults()


def test_a_database_that_cannot_grow_stops_and_the_state_does_not(
    long_home: Path, database: Path, monkeypatch: pytest.MonkeyPatch
):
    """As with a quota: the disk itself has room."""
    expected = rows(caught_up(History([long_home], database.with_name("whole.sqlite"))))
    with quota(24):
        history = caught_up(History([long_home], database))
        goes_on_without_growing(history)
        assert "full" in history.warnings[0]
        position = history.position
        caught_up(history)
        assert history.position == position, "it does not read all logs anew each time that it looks"
    monkeypatch.setattr(history, "_retry_at", 0.0)
    with (long_home / "events.jsonl").open("ab") as log:  # a run that goes on: something is new at every look
        log.write(b'{"at":1790000400.0,"kind":"LoopBlocked","seconds":1.0}\n')
    caught_up(history)
    assert not history.warnings and rows(history)[:3] == expected[:3]


def test_a_disk_without_space_stops_the_database_and_not_the_state(
    long_home: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(history_module, "LEAST_FREE_BYTES", 0)
    history = caught_up(History([long_home], small_disk / "history.sqlite"))
    assert shutil.disk_usage(small_disk).free < 16_384
    goes_on_without_growing(history)
    history.close()
    again = caught_up(History([long_home], small_disk / "history.sqlite"))
    assert same(again.now, folded(LONG)), "what is left of it does no harm"
    again.close()


def test_it_stops_growing_before_the_disk_is_full(long_home: Path, small_disk: Path):
    """With its real limit: this disk never has 1 GB."""
    history = caught_up(History([long_home], small_disk / "history.sqlite"))
    goes_on_without_growing(history)
    assert "less than 1 GB is free" in history.warnings[0]
    assert rows(history)[0] == [(0,)] and shutil.disk_usage(small_disk).free > 16_384
    history.close()


def test_a_database_that_never_works_is_tried_again_ever_less_often(
    long_home: Path, database: Path, monkeypatch: pytest.MonkeyPatch
):
    pauses = []
    with quota(24):
        history = caught_up(History([long_home], database))
        for _ in range(9):
            pauses.append(history._retry_s)
            monkeypatch.setattr(history, "_retry_at", 0.0)
            caught_up(history)
    assert pauses == [120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600]


def test_a_database_that_cannot_even_be_cut_is_made_anew(home: Path, database: Path, monkeypatch: pytest.MonkeyPatch):
    """To cut it takes space too."""
    caught_up(History([home], database)).close()

    def full(store: Store, last: int) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "cut_lines", full)
    again = caught_up(History([home], database))
    assert same(again.now, folded(LINES)) and not again.warnings


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_leaves_memory(home: Path, tmp_path: Path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    history = caught_up(History([home], locked / "history.sqlite"))
    assert "in memory only" in history.warnings[0] and rows(history)[0][0][0] > 3


def test_over_its_limit_the_oldest_go_first(home: Path, database: Path):
    history = caught_up(History([home], database))
    store, before = history._store, rows(history)
    for step in range(2000):
        for actor in range(10):
            store.add_work(step, f"{actor}.1", 0, "log", 7)
    store.commit()
    store.shrink(store.nbytes)  # a tenth less
    assert store.value("SELECT min(step) FROM work") > 100 and store.value("SELECT max(step) FROM work") == 1999
    assert rows(history)[-1] == before[-1]  # lines go when that is not enough
    store.shrink(1)
    assert rows(history)[-1][0][0] < before[-1][0][0]
    assert rows(history)[:3] == before[:3]  # a row a step, evaluation and fault stays


def test_many_faults_leave_room_for_other_marks_and_for_early_ones(home: Path, database: Path) -> None:
    """A run of a week in which a peer is slow in each step, and two are lost on the first day."""
    lines = [{"at": NOON, "kind": "ProcessStarted", "role": "coordinator", "actor": "C.0", "run": "ab", "version": "1"}]

    def tell(hours: float, kind: str, **fields: Any) -> None:
        lines.append({"at": NOON + 3600 * hours, "kind": kind, **fields})

    tell(0, "CoordinatorStarted", term=1, decided=-1)
    tell(0, "PeerSeen", actor="A.1")
    for step in range(600):
        hours = 30 + 0.2 * step
        if step % 10 == 0:
            tell(hours, "Evaluated", version=step, loss=3.0, targets=5)
        cost = {"microbatches": 1, "seconds": 2.0, "usual_s": 1.0, "tokens": 5, "reason": "it was slow"}
        early = hours if step > 1 else 5.0 + step
        tell(early, "FaultCosted", pass_id=f"1:{step}", step=step, actors=["A.1"], **cost)
    lines.sort(key=lambda line: line["at"])
    (home / "events.jsonl").write_bytes(encoded(lines))
    history = caught_up(History([home], database))
    marks = history.marks(*history.span, 400)
    kinds = [mark["kind"] for mark in marks]
    faults = [(mark["at"] - NOON) / 3600 for mark in marks if mark["kind"] == "fault"]
    assert kinds.count("evaluation") == 60 and kinds.count("restart") == 1 and 200 < len(faults) <= 339
    assert faults[:2] == [5.0, 6.0], "lonely ones stay"
    assert max(later - before for before, later in itertools.pairwise(faults[2:])) < 1.0
    assert [mark["at"] for mark in marks] == sorted(mark["at"] for mark in marks)
    assert all(mark["id"] is not None and "it was slow" in mark["text"] for mark in marks if mark["kind"] == "fault")
    assert len(history.marks(*history.span, 10)) <= 10 and len(history.marks(0, 1e18, 1000)) == 661


@pytest.mark.parametrize("chunk", [1, 100, 3000])
def test_lines_are_whole_however_they_are_read(home: Path, database: Path, monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(tail_module, "CHUNK_BYTES", chunk)
    (home / "events.jsonl").write_bytes(encoded(LINES[:60]) + b'{"at":1790000000.0,"kind":"Peer')
    history = caught_up(History([home], database))
    assert same(history.now, folded(LINES[:60]))


def test_copies_of_one_log_are_told_once(home: Path, tmp_path: Path, database: Path):
    """Another coordinator's home holds a copy that lags behind; it is read first, and goes on."""
    other = tmp_path / "other"
    (other / "mirrors").mkdir(parents=True)
    own = [{"at": LINES[0]["at"] + 1, "kind": "ProcessStarted", "role": "coordinator", "actor": "b.0"}]
    own[0] |= {"run": LINES[0]["run"], "version": "0.1.0"}
    (other / "events.jsonl").write_bytes(encoded(own))
    copy, cut = other / "mirrors" / "longpeerid.jsonl", len(LINES) // 3
    copy.write_bytes(encoded(LINES[:cut]))
    history = caught_up(History([other, home], database))
    copy.write_bytes(encoded(LINES[: cut + 50]))
    caught_up(history)
    assert history.now.work.tokens == folded(LINES).work.tokens
    assert history.now.events == len(LINES) + 1
    assert set(history.now.run.coordinators) == {LINES[0]["actor"], "b.0"}


def test_a_copy_alone_tells_the_run(home: Path, tmp_path: Path, database: Path):
    other = tmp_path / "other"
    (other / "mirrors").mkdir(parents=True)
    (home / "events.jsonl").rename(other / "mirrors" / "longpeerid.jsonl")
    history = caught_up(History([other], database))
    assert same(history.now, folded(LINES))


def test_peers_own_logs_are_merged_in(home: Path, tmp_path: Path, database: Path):
    """Who recovered what, and when, only a peer's own log tells."""
    fenced = next(line for line in LINES if line["kind"] == "PeerFenced")
    peer = tmp_path / "peer"
    peer.mkdir()
    start = {"at": LINES[0]["at"], "kind": "ProcessStarted", "role": "peer", "actor": "p.1", "run": "r", "version": "1"}
    frame = {"at": fenced["at"] + 0.25, "kind": "FrameRecovered", "key": f"{fenced['pass_id']}/b1→m3", "source": "q.1"}
    noise = {"at": fenced["at"] + 0.26, "kind": "MicrobatchForwarded", "pass_id": fenced["pass_id"], "microbatch": 3}
    (peer / "events.jsonl").write_bytes(encoded([start, frame, noise]))
    history = caught_up(History([home, peer], database))
    fault = next(each for each in history.now.faults.items if each.actor == fenced["actor"])
    assert fault.recovered_at == fenced["at"] + 0.25
    assert history.now.run.role == "coordinator"


def test_what_a_peer_reports_is_counted_once(home: Path, tmp_path: Path, database: Path):
    """A peer's own log holds its reports too."""
    actor = next(line["actor"] for line in LINES if line["kind"] == "PeerWorked")
    start = {"at": LINES[0]["at"], "kind": "ProcessStarted", "role": "peer", "actor": actor, "run": "r", "version": "1"}
    own = [line for line in LINES if line["kind"] in ("PeerWorked", "PeerDescribed") and line["actor"] == actor]
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "events.jsonl").write_bytes(encoded([start, *own]))
    history = caught_up(History([home, tmp_path / "peer"], database))
    assert history.now.links.sent == folded(LINES).links.sent
    assert history.now.people.by_peer[actor.split(".")[0]] == folded(LINES).people.by_peer[actor.split(".")[0]]


class Written:
    """A log in parts: `LONG`, up to where it was written."""

    def __init__(self, home: Path) -> None:
        self.path, self.done, self.parts = home / "events.jsonl", 0, 0
        self.path.write_bytes(b"")

    def write(self, until: int) -> None:
        with self.path.open("ab") as file:
            file.write(encoded(LONG[self.done : until]))
        self.done = until

    def rotate(self) -> None:
        self.parts += 1
        self.path.rename(self.path.with_name(f"events-20261127-{self.parts:06d}.jsonl"))
        first = {**LONG[0], "at": LONG[self.done]["at"], "kind": "LogContinued", "part": self.parts + 1}
        self.path.write_bytes(encoded([first]))


def test_a_log_that_goes_on_in_new_parts_is_not_read_twice(home: Path, database: Path) -> None:
    log, history = Written(home), None
    quarter = len(LONG) // 4
    log.write(quarter)
    history = caught_up(History([home], database))
    for number in (2, 3):
        log.rotate()
        if number == 3:
            caught_up(history)
            log.rotate()
        log.write(number * quarter)
        caught_up(history)
    assert history._life == 1, "nothing was read anew"
    shown = history.lines(limit=200)["lines"]
    assert len(shown) == 200 and all(line["text"] for line in shown), (
        "lines of older parts are found where they are now"
    )
    early = history.lines(before=LONG[quarter // 2]["at"], limit=50)["lines"]
    assert len(early) == 50 and early[0]["at"] < LONG[quarter // 2]["at"]
    history.close()

    log.rotate()
    log.write(4 * quarter)
    again = caught_up(History([home], database))
    assert again._life == 1 and len(again.lines(before=LONG[quarter // 2]["at"], limit=50)["lines"]) == 50
    whole = [line for line in LONG[: log.done]]
    assert same(again.now, folded(whole)) or again.now.run.step == folded(whole).run.step
    past = LONG[2 * quarter + 50]["at"]
    assert again.at(past).run.step == folded([line for line in whole if line["at"] <= past]).run.step
    fresh = caught_up(History([home], database.with_name("fresh.sqlite")))
    assert rows(fresh)[0] == rows(again)[0] and same(fresh.now, again.now)


def test_a_past_moment_is_read_on_in_a_new_part_of_the_log(home: Path, database: Path) -> None:
    (home / "events.jsonl").unlink()
    times = [NOON, NOON + 1, NOON + 86_400, NOON + 86_410]
    ticks = iter([*times, NOON + 86_420])
    log = EventLog(home / "events.jsonl", lambda: next(ticks), Rotation(1 << 20, daily=True))
    log.append(ProcessStarted("coordinator", "C.0", "run", "1", None))
    log.append(StateChanged("training", "x" * tail_module.HEAD_BYTES))
    history = caught_up(History([home], database))
    assert history.at(times[0] + 0.5).run.word == "starting"
    edition = history.edition
    log.append(StateChanged("paused", "the day after"))
    assert len(parts_of(home / "events.jsonl")) == 1
    log.append(StateChanged("waiting", "the day after"))
    log.append(StateChanged("finished", "the day after"))
    caught_up(history)
    assert history.edition != edition
    seen = [history.at(moment + 0.5).run.word for moment in times[1:]]
    assert seen == ["training", "paused", "waiting"]


def test_a_past_moment_includes_a_log_that_is_found_later(home: Path, database: Path) -> None:
    history = caught_up(History([home], database))
    early, late = (LINES[len(LINES) * share // 4]["at"] for share in (2, 3))
    history.at(early)
    trouble = {"at": early - 1, "kind": "OutOfMemory", "actor": LINES[0]["actor"], "what": "a seat's own log"}
    start = {"at": early - 2, "kind": "ProcessStarted", "role": "peer", "actor": "A.1", "run": "ab", "version": "1"}
    (home / "seats" / "b").mkdir(parents=True)
    (home / "seats" / "b" / "events.jsonl").write_bytes(encoded([start, trouble]))
    caught_up(history)
    assert "a seat's own log" in [fault.reason for fault in history.at(late).faults.items]


def test_a_clock_that_is_set_back_a_day_hides_nothing(home: Path, database: Path) -> None:
    """The parts of the log were ordered by time, and earlier times counted as told already, so that the dashboard stood
    still for a day.
    """
    (home / "events.jsonl").unlink()
    times = iter([NOON, NOON + 1, NOON + 86_400, NOON + 86_401, *(NOON + 2 + n for n in range(20))])
    log = EventLog(home / "events.jsonl", lambda: next(times), Rotation(1 << 20, daily=True))
    log.append(ProcessStarted("coordinator", "C.0", "run", "1", None))
    log.append(StateChanged("training", "every stage is held"))
    log.append(StateChanged("paused", "the day after"))
    log.append(StateChanged("training", "the day after"))
    live = caught_up(History([home], database))
    log.append(StateChanged("paused", "on the same day"))
    assert len(parts_of(home / "events.jsonl")) == 2
    assert caught_up(live).now.run.reason == "on the same day"
    log.append(StateChanged("finished", "later"))
    for history in (live, History([home], database), History([home], database.with_name("fresh.sqlite"))):
        assert caught_up(history).now.run.reason == "later"


def test_the_curves_leave_out_what_a_rollback_has_undone(home: Path, database: Path) -> None:
    steps = [e.StepDecided(1, step, 1.0, 5.0, 1.0, 800, [], []) for step in range(6)]
    told = [ProcessStarted("coordinator", "C.0", "run", "1", None), e.CoordinatorStarted(1, -1), *steps]
    told += [e.Evaluated(3, 3.0, 100), e.Evaluated(5, 5.0, 100), e.RolledBack(2, 3, "it diverged")]
    (home / "events.jsonl").write_bytes(encoded([e.to_record(event, NOON + n) for n, event in enumerate(told)]))
    history = caught_up(History([home], database))
    assert [row[1] for row in history.steps_after(-1, 99)] == [0, 1, 2]
    assert history.series("heldout_loss", *history.span, 100)["last"] == [3.0]
    history.close()


def seconds_apart(times: list[float], events: list[e.Event]) -> bytes:
    return encoded([e.to_record(event, NOON + at) for at, event in zip(times, events, strict=True)])


def run_of(steps: int) -> list[e.Event]:
    """Four events, then one for each step."""
    begin: list[e.Event] = [ProcessStarted("coordinator", "C.0", "run", "1", None), e.CoordinatorStarted(1, -1)]
    begin += [e.PeerSeen("A.1"), e.PeerJoined("A.1", 0, "it came")]
    return begin + [e.StepDecided(1, step, 1.0, 5.0, 1.0, 800, [], []) for step in range(steps)]


@pytest.mark.parametrize(
    ("wrong", "place"), [(86_400.0, 20), (-86_400.0, 20), (1e12, 20), (-NOON, 20), (86_400.0, 0), (1e12, 0)]
)
@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("live", [False, True])
def test_a_clock_that_is_wrong_for_some_events_spoils_no_view(
    home: Path, database: Path, wrong: float, count: int, live: bool, place: int
) -> None:
    events, times = run_of(40), [10.0 * number for number in range(44)]
    shown = [at + (wrong if place <= number < place + count else 0.0) for number, at in enumerate(times)]
    log = home / "events.jsonl"
    lines = seconds_apart(shown, events).splitlines(keepends=True)
    log.write_bytes(b"" if live else b"".join(lines))
    history = caught_up(History([home], database))
    for line in lines if live else []:
        with log.open("ab") as file:
            file.write(line)
        caught_up(history)
    first = times[count] if place == 0 else 0.0
    assert history.span == pytest.approx((NOON + first, NOON + 430.0)) and history.now.run.step == 39
    (member,) = views.peers_view(history.now)["peers"]
    assert member["hours"] * 3600 == pytest.approx(430 - max(first, times[2]), abs=1.0)
    for number in (*range(4, place - 1), *range(max(4, place + count), 43)):
        assert history.at(NOON + times[number] + 1).run.step == number - 4
    assert len(history.series("loss", *history.span, 4000)["t"]) > 30
    fresh = caught_up(History([home], database.with_name("fresh.sqlite")))
    assert same(fresh.now, history.now) and rows(fresh) == rows(history)
    history.close()
    again = caught_up(History([home], database))
    assert same(again.now, fresh.now) and again._life == 1


def test_a_clock_that_stays_set_back_leaves_durations_right(home: Path, database: Path) -> None:
    events = run_of(3000)
    times = [10.0 * number - (0.0 if number < 1500 else 86_400.0) for number in range(len(events))]
    (home / "events.jsonl").write_bytes(seconds_apart(times, events))
    history = caught_up(History([home], database))
    assert history.span == pytest.approx((NOON, NOON + 10.0 * (len(events) - 1)), abs=11.0)
    decided = [row[0] for row in history.steps_after(-1, 3000)]
    apart = [later - earlier for earlier, later in itertools.pairwise(decided)]
    assert sorted(apart)[1] == pytest.approx(10.0) and sorted(apart)[0] >= 0
    assert history.at(NOON + 20_000).run.step in (1995, 1996, 1997)


def test_a_real_gap_stays(home: Path, database: Path) -> None:
    events = run_of(40)
    times = [10.0 * number + (0.0 if number < 20 else 86_400.0) for number in range(44)]
    (home / "events.jsonl").write_bytes(seconds_apart(times, events))
    history = caught_up(History([home], database))
    assert history.span == (NOON, NOON + 86_830.0) and history.at(NOON + 50_000).run.step == 15


def test_a_clock_that_jumps_again_and_again_does_not_make_the_logs_be_read_each_time(
    home: Path, database: Path
) -> None:
    events = run_of(40)
    log = home / "events.jsonl"
    log.write_bytes(b"")
    history = caught_up(History([home], database))
    for number, event in enumerate(events):
        with log.open("ab") as file:
            file.write(seconds_apart([10.0 * number + (86_400.0 if number % 3 == 2 else 0.0)], [event]))
        caught_up(history)
    assert history._life <= 2 and history.now.run.step == 39


def test_the_clock_of_a_peers_machine_moves_nothing(home: Path, database: Path) -> None:
    (home / "events.jsonl").write_bytes(seconds_apart([10.0 * number for number in range(44)], run_of(40)))
    other = home.with_name("peer")
    for wrong in (86_400.0, -86_400.0):
        other.mkdir(exist_ok=True)
        told: list[e.Event] = [
            ProcessStarted("peer", "A.1", "run", "1", None),
            e.OutOfMemory("A.1", "a backward pass", 4, 2, False),
        ]
        (other / "events.jsonl").write_bytes(seconds_apart([wrong, wrong + 1], told))
        history = caught_up(History([home, other], database))
        assert history.span == (NOON, NOON + 430.0)
        assert history.at(NOON + 201).run.step == 16
        (fault,) = history.faults()
        assert NOON <= fault["at"] <= NOON + 430.0
        history.close()
        shutil.rmtree(other)


def test_names_take_bounded_memory_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_NAMES", 5)
    store = Store(tmp_path / "names.sqlite")
    numbers = {}
    for number in range(40):
        name = f"peer{number % 20}.{number}"
        numbers[name] = store.number(name)
        assert store.number(name) == numbers[name]
        store.add_line(float(number), name, "log", 0, "kind", name)
        if number % 8 == 7:
            store.commit()
    assert len(set(numbers.values())) == 40 and len(store._names) <= 5 and not store._new_names
    assert {name: store.number(name) for name in numbers} == numbers
    assert store.starts_of("peer3") == [numbers["peer3.3"], numbers["peer3.23"]]
    assert store.starts_of("peer3.23") == [numbers["peer3.23"]] and store.starts_of("peer") == []
    store.number("lost")
    store.drop()
    assert store.known("lost") is None, "it was not written"
    store.execute("DELETE FROM lines WHERE id > 1")
    store.shrink(1 << 30)
    assert store.known("peer0.0") == numbers["peer0.0"] and store.known("peer3.23") is None
    assert store.number("new") > max(numbers.values())
    store.close()


def test_a_critical_path_is_computed_once_until_the_step_has_more_reports(
    home: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []
    walk = timeline_module.critical_path

    def counted(reports: list[Any]) -> Any:
        walked.append(len(reports))
        return walk(reports)

    monkeypatch.setattr(timeline_module, "critical_path", counted)
    history = caught_up(History([home], database))
    whole = history.timeline(2, 5)
    assert len(walked) == 4
    part = history.timeline(2, 5, limit=1)
    assert len(walked) == 4 and part["steps"] == whole["steps"] and part["rows"] == whole["rows"][:1]
    here = history.now.members.here
    reports = [line for line in LINES if line["kind"] == "PeerWorked" and line["actor"] in here]
    report = next(line for line in reports if line["pass_id"].endswith(":5"))
    with (home / "events.jsonl").open("ab") as log:
        log.write(encoded([{**report, "at": LINES[-1]["at"], "seconds": {"forward": 9.0}}]))
    caught_up(history)
    later = history.timeline(2, 5)
    assert walked[4:] == walked[3:4], "only that of the step with another report"
    assert later["steps"][:3] == whole["steps"][:3]


def test_the_timeline_leaves_out_what_peers_did_in_a_void_attempt(home: Path, database: Path) -> None:
    """The peer that worked on step 1 before the rollback has not come back."""

    def worked(actor: str, term: int, step: int) -> e.Event:
        return e.PeerWorked(actor, 0, f"{term}:{step}", {"forward": 1.0}, [["forward", 0, 0, 1000]], [], {})

    told: list[e.Event] = [ProcessStarted("coordinator", "C.0", "run", "1", None), e.CoordinatorStarted(1, -1)]
    for actor in ("A.1", "B.1"):
        told += [e.PeerSeen(actor), e.PeerJoined(actor, 0, "it came")]
    for term, actors in ((1, ("A.1", "B.1")), (2, ("A.1",))):
        for step in (0, 1) if term == 1 else (1,):
            told += [e.PassOpened(f"{term}:{step}", "train", [2], 8), *(worked(actor, term, step) for actor in actors)]
            told += [e.StepDecided(term, step, 1.0, 5.0, 1.0, 800, [], [])]
        told += [e.RolledBack(2, 1, "it diverged"), e.PeerLost("B.1", 0, "silent")] if term == 1 else []
    (home / "events.jsonl").write_bytes(encoded([e.to_record(event, NOON + n) for n, event in enumerate(told)]))
    history = caught_up(History([home], database))
    shown = {row["actor"]: [each["step"] for each in row["steps"]] for row in history.timeline(0, 1)["rows"]}
    assert shown == {"A.1": [0, 1], "B.1": [0]}
