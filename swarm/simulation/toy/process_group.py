"""The peers in one simulated process, if processes can add further peers. They die and stall together.

Each peer reports the others. A further peer keeps its disk for its next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from swarm.protocol.messages import Means, Seating
from swarm.protocol.peer.io import MeansChanged
from swarm.simulation.kernel.timeline import Process

P = TypeVar("P", bound=Process)


class ProcessGroup(Generic[P]):
    """`open_seat(peer, number)`: starts the peer with this number, from 2 on, in the process of the given peer."""

    def __init__(self, open_seat: Callable[[P, int], None]) -> None:
        self.peers: list[P] = []
        """The peers in order of arrival. The process was started for the first one."""
        self._open_seat = open_seat
        self._coming: set[int] = set()

    def means(self, peer: P) -> Means:
        names = tuple(each.actor.peer for each in self.peers)
        first = peer is self.peers[0]
        return Means(1.0 / len(names), seating=Seating(names, grows=first, on_call=not first))

    def wanted(self, seats: int) -> None:
        """Provide this number of peers, including those that are starting."""
        there = {1, *(number_of(peer) for peer in self.peers), *self._coming}
        number = 2
        while len(there) < seats:
            if number not in there:
                there.add(number)
                self._coming.add(number)
                self._open_seat(self.peers[0], number)
            number += 1

    def came(self, peer: P) -> None:
        self._coming.discard(number_of(peer))
        self.peers.append(peer)
        self._tell()

    def left(self, peer: P) -> None:
        """The peer has left its seat; the others continue."""
        self.peers.remove(peer)
        self._tell()

    def _tell(self) -> None:
        for peer in self.peers:
            peer.world.at(peer.world.now, peer, MeansChanged(self.means(peer)))


def seat_name(host: str, number: int) -> str:
    return f"{host}.{number}"


def number_of(peer: Process) -> int:
    _, _, number = peer.actor.peer.partition(".")
    return int(number) if number else 1
