"""Copies of other coordinators' logs: whole lines, nothing twice, nothing missing, whatever is restored or torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peers.coordinator.mirror import MAX_ASIDE, Mirror
from swarm.events import Event, EventLog, LogCopyStopped, RunPaused
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_LOG_BYTES, LogChunk, LogWant, Message

ONE, TWO, STRANGER = Actor("one", 0), Actor("two", 0), Actor("stranger", 1)


class Pair:
    """Two coordinators, and what they send each other: at once, unless `lost`."""

    def __init__(self, folder: Path) -> None:
        self.logs = {actor: folder / actor.peer / "events.jsonl" for actor in (ONE, TWO)}
        self.folder = folder
        self.lost = False
        self.sent: list[Message] = []
        self.reported: list[Event] = []
        self.start()

    def start(self) -> None:
        self.mirrors = {
            me: Mirror(self.logs[me], self.logs[me].parent / "mirrors", [other], self._sender(me), self.reported.append)
            for me, other in ((ONE, TWO), (TWO, ONE))
        }

    def _sender(self, me: Actor):  # type: ignore[no-untyped-def]
        def send(to: Actor, message: Message) -> None:
            assert isinstance(message, LogWant | LogChunk)
            self.sent.append(message)
            if not self.lost:
                self.mirrors[to].heard(me, message)

        return send

    def write(self, actor: Actor, *events: str, at: float = 1.0) -> None:
        log = EventLog(self.logs[actor], lambda: at)
        for reason in events:
            log.append(RunPaused(reason))
        log.close()

    def beat(self, count: int = 1) -> None:
        for _ in range(count):
            for mirror in self.mirrors.values():
                mirror.ask()

    def copy(self, of: Actor, aside: str = "") -> Path:
        other = TWO if of == ONE else ONE
        return self.logs[other].parent / "mirrors" / f"{of.peer}{aside}.jsonl"


def test_a_copy_that_cannot_be_read_stops_nobody(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.copy(of=TWO).mkdir(parents=True)
    pair.start()
    pair.write(TWO, "a")
    pair.write(ONE, "b")
    pair.beat(3)
    assert pair.copy(of=ONE).read_bytes() == pair.logs[ONE].read_bytes()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_each_has_what_the_other_has_written_and_asks_in_vain_when_there_is_nothing_new(pair: Pair) -> None:
    pair.beat()
    assert not pair.copy(ONE).exists()
    pair.write(ONE, "a", "b")
    pair.write(TWO, "c")
    pair.beat()
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()
    assert pair.copy(TWO).read_bytes() == pair.logs[TWO].read_bytes()
    pair.sent.clear()
    pair.beat(3)
    assert not [message for message in pair.sent if isinstance(message, LogChunk)]
    pair.write(ONE, "d")
    pair.start()  # both are started again
    pair.beat()
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()


def test_a_long_log_comes_in_chunks_and_what_is_lost_is_asked_for_again(pair: Pair) -> None:
    pair.write(ONE, *("x" * 900 for _ in range(300)), "y" * 200_000, "end")
    for beat in range(40):
        pair.lost = beat % 3 == 1
        pair.beat()
    assert all(len(m.lines) <= MAX_LOG_BYTES for m in pair.sent if isinstance(m, LogChunk))
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()
    for line in pair.copy(ONE).read_bytes().splitlines():
        json.loads(line)


def test_a_copy_has_whole_lines_alone_at_any_time(pair: Pair) -> None:
    pair.write(ONE, "a")
    with pair.logs[ONE].open("ab") as file:
        file.write(b'{"at": 2.0, "kind": "RunPau')
    pair.beat()
    assert pair.copy(ONE).read_bytes().count(b"\n") == 1 and pair.copy(ONE).read_bytes().endswith(b"\n")
    pair.write(ONE, "b")  # the torn line is cut
    pair.beat()
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()
    with pair.copy(ONE).open("ab") as file:
        file.write(b'{"torn')
    pair.start()
    pair.write(ONE, "c")
    pair.beat()
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()
    assert not pair.copy(ONE, "-1").exists(), "it goes on where the torn line was"


def test_a_new_log_and_one_that_was_restored_are_begun_anew_and_the_old_copy_is_set_aside(pair: Pair) -> None:
    pair.write(ONE, "a", "b")
    pair.beat()
    first = pair.logs[ONE].read_bytes()
    pair.logs[ONE].unlink()
    pair.write(ONE, "z", at=2.0)
    pair.beat(2)
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()
    assert pair.copy(ONE, "-1").read_bytes() == first
    pair.write(ONE, "later")
    pair.beat()
    second = pair.logs[ONE].read_bytes()
    pair.logs[ONE].write_bytes(second.splitlines(keepends=True)[0])  # an older copy of the same log
    pair.write(ONE, "something else that is longer than what was there")
    pair.beat(2)
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()
    assert pair.copy(ONE, "-2").read_bytes() == second


def test_who_begins_anew_again_and_again_fills_no_disk(pair: Pair) -> None:
    for number in range(MAX_ASIDE + 4):
        pair.logs[ONE].unlink(missing_ok=True)
        pair.write(ONE, "a", at=float(number))
        pair.beat(2)
    assert len(list(pair.copy(ONE).parent.iterdir())) == MAX_ASIDE + 1
    assert pair.reported == [LogCopyStopped(str(ONE), f"the log has begun anew more than {MAX_ASIDE} times")]


def test_a_copy_that_has_reached_its_largest_size_is_reported_once_and_not_asked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.coordinator.mirror.MAX_COPY", 1000)
    pair.write(ONE, "x" * 1200)
    pair.beat()
    assert not pair.reported
    pair.write(ONE, "later")
    pair.beat(3)
    assert pair.reported == [LogCopyStopped(str(ONE), "it has reached 1.0 kB")]
    assert len(pair.copy(ONE).read_bytes().splitlines()) == 1


def test_a_copy_waits_while_the_disk_has_little_room_and_then_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(ONE, "a")
    with monkeypatch.context() as patched:
        patched.setattr("peers.coordinator.mirror.LEAST_FREE", 1 << 60)
        pair.beat(3)
        assert not pair.copy(ONE).exists()
        assert {(event.other, event.reason.rpartition(" of ")[2]) for event in pair.reported} == {
            (str(ONE), "the disk is free"),
            (str(TWO), "the disk is free"),
        }
        assert len(pair.reported) == 2
    pair.beat()
    assert pair.copy(ONE).read_bytes() == pair.logs[ONE].read_bytes()


def test_strangers_are_told_nothing_and_write_nothing(pair: Pair) -> None:
    pair.write(ONE, "a")
    mirror = pair.mirrors[ONE]
    pair.sent.clear()
    mirror.heard(STRANGER, LogWant("", 0, ""))
    mirror.heard(STRANGER, LogChunk("name", 0, b"{}\n"))
    assert pair.sent == [] and not list(pair.logs[ONE].parent.glob("mirrors/*"))


def test_chunks_that_do_not_follow_are_not_written(pair: Pair) -> None:
    pair.write(ONE, "a")
    pair.beat()
    before = pair.copy(ONE).read_bytes()
    for chunk in (LogChunk("other", len(before), b"{}\n"), LogChunk("", len(before) + 5, b"{}\n")):
        pair.mirrors[TWO].heard(ONE, chunk)
    assert pair.copy(ONE).read_bytes() == before
    name = next(m.log for m in pair.sent if isinstance(m, LogChunk))
    pair.mirrors[TWO].heard(ONE, LogChunk(name, len(before), b'{"half'))
    assert pair.copy(ONE).read_bytes() == before
