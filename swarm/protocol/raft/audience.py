"""The peers that a member of a group of coordinators hears, while any member leads.

A member that becomes the leader knows the peers by these reports. A leader that hears far fewer people than another
member resigns. All devices that joined with one pass count as one person. If the record names one pass only, each
device counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from swarm.protocol.admissions import Device
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Join, Status

_FRESH = 4
"""A peer counts as present if it was heard within this number of heartbeats."""


class Audience:
    """The last report of each peer. When a newcomer reports, peers that were silent for `silent_s` are forgotten."""

    def __init__(self, heartbeat_s: float, silent_s: float) -> None:
        self._fresh_s = _FRESH * heartbeat_s
        self._silent_s = silent_s
        self._reports: dict[Actor, tuple[float, Join | Status]] = {}
        self._fewer_since: float | None = None
        self._learned = 0
        """Number of admissions of the record that are known here."""
        self._passes: dict[str, str] = {}
        """For each peer id, the pass with which it joined last."""
        self._devices: Counter[str] = Counter()
        """For each of these passes, the number of devices."""

    @property
    def known(self) -> Set[Actor]:
        return self._reports.keys()

    def hear(self, report: Join | Status, now: float) -> None:
        before = self._reports.get(report.actor)
        if before is None:
            self._forget(report.actor, now)
        if before is None or before[1].sequence < report.sequence:
            self._reports[report.actor] = (now, report)

    def lose(self, peer: Actor) -> None:
        self._reports.pop(peer, None)

    def present(self, now: float) -> list[tuple[Actor, Join | Status]]:
        """The peers that were heard lately, with their last reports."""
        return [(peer, report) for peer, (at, report) in self._reports.items() if now - at < self._fresh_s]

    def learn(self, admitted: Sequence[Device]) -> None:
        """Learn with which pass each peer joined. `admitted`: the admissions in the record, in order. They continue
        those of the last call. Observers' passes do not count.
        """
        for device in admitted[self._learned :]:
            if not device.observes:
                before = self._passes.get(device.peer)
                if before is not None:
                    self._devices[before] -= 1
                    if not self._devices[before]:
                        del self._devices[before]
                self._devices[device.serial] += 1
                self._passes[device.peer] = device.serial
        self._learned = len(admitted)

    def people(self, now: float) -> int:
        """The number of people whose peers were heard lately. One person could hide from a leader with many devices."""
        passes = self._passes if len(self._devices) > 1 else {}
        return len({passes.get(peer.peer, peer.peer) for peer, _ in self.present(now)})

    def fewer_for(self, here: int, most: int, now: float) -> float:
        """Seconds for which this leader has heard less than half as many people as another member: now it hears `here`
        people, and no member hears more than `most`.
        """
        if 2 * here >= most:
            self._fewer_since = None
            return 0.0
        if self._fewer_since is None:
            self._fewer_since = now
        return now - self._fewer_since

    def _forget(self, newcomer: Actor, now: float) -> None:
        """Forget earlier incarnations of a newcomer, and peers that have been silent for long."""
        long_ago = now - self._silent_s
        for actor, (at, _) in list(self._reports.items()):
            if at < long_ago or (actor.peer == newcomer.peer and actor.incarnation < newcomer.incarnation):
                del self._reports[actor]
