"""Where the seats of a process live, and what one Ctrl-C does to all of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.run.home import OpenHome
from peers.stage import seats
from peers.stage.interrupts import Interrupts
from peers.stage.options import JoinOptions
from peers.stage.seats import seat_home, seat_options, take_seats
from swarm.net.invite import Invite


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals are the usual ones after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_seats_take_ports_in_a_row() -> None:
    whole = JoinOptions(listen=("/ip4/0.0.0.0/tcp/4002",), announce=("/ip4/203.0.113.7/tcp/4002",))
    assert seat_options(whole, 0) is whole
    part = seat_options(whole, 3)
    assert (part.listen, part.announce) == (("/ip4/0.0.0.0/tcp/4005",), ("/ip4/203.0.113.7/tcp/4005",))
    assert part.interrupts is whole.interrupts and part.machine is whole.machine
    anywhere = seat_options(JoinOptions(listen=("/ip4/0.0.0.0/tcp/0",)), 3)
    assert anywhere.listen == ("/ip4/0.0.0.0/tcp/0",)


def test_the_first_seat_lives_in_the_home_itself(tmp_path: Path) -> None:
    assert [seat_home(tmp_path, number) for number in range(3)] == [
        tmp_path,
        tmp_path / "seats" / "2",
        tmp_path / "seats" / "3",
    ]


async def test_the_first_signal_has_every_seat_leave_also_one_that_comes_late(handlers: None) -> None:
    interrupts, left, came = Interrupts(), [], asyncio.Event()
    interrupts.register(lambda: left.append("one"))
    interrupts.register(lambda: (left.append("two"), came.set()))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(came.wait(), 60.0)
    assert left == ["one", "two"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "the next one ends the process"
    interrupts.register(lambda: left.append("three"))
    assert left == ["one", "two", "three"]


@pytest.mark.parametrize("ready", [0, 1])
async def test_a_seat_that_is_still_starting_does_not_keep_the_process_from_leaving(
    ready: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    both = asyncio.Barrier(2)

    async def join(invite: Invite, home: OpenHome, options: JoinOptions) -> str:
        left = asyncio.Event()
        if home.path == seat_home(tmp_path, ready):
            options.interrupts.register(left.set)
            await both.wait()
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            await both.wait()  # and then for ever, as for a coordinator that does not answer
        await left.wait()
        return "left"

    monkeypatch.setattr(seats, "join", join)
    options = JoinOptions()
    async with asyncio.timeout(60):
        assert await take_seats(Invite((), ""), tmp_path, 2, lambda number: options) == "left"


async def test_a_seat_that_is_asked_for_after_the_signal_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    began, ended = [], []

    async def join(invite: Invite, home: OpenHome, options: JoinOptions) -> str:
        left = asyncio.Event()
        began.append(home.path)
        if options.on_call:
            try:
                await left.wait()
            finally:
                ended.append(home.path)
        options.interrupts.register(left.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await left.wait()
        assert options.machine.more is not None
        options.machine.more(2, "a stage has no peer")
        return "left"

    monkeypatch.setattr(seats, "join", join)
    options = JoinOptions()
    async with asyncio.timeout(60):
        assert await take_seats(Invite((), ""), tmp_path, None, lambda number: options) == "left"
    assert began == [tmp_path, *ended] and len(ended) == 1
