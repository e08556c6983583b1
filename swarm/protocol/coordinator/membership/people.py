"""People: how many people some peers are, by the passes that they came with.

A device costs its owner nothing; a pass is given out by the organiser. So where peers' words are counted, a pass has
one vote, which its devices share. Where all members came with one pass, nobody knows who is who, and devices count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from swarm.protocol.controls import Device


class People:
    """The people of one run, from the decision record. A peer that the record does not name counts as a person."""

    def __init__(self) -> None:
        self._passes: dict[str, str] = {}
        """By peer id, the serial of the pass that it came with last."""
        self._here: Counter[str] = Counter()
        """By peer id, the number of its live records."""
        self._devices: Counter[str] = Counter()
        """By pass, the number of live members."""

    def learn(self, admitted: Iterable[Device]) -> None:
        """Take down with which passes peers came: all admissions of the record, in order."""
        self._passes = {device.peer: device.serial for device in admitted}
        self._devices = Counter()
        for peer, times in self._here.items():
            self._devices[self._pass(peer)] += times

    def came(self, peer: str) -> None:
        """A member is there."""
        self._here[peer] += 1
        self._devices[self._pass(peer)] += 1

    def left(self, peer: str) -> None:
        """A member is gone."""
        for counter, key in ((self._here, peer), (self._devices, self._pass(peer))):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    @property
    def are_several(self) -> bool:
        """True if the members came with several passes. Otherwise devices count."""
        return len(self._devices) > 1

    def of(self, peer: str) -> str:
        """The name under which a peer counts: its pass, or, where devices count, its own id."""
        return self._pass(peer) if self.are_several else peer

    def together(self, peers: Iterable[str]) -> list[list[str]]:
        """These peers, each once, in groups that count as one, in the order of the first of each."""
        groups: dict[str, list[str]] = {}
        for peer in dict.fromkeys(peers):
            groups.setdefault(self.of(peer), []).append(peer)
        return list(groups.values())

    def count(self, peers: Iterable[str]) -> int:
        """How many people these peers are."""
        return len(self.together(peers))

    def votes(self, peers: Iterable[str]) -> dict[str, Fraction]:
        """The vote of each of these peers: those of one person share one."""
        return {peer: Fraction(1, len(group)) for group in self.together(peers) for peer in group}

    def _pass(self, peer: str) -> str:
        return self._passes.get(peer, peer)
