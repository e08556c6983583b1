"""The first pass after the start of this process: it waits for a while, because more peers may come."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.settings import Settings


class FirstPass:
    def __init__(self, settings: Settings, history: History, members: Members) -> None:
        self.has_opened = False
        self._settings = settings
        self._members = members
        self._patience_s = settings.start_timeout_s
        if history.decision is not None or history.archived:  # version 0 is archived before an imported run begins
            self._patience_s = settings.recruit_after_s  # a resumed run: its peers are only late, not new

    def may_wait(self, now: float) -> bool:
        """Return True while the pass may wait for more peers."""
        first = self._members.first_heard_at
        return not self.has_opened and (first is None or now - first < self._patience_s)

    @property
    def all_have_come(self) -> bool:
        """True if there are as many peers as the run asks for, in whatever stages."""
        here = sum(member.lost_at is None for member in self._members)
        return here >= self._settings.stages * self._settings.replicas
