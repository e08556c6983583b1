"""A machine: the resources that the peers of one device share, and the part that each peer gets in its seat.

Speed, uplink, and memory for frames and graphs are divided equally among the peers. The coordinator is told each peer's
part of speed and uplink. It is told the whole memory for states, because it knows what each stage needs. A limited
uplink is limited for all peers together.

A process with several devices has one machine for each device. They share the network link and nothing else.
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
    """The memory budgets of a whole machine, in bytes.

    * `memory`: the total to plan with; a stage that needs more is refused.
    * `frames`: frames kept in memory, if the states leave that much.
    * `graphs`: autograd graphs kept between forward and backward; None: what states and frames leave, at most half of
      the memory.
    * `changes`: reconstructions kept from earlier visits, in a run with codec `delta`, `ef21`, `ef` or `ef-mixed`.
    * `host`: if `memory` is that of a graphics card: the memory of the host in addition. Frames are kept there, and
      graphs may use all memory of the card that the states leave.
    * `strict`: the owner has set `memory`. Otherwise `memory` is a part of the free memory, and the rest has room for
      gaps in the heap.
    """

    memory: int = 4 << 30
    frames: int = 1 << 30
    graphs: int | None = None
    changes: int = 1 << 30
    host: int | None = None
    strict: bool = False


class Machine:
    """The machine of one device. `more(seats, reason)`: raise the number of peers to `seats`; None: the number of peers
    stays as it is.
    """

    def __init__(
        self,
        budgets: Budgets = Budgets(),
        max_rate: int | None = None,
        more: Callable[[int, str], None] | None = None,
        beside: Machine | None = None,
    ) -> None:
        """`max_rate`: limit of sent bytes per second; None: no limit. Raises ValueError if the limit is too low to be
        useful.

        `beside`: the machine of another device of this process. Both share its network link and the limit of that
        link.
        """
        self.budgets = budgets
        self.max_rate: int | None = max_rate if beside is None else beside.max_rate
        own = None if max_rate is None or beside is not None else Uplink(max_rate)
        self.uplink: Uplink | None = own if beside is None else beside.uplink
        self.states: int | None = None
        """Bytes of `budgets.memory` that states may take, if not all: with offload, the host's memory limits them."""
        self.more = more
        self.process: str = secrets.token_hex(6) if beside is None else beside.process
        """A random name for this process. It reveals nothing, but lets people see which peers fail together."""
        self.measuring: asyncio.Lock = asyncio.Lock() if beside is None else beside.measuring
        """Held while one peer measures what the machine can do; the others then use the result."""
        self._finished: asyncio.Event = asyncio.Event() if beside is None else beside._finished
        self._seats: list[Seat] = []
        self._on_line: list[Machine] = [] if beside is None else beside._on_line
        """The machines of all devices of this process. They share one network link."""
        self._on_line.append(self)

    @contextmanager
    def sit(
        self, peer: str, *, on_call: bool, tell: Callable[[Event], None], changed: Callable[[], None]
    ) -> Iterator[Seat]:
        """Give a peer a seat. `tell`: its event log. `changed`: called, from any thread, when other peers have changed
        the part that this seat gets.
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
    def memory_for_states(self) -> int:
        """Bytes that coordinators may fill with stages."""
        return self.budgets.memory if self.states is None else self.states

    @property
    def finished(self) -> bool:
        """True if a peer of this process has heard that the run is finished."""
        return self._finished.is_set()

    def finish(self) -> None:
        """Tell the other peers of this process that the run is finished."""
        self._finished.set()

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats, in the order in which they were taken."""
        return tuple(self._seats)

    @property
    def seats_on_line(self) -> tuple[Seat, ...]:
        """The seats of all devices, which share the uplink."""
        return tuple(seat for machine in self._on_line for seat in machine._seats)

    def tell(self, event: Event) -> None:
        """Write to the event log of the first peer."""
        for seat in self._seats[:1]:
            seat.tell(event)


class Seat:
    """One peer's seat at a machine, for as long as the peer runs."""

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
        """Set the number of bytes that the peer's stage needs, including the graph of the microbatch that is being
        computed.

        `beside`: bytes of the host's memory, if the device has its own memory.
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
        """This seat's part of the uplink limit, in bytes per second."""
        rate = self.machine.max_rate
        return None if rate is None else rate // self._sharing_line

    @property
    def frames(self) -> int:
        """Bytes of frames that this seat may keep in memory."""
        host = self.machine.budgets.host
        left = (
            self._memory_beside_stages
            if host is None
            else max(0, host - sum(seat._beside for seat in self.machine.seats))
        )
        return min(self.machine.budgets.frames, left) // self._sharing

    @property
    def graphs(self) -> int:
        """Bytes of graphs that this seat may keep."""
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
        """Bytes of reconstructions from earlier visits that this seat may keep."""
        return self.machine.budgets.changes // self._sharing

    def means(self, capacity: float, up: float | None, down: float | None) -> Means:
        """The values reported to the coordinator, from the capacity and link speed of the whole machine."""
        limit = self.max_rate
        uplink = float(limit) if limit is not None else None if up is None else up / self._sharing_line
        return Means(capacity / self._sharing, self.machine.memory_for_states, uplink, down, self._seating())

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
