"""Frames that arrive slowly share a limited amount of memory, and nobody takes the place of who holds less."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from swarm.net import unfinished_frames as module
from swarm.net.stream import FRAME_S
from swarm.net.unfinished_frames import UnfinishedFrames
from swarm.protocol.ids import Actor

NOW = 1000.0
OLD = NOW - 2 * FRAME_S


@dataclass(eq=False)
class Half:
    """A stream on which half of a frame has come."""

    reserved: int
    frame_since: float = OLD
    aborted: bool = False

    def abort(self) -> None:
        self.aborted = True


class Frames:
    def __init__(self, max_payload: int = 0) -> None:
        self.stack = ExitStack()
        self.unfinished = UnfinishedFrames(max_payload)

    def half(self, peer: str, serial: str, reserved: int, since: float = OLD) -> Half:
        stream = Half(reserved, since)
        reads = self.unfinished.reads(stream, Actor(peer, 1), serial.encode())  # type: ignore[arg-type]
        self.stack.enter_context(reads)
        return stream

    def look(self) -> list[str]:
        return [sender.peer for sender in self.unfinished.look(NOW)]


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    return Frames()


def test_the_pass_that_holds_most_gives_up_its_slowest_frames(frames: Frames) -> None:
    honest = [frames.half(f"honest {n}", f"pass {n}", 20) for n in range(3)]
    slower = frames.half("liar 1", "liars", 30, OLD - 10)
    faster = frames.half("liar 1", "liars", 30)
    other = frames.half("liar 2", "liars", 25)
    assert frames.look() == ["liar 1", "liar 1"] and slower.aborted and faster.aborted
    assert not other.aborted and not any(stream.aborted for stream in honest)


def test_a_frame_that_is_not_slow_yet_does_not_count(frames: Frames) -> None:
    frames.half("quick", "pass", 1000, NOW - FRAME_S / 2)
    frames.half("slow", "pass", 100)
    assert frames.look() == []


def test_a_coordinator_is_not_limited_and_a_frame_that_has_come_does_not_count(frames: Frames) -> None:
    coordinator, done = frames.half("coordinator", "", 1000), frames.half("alice", "pass", 0)
    frames.stack.close()
    again = Frames()
    again.half("coordinator", "", 1000)
    again.half("alice", "pass", 0)
    assert again.look() == [] and not coordinator.aborted and not done.aborted


def test_a_run_with_large_frames_has_more_room(frames: Frames) -> None:
    large = Frames(max_payload=50)
    large.half("alice", "pass", 150)
    large.half("alice", "pass", 40)
    assert large.look() == []
    large.half("bob", "other", 20)
    assert large.look() == ["alice"]


def test_a_stream_that_has_ended_does_not_count(frames: Frames) -> None:
    frames.half("alice", "pass", 1000)
    frames.stack.close()
    assert frames.look() == []
