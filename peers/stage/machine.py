"""A machine: the resources that the peers of one device share, and the part that each peer's seat has.

Speed and uplink are divided equally, and said so to the coordinator; so is what holds frames and graphs. Memory is said
whole: who gives out the stages knows what each needs. A limited uplink is one for all, whoever sends.

A process with several devices has a machine for each: they share the line, and nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from swarm.events import Event
from swarm.net.uplink import Uplink
from swarm.protocol.messages import Means, Seating


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bytes of a whole machine. `memory`: to plan with; a stage that needs more is not taken. `frames`: kept in memory,
    if the states leave so much. `graphs`: autograd graphs kept between forward and backward; None: what states and
    frames leave, at most half of the memory. `changes`: what earlier visits left, in a run with codec `delta`, `ef21`,
    `ef` or `ef-mixed`. `host`: where `memory` is that of a graphics card, what the host gives beside it: frames lie
    there, and graphs may have all that states leave of the card. `strict`: the owner has named `memory`; else it is
    a part of what is free, and the rest has room for gaps of the heap.
    """

    memory: int = 4 << 30
    frames: int = 1 << 30
    graphs: int | None = None
    changes: int = 1 << 30
    host: int | None = None
    strict: bool = False


class Machine:
    """`more`: takes further peers on, so many in all, for a reason; None: it never has more than it begins with."""

    def __init__(
        self,
        budgets: Budgets = Budgets(),
        max_rate: int | None = None,
        more: Callable[[int, str], None] | None = None,
        beside: Machine | None = None,
    ) -> None:
        """`max_rate`: bytes a second that may be sent; None: no limit. Raises ValueError for less than is of use.

        `beside`: of another device of this process, whose line it uses: that has the limit, if any.
        """
        self.budgets = budgets
        self.max_rate: int | None = max_rate if beside is None else beside.max_rate
        own = None if max_rate is None or beside is not None else Uplink(max_rate)
        self.uplink: Uplink | None = own if beside is None else beside.uplink
        self.more = more
        self.process: str = secrets.token_hex(6) if beside is None else beside.process
        """A name for this process that says nothing of it: by it people see which peers go down together."""
        self.measuring: asyncio.Lock = asyncio.Lock() if beside is None else beside.measuring
        """Held by who finds out what the machine can do: the others use what it has found."""
        self._seats: list[Seat] = []
        self._on_line: list[Machine] = [] if beside is None else beside._on_line
        """All devices of this process."""
        self._on_line.append(self)

    @contextmanager
    def sit(
        self, peer: str, *, on_call: bool, tell: Callable[[Event], None], changed: Callable[[], None]
    ) -> Iterator[Seat]:
        """A place for a peer. `tell`: its event log. `changed`: called, from any thread, when others have made its part
        another one.
        """
        seat, others = Seat(self, peer, on_call, tell, changed), self.seats_on_line
        self._seats.append(seat)
        _tell(others)
        try:
            yield seat
        finally:
            self._seats.remove(seat)
            _tell(self.seats_on_line)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Seats, in the order in which they were taken."""
        return tuple(self._seats)

    @property
    def seats_on_line(self) -> tuple[Seat, ...]:
        """Those of all devices, which share what can be sent."""
        return tuple(seat for machine in self._on_line for seat in machine._seats)

    def tell(self, event: Event) -> None:
        """Write to the event log of the first peer."""
        for seat in self._seats[:1]:
            seat.tell(event)


class Seat:
    """One peer's place at a machine, for as long as the peer holds it."""

    def __init__(
        self,
        machine: Machine,
        peer: str,
        on_call: bool,
        tell: Callable[[Event], None],
        changed: Callable[[], None],
    ) -> None:
        self.machine = machine
        self.peer = peer
        self.tell = tell
        self.changed = changed
        self._on_call = on_call
        self._state = 0
        self._beside = 0

    def holds(self, state: int, beside: int = 0) -> None:
        """Its stage takes so many bytes, with the graph of the one microbatch that is computed.

        `beside`: of the host's memory, where the device has its own.
        """
        if (state, beside) != (self._state, self._beside):
            self._state, self._beside = state, beside
            _tell(each for each in self.machine.seats if each is not self)

    @property
    def memory_for_stage(self) -> int:
        """Bytes of memory that the other seats' states leave for this seat's stage."""
        return max(0, self.machine.budgets.memory - sum(s._state for s in self.machine.seats if s is not self))

    @property
    def max_rate(self) -> int | None:
        """This seat's part of the uplink limit, bytes a second."""
        rate = self.machine.max_rate
        return None if rate is None else rate // self._sharing_line

    @property
    def frames(self) -> int:
        """Bytes of kept frames in memory."""
        host = self.machine.budgets.host
        left = (
            self._memory_beside_stages
            if host is None
            else max(0, host - sum(seat._beside for seat in self.machine.seats))
        )
        return min(self.machine.budgets.frames, left) // self._sharing

    @property
    def graphs(self) -> int:
        """Bytes of graphs that are kept."""
        budgets, sharing = self.machine.budgets, self._sharing
        if budgets.graphs is not None:
            return budgets.graphs // sharing
        if budgets.host is not None:
            return self._memory_beside_stages // sharing
        left = max(0, self._memory_beside_stages - budgets.frames)
        return min(left, budgets.memory // 2) // sharing

    @property
    def _memory_beside_stages(self) -> int:
        """Bytes that the states of all seats leave for graphs and frames."""
        return max(0, self.machine.budgets.memory - sum(seat._state for seat in self.machine.seats))

    @property
    def changes(self) -> int:
        """Bytes of what earlier visits left."""
        return self.machine.budgets.changes // self._sharing

    def means(self, capacity: float, up: float | None, down: float | None) -> Means:
        """What the coordinator is told, of what the whole machine can do."""
        limit = self.max_rate
        uplink = float(limit) if limit is not None else None if up is None else up / self._sharing_line
        return Means(capacity / self._sharing, self.machine.budgets.memory, uplink, down, self._seating())

    def _seating(self) -> Seating | None:
        seats, grows = self.machine.seats, self.machine.more is not None
        if len(seats) < 2 and not grows:
            return None
        return Seating(tuple(seat.peer for seat in seats), grows and seats[0] is self, self._on_call)

    @property
    def _sharing(self) -> int:
        return max(1, len(self.machine.seats))

    @property
    def _sharing_line(self) -> int:
        return max(1, len(self.machine.seats_on_line))


def _tell(seats: Iterable[Seat]) -> None:
    for seat in seats:
        seat.changed()
