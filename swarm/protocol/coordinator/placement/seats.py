"""Seats: decides which process adds a peer for a stage without holders, and when that peer leaves again.

Several peers can share a process, so a run with fewer machines than stages can continue. A process is asked for another
seat only if no peer stands by and no other stage can spare a replica. The additional peer leaves once its stage has its
planned replicas, because a machine that holds two stages is slower. Replicas that did not do their work do not count
until they do.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import SeatAsked
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_SEATS, LeaveSeat, TakeSeats
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

IN_VAIN_BUDGETS = 4
"""If a process did not add a requested peer within a step budget, it is not asked again for this number of step
budgets.
"""
REMEMBERED = 4096
"""Number of peers whose requests in vain are remembered: those of the newest requests."""


@dataclass(slots=True)
class _Order:
    """A request sent to a peer."""

    stage: int
    seats: int
    since: float
    told_at: float


class Seats:
    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        stage_costs: StageCosts,
        failures: FailureHistory,
        out: Outbox,
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._stage_costs = stage_costs
        self._failures = failures
        self._out = out
        self._orders: dict[Actor, _Order] = {}
        """The open requests, by the peer that was asked."""
        self._not_before: dict[str, float] = {}
        """For each peer id that did not fulfil a request in time: until when it is not asked again."""
        self._in_vain: dict[str, int] = {}
        """For each peer id, how many requests in a row it did not fulfil, or vanished before it did. Others are asked
        first, or it could keep a stage without peers by restarting each time.
        """
        self._released: dict[Actor, tuple[float, str]] = {}
        """For each peer that was told to leave its seat: when it was last told, and why. It counts as leaving from then
        on.
        """

    # ------------------------------------------------------------ one more

    def lacking(self, stage: int, now: float) -> None:
        """Nobody holds this stage, stands by for it or can be spared for it. The caller repeats the call while this is
        so.
        """
        self._look_at_orders(now)
        on_the_way = next((actor for actor, order in self._orders.items() if order.stage == stage), None)
        if on_the_way is not None:
            self._tell(on_the_way, self._orders[on_the_way], now)
        elif (taker := self._taker(stage, now)) is not None:
            seats = len(self._machine(taker)) + 1
            order = _Order(stage, seats, now, now - self._settings.step_budget_s)
            self._orders[taker.actor] = order
            self._out.emit(SeatAsked(str(taker.actor), stage, seats))
            self._tell(taker.actor, order, now)

    def may_come(self, stage: int, now: float) -> bool:
        """Return True if a process was asked to hold this stage too, or could be asked."""
        asked = any(order.stage == stage for order in self._orders.values())
        return asked or self._taker(stage, now) is not None

    def _taker(self, stage: int, now: float) -> Member | None:
        """The member whose process should add a peer for this stage: one that did not fail to do so before, then the
        least loaded one, then one with an adjacent stage.
        """
        best: tuple[int, float, bool, Actor] | None = None
        chosen: Member | None = None
        for member in self._members:
            seating = member.seating
            if seating is None or not seating.grows or not self._may_be_asked(member, now):
                continue
            machine = self._machine(member)
            held = [m.stage for m in machine if m.stage is not None]
            if (
                len(machine) >= MAX_SEATS
                or any(m.leaving_since is not None for m in machine)  # the number of peers there is about to change
                or stage in held
                or not self._stage_costs.has_room(member, machine, stage)
            ):
                continue
            load = (len(machine) + 1) / sum(self._stage_costs.speed(m) for m in machine)
            in_vain = self._in_vain.get(member.actor.peer, 0)
            worth = (in_vain, load, not any(abs(stage - other) == 1 for other in held), member.actor)
            if best is None or worth < best:
                best, chosen = worth, member
        return chosen

    def _machine(self, member: Member) -> list[Member]:
        return [member, *self._members.companions(member)]

    def _may_be_asked(self, member: Member, now: float) -> bool:
        there = member.lost_at is None and member.leaving_since is None and member.stage is not None
        there = there and member.actor.peer not in self._failures.doubts.left_out
        return there and member.actor not in self._orders and now >= self._not_before.get(member.actor.peer, 0.0)

    def _look_at_orders(self, now: float) -> None:
        """Forget requests that are fulfilled or in vain. Called often, so that a peer that came is not missed after it
        has left again.
        """
        for actor, order in list(self._orders.items()):
            if self._is_over(actor, order, now):
                del self._orders[actor]
                if len(self._in_vain) > REMEMBERED:
                    del self._in_vain[next(iter(self._in_vain))]

    def _is_over(self, actor: Actor, order: _Order, now: float) -> bool:
        """Return True if the request is fulfilled, or will never be."""
        member, in_vain = self._members.get(actor), self._in_vain.pop(actor.peer, 0)
        machine = [] if member is None else self._machine(member)
        if len(machine) >= order.seats and all(m.stage is not None or m.standing_by for m in machine):
            return True
        ends = member is None or now - order.since >= self._settings.step_budget_s
        if in_vain or ends:
            self._in_vain[actor.peer] = in_vain + ends
        if ends and member is not None:
            self._not_before[actor.peer] = now + IN_VAIN_BUDGETS * self._settings.step_budget_s
        return ends

    def _tell(self, actor: Actor, order: _Order, now: float) -> None:
        if now - order.told_at < 2 * self._settings.heartbeat_s:
            return
        order.told_at = now
        self._out.send(actor, TakeSeats(self._history.term, order.seats, f"stage {order.stage} has no peer"))

    # ------------------------------------------------------------ one less

    def release(self, now: float) -> tuple[Member, str] | None:
        """Between passes, tell a peer to leave if its seat is no longer needed.

        Return the peer and the reason when it gets the order for the first time. The order is repeated
        until the peer reports that it leaves. At the end of the run, all peers leave anyway.
        """
        if self._history.version == self._history.end(self._settings):
            return None
        self._look_at_orders(now)
        on_call = [m for m in self._members if m.is_on_call]
        self._released = {m.actor: self._released[m.actor] for m in on_call if m.actor in self._released}
        for member in on_call:
            if member.lost_at is not None or (member.status is not None and member.status.leaving):
                continue
            told_at, why = self._released.get(member.actor, (None, ""))
            if told_at is None and not (why := self._needless(member)):
                continue
            if told_at is None or now - told_at >= 2 * self._settings.heartbeat_s:
                self._released[member.actor] = now, why
                self._out.send(member.actor, LeaveSeat(self._history.term, why))
            if told_at is None:
                return member, why
        return None

    def _needless(self, member: Member) -> str:
        """The reason why a seat is no longer needed, as text; empty if it is needed."""
        stage = member.stage
        if stage is None:
            return "no stage needs this peer" if member.standing_by else ""
        version, decision = self._history.version, self._history.decision
        others = [
            m
            for m in self._members.crew(stage)
            if m is not member and m.lost_at is None and m.is_current(version, decision)
            if not self._failures.idle.is_unproven(m.actor.peer)
        ]
        planned = self._settings.replicas
        return f"stage {stage} has its {planned} replicas without it" if len(others) >= planned else ""
