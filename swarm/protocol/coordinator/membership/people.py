"""People: counts to how many people a set of peers belongs, by the admission passes with which the peers joined.

A person can add devices at no cost, but each pass is issued by the organiser. So where reports of peers are counted as
votes, each pass has one vote, shared by its devices. If all members joined with the same pass, people cannot be told
apart, and each device has one vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from swarm.protocol.admissions import Device


class People:
    """The people of one run, according to the decision record. A peer that the record does not name counts as one
    person.
    """

    def __init__(self) -> None:
        self._passes: dict[str, str] = {}
        """For each peer id, the serial number of the pass with which it joined last."""
        self._here: Counter[str] = Counter()
        """For each peer id, the number of its live records."""
        self._devices: Counter[str] = Counter()
        """For each pass, the number of live members."""

    def learn(self, admitted: Iterable[Device]) -> None:
        """Learn with which pass each peer joined. `admitted`: the admissions in the decision record, in order.
        Observers' passes do not count: they have no vote.
        """
        self._passes = {device.peer: device.serial for device in admitted if not device.observes}
        self._devices = Counter()
        for peer, times in self._here.items():
            self._devices[self._pass(peer)] += times

    def admit(self, device: Device) -> None:
        """Learn of one more admission."""
        if device.observes:
            return
        times = self._here[device.peer]
        self._change(self._devices, self._pass(device.peer), -times)
        self._passes[device.peer] = device.serial
        self._change(self._devices, device.serial, times)

    def came(self, peer: str) -> None:
        """A member was added."""
        self._change(self._here, peer, 1)
        self._change(self._devices, self._pass(peer), 1)

    def left(self, peer: str) -> None:
        """A member was removed."""
        self._change(self._here, peer, -1)
        self._change(self._devices, self._pass(peer), -1)

    @property
    def are_several(self) -> bool:
        """True if the members joined with several passes. Otherwise devices count."""
        return len(self._devices) > 1

    def of(self, peer: str) -> str:
        """The name under which a peer is counted: its pass, or its own id if devices are counted."""
        return self._pass(peer) if self.are_several else peer

    def together(self, peers: Iterable[str]) -> list[list[str]]:
        """Group these peers by person, each peer once. The groups are in the order of their first peers."""
        groups: dict[str, list[str]] = {}
        for peer in dict.fromkeys(peers):
            groups.setdefault(self.of(peer), []).append(peer)
        return list(groups.values())

    def count(self, peers: Iterable[str]) -> int:
        """The number of people that these peers belong to."""
        return len(self.together(peers))

    def votes(self, peers: Iterable[str]) -> dict[str, Fraction]:
        """The vote of each of these peers. Peers of one person share one vote."""
        return {peer: Fraction(1, len(group)) for group in self.together(peers) for peer in group}

    def _pass(self, peer: str) -> str:
        return self._passes.get(peer, peer)

    @staticmethod
    def _change(counter: Counter[str], key: str, by: int) -> None:
        counter[key] += by
        if counter[key] <= 0:
            del counter[key]
