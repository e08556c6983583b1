"""The lobby: who says nothing makes room, and nobody takes it all."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from swarm.net import lobby
from swarm.net.lobby import Crowded, Lobby


class Silent:
    """A stream on which nothing has come."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_one_peer_has_so_many_streams_in_it_and_others_still_come_in() -> None:
    room = Lobby()
    with ExitStack() as stack:
        streams: list[Any] = [Silent() for _ in range(lobby.MOST_OF_ONE)]
        for stream in streams:
            stack.enter_context(room.waits(stream, "one"))
        with pytest.raises(Crowded, match="more than 8 open streams"):
            stack.enter_context(room.waits(Silent(), "one"))  # type: ignore[arg-type]
        stack.enter_context(room.waits(Silent(), "two"))  # type: ignore[arg-type]
        assert not any(stream.aborted for stream in streams)
    with room.waits(Silent(), "one"):  # type: ignore[arg-type]
        pass  # those before have been let in or are gone


def test_who_has_waited_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "MOST", 3)
    room = Lobby()
    streams: list[Any] = [Silent() for _ in range(5)]
    with ExitStack() as stack:
        for number, stream in enumerate(streams):
            stack.enter_context(room.waits(stream, str(number)))
            assert len(room._waiting) <= 3
        assert [stream.aborted for stream in streams] == [True, True, False, False, False]
    assert not room._waiting
