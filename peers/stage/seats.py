"""Seats: several peers in one process, for a machine that has room for more than one stage.

Each seat is a whole peer with an identity, a home, a libp2p daemon and a compute thread of its own; the coordinator
places it like any other. They share the machine's memory, rate and speed in equal parts. They end together: when one
breaks, the process ends, for a supervisor to start it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from peers.home import Home
from peers.stage.process import JoinOptions, join
from swarm.net.invite import Invite
from swarm.net.uplink import LEAST_RATE


class SeatsError(ValueError):
    """More seats than the machine, or its limits, have room for."""


def seat_homes(path: Path, seats: int) -> list[Path]:
    """The first seat lives in the home itself, so that a peer that takes a second one stays who it was."""
    return [path, *(path / "seats" / str(number) for number in range(2, seats + 1))]


def seat_options(options: JoinOptions, seats: int, number: int) -> JoinOptions:
    """The part of seat `number`, counted from 0. Raises SeatsError."""
    if seats == 1:
        return options
    rate = None if options.max_rate is None else options.max_rate // seats
    if rate is not None and rate < LEAST_RATE:
        raise SeatsError(f"--max-rate is too little for --seats {seats}: each needs {8 * LEAST_RATE // 1000}kbit")
    graph = None if options.graph_budget_bytes is None else options.graph_budget_bytes // seats
    return replace(
        options,
        memory_bytes=options.memory_bytes // seats,
        graph_budget_bytes=graph,
        retention_bytes=options.retention_bytes // seats,
        delta_cache_bytes=options.delta_cache_bytes // seats,
        max_rate=rate,
        share=options.share / seats,
        listen=tuple(_moved(address, number) for address in options.listen),
        announce=tuple(_moved(address, number) for address in options.announce),
        faults=options.faults if number == 0 else (),
    )


async def take_seats(invite: Invite, path: Path, seats: int, options_of: Callable[[int], JoinOptions]) -> str:
    """Run all seats until the run is finished or they have left; returns why. Raises HomeError and as `join`.

    `options_of` a seat, counted from 0: those of the whole machine, with listeners that say which seat it is.
    """
    parts = [seat_options(options_of(number), seats, number) for number in range(seats)]
    with ExitStack() as stack:
        homes = [stack.enter_context(Home.open(home)) for home in seat_homes(path, seats)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(join(invite, *seat)) for seat in zip(homes, parts, strict=True)]
        except BaseExceptionGroup as broken:
            raise broken.exceptions[0] from None
        return tasks[0].result()


def _moved(address: str, number: int) -> str:
    """The port of the first seat, plus the number of this one; 0 means any."""
    parts = address.split("/")
    for place, part in enumerate(parts[:-1]):
        if part in ("tcp", "udp") and parts[place + 1] != "0":
            parts[place + 1] = str(int(parts[place + 1]) + number)
    return "/".join(parts)
