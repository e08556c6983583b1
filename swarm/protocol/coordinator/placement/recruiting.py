"""Finds a peer for a stage that has none: a spare replica of another stage, or another seat in some process."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.bench import Bench
from swarm.protocol.coordinator.placement.first_pass import FirstPass
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.ids import StageIndex
from swarm.protocol.settings import Settings


class Recruiting:
    def __init__(
        self,
        settings: Settings,
        members: Members,
        first_pass: FirstPass,
        rebalancing: Rebalancing,
        bench: Bench,
        seats: Seats,
    ) -> None:
        self._settings = settings
        self._members = members
        self._first_pass = first_pass
        self._rebalancing = rebalancing
        self._bench = bench
        self._seats = seats
        self._empty_since: dict[int, float] = {}
        """For each stage that no peer holds or loads, the time since which this is so, or when the last peer joined."""
        self._arrived: set[str] = set()
        """The peer ids of all members that were seen since then. One that returns must not delay what is done about an
        empty stage.
        """

    def pass_closed(self) -> None:
        self._empty_since.clear()
        self._arrived.clear()

    def has_crew(self, stage: int) -> None:
        """Some peer holds or loads the stage."""
        self._empty_since.pop(stage, None)

    def recruit(self, stage: int, now: float) -> None:
        """Find a peer for a stage without peers while no peer stands by. Move a spare replica, or let a process hold a
        further stage.
        """
        if self._rebalancing.recruit(StageIndex(stage), now) is not None:
            return
        if (member := self._bench.left_aside(stage, now)) is not None:
            self._rebalancing.take_up(member, StageIndex(stage), now)
        else:
            self._seats.lacking(stage, now)

    def wait_for_newcomers(self, stage: int, now: float) -> None:
        """No stage can spare a replica. Ask for a seat if for a while no peer has joined that could hold this stage."""
        here = {member.actor.peer for member in self._members}
        if not here <= self._arrived:
            self._empty_since.clear()  # others may be reconnecting, as after a restart of the coordinator
        self._arrived |= here
        since = self._empty_since.setdefault(stage, now)
        if now - since >= self._settings.recruit_after_s and not self._first_pass.may_wait(now):
            self._seats.lacking(stage, now)
