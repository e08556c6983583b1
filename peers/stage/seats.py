"""Several peers in one process, for a machine that has room for more than one stage. Each of them has a seat.

Each seat is a whole peer with its own identity, home, libp2p daemon and compute thread. The coordinator places it like
any other peer. The owner may set the number of seats. Otherwise there is one seat, and the coordinator asks for more
when stages have no other peer. The seats share a machine (`Machine`). The owner's seats end together: when one fails,
the process ends, and a supervisor restarts it. Seats that the coordinator asked for start and end independently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from peers.run.home import Home
from peers.runtime.notebook import current
from peers.stage.options import JoinOptions
from peers.stage.process import join
from swarm.events import SeatLeft, SeatTaken
from swarm.net.invite import Invite


async def take_seats(invite: Invite, path: Path, seats: int | None, options_of: Callable[[int], JoinOptions]) -> str:
    """Run all seats until the run is finished or they have left; return why. Raises HomeError and the errors of
    `join`.

    `seats` None: as many as the coordinator asks for. `options_of(number)`: the options of a seat, counted from 0;
    they describe the whole machine, and their listeners name the seat.
    """
    row = _Row(invite, path, options_of)
    if seats is None:
        row.machine.more = row.fill
    try:
        async with asyncio.TaskGroup() as group:
            row.group = group
            for number in range(seats or 1):
                row.take(number)
    except BaseExceptionGroup as broken:
        raise broken.exceptions[0] from None
    # a signal cancels seats that are still starting, but only if another one has started
    return next(task.result() for task in row.tasks.values() if not task.cancelled())


def seat_home(path: Path, number: int) -> Path:
    """The home of a seat. The first seat uses `path` itself, so a peer that takes a second seat keeps its identity."""
    return path / "seats" / str(number + 1) if number else path


def seat_options(options: JoinOptions, number: int) -> JoinOptions:
    """The options of seat `number`, counted from 0."""
    if number == 0:
        return options
    return replace(
        options,
        listen=tuple(_moved(address, number) for address in options.listen),
        announce=tuple(_moved(address, number) for address in options.announce),
        faults=(),
    )


class _Row:
    """The seats of a process, by number from 0."""

    group: asyncio.TaskGroup

    def __init__(self, invite: Invite, path: Path, options_of: Callable[[int], JoinOptions]) -> None:
        self._invite = invite
        self._path = path
        self._options_of = options_of
        self.machine = options_of(0).machine
        self.tasks: dict[int, asyncio.Task[str]] = {}

    def take(self, number: int) -> None:
        """Start a seat that the owner has asked for."""
        self.tasks[number] = self.group.create_task(self._join(number, on_call=False))

    def fill(self, seats: int, reason: str) -> None:
        """Raise the number of seats to `seats`, as the coordinator asks."""
        taken = {number for number, task in self.tasks.items() if not task.done()}
        free = (number for number in range(seats) if number not in taken)
        for number in list(free)[: seats - len(taken)]:
            self.machine.tell(SeatTaken(number + 1, str(seat_home(self._path, number)), reason))
            self.tasks[number] = self.group.create_task(self._on_call(number))

    async def _on_call(self, number: int) -> str:
        """Run a seat that the coordinator has asked for. If it fails, this is reported, and the other seats
        continue.
        """
        try:
            reason = await self._join(number, on_call=True)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self.machine.tell(SeatLeft(number + 1, reason))
        return reason

    async def _join(self, number: int, on_call: bool) -> str:
        options = replace(seat_options(self._options_of(number), number), on_call=on_call)
        if (task := asyncio.current_task()) is not None:
            options.interrupts.starts(task)
        with Home.open(seat_home(self._path, number)) as home:
            where = current(self._invite, Home(self._path).notebook, home.notebook)
            return await join(where, home, options)


def _moved(address: str, number: int) -> str:
    """An address for this seat: its port is increased by the number of the seat. Port 0 stays 0 and means any port."""
    parts = address.split("/")
    for place, part in enumerate(parts[:-1]):
        if part in ("tcp", "udp") and parts[place + 1] != "0":
            parts[place + 1] = str(int(parts[place + 1]) + number)
    return "/".join(parts)
