"""Where the seats of a process live, and what one Ctrl-C does to all of them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from peers.stage.interrupts import Interrupts
from peers.stage.options import JoinOptions
from peers.stage.seats import seat_home, seat_options


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


async def test_the_first_signal_has_every_seat_leave_also_one_that_comes_late() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupts, left, came = Interrupts(), [], asyncio.Event()
    interrupts.register(lambda: left.append("one"))
    interrupts.register(lambda: (left.append("two"), came.set()))
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(came.wait(), 60.0)
        assert left == ["one", "two"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "the next one ends the process"
        interrupts.register(lambda: left.append("three"))
        assert left == ["one", "two", "three"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
