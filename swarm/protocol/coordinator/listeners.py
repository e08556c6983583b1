"""Chooses the peers that listen to a stage while others train it, and the version that each starts from.

This is the coordinator's part in catching up. Every peer with a stage but without a part in the pass listens:
newcomers, which load the version that the pass starts from, and peers that were fenced or fell behind. The Open of the
pass names the listeners, so that the holders of the stage keep a copy of that version, and the sums of every step from
the oldest one that a listener needs. If a listener is lost while it loads, the holders keep them a while longer: it may
return with a part of the state on its disk.

A listener has a place in its stage, which nobody else gets. It keeps the place while it reports progress, but not for
ever, because these reports cannot be checked: see `_place_s`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.ids import Actor, PassId, StageIndex
from swarm.protocol.messages import Decide, Listener
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import longest_load_s

MAX_VERSIONS = 2
"""Number of versions of a stage that may be loaded at the same time. The stage's holders keep a copy of the state for
each.
"""
PLACE_BUDGETS = 4
PLACE_ARRIVALS = 8
MAX_PLACES = 4096
"""Largest number of peers whose times without work are kept; the one that came first is forgotten first."""
TOLD_AT_ONCE = 16
"""Maximum number of decisions that are repeated to a listener at a heartbeat."""


@dataclass(frozen=True, slots=True)
class _Interrupted:
    """The version that a peer was loading when it was lost.

    `rolled_back_in`: the term of the last rollback at that time. After a rollback, the numbering of versions starts
    again.
    """

    listener: Listener
    until: float
    rolled_back_in: int


@dataclass(slots=True)
class _Place:
    """For how long a device has had a place without working, in all of its processes together."""

    held_s: float = 0.0
    seen_at: float | None = None
    """The time of the last pass with this listener; None if it did not listen to the last pass."""


class Listeners:
    def __init__(
        self, settings: Settings, history: History, members: Members, rebalancing: Rebalancing, out: Outbox
    ) -> None:
        self._out = out
        self._rebalancing = rebalancing
        self._settings = settings
        self._history = history
        self._members = members
        self._interrupted: dict[str, _Interrupted] = {}
        """The downloads that were interrupted, by peer id, because a restarted process has another incarnation."""
        self._places: dict[str, _Place] = {}
        """The listeners that have not worked since they got their place, by peer id."""

    def lost(self, member: Member, now: float) -> None:
        """Call this before the member is removed. If it was loading a state, this is remembered for half a step
        budget.
        """
        if not self._loads(member):
            return
        listener = self._known(member)
        until = now + self._settings.step_budget_s / 2
        self._interrupted[member.actor.peer] = _Interrupted(listener, until, self._history.rolled_back_in)

    def joined(self, member: Member, now: float) -> None:
        """A member has introduced itself, perhaps again. If it was loading a state before it was lost, it should
        continue.
        """
        if (found := self._of_lost(member.actor.peer, now)) is not None:
            member.interrupted = found.stage

    def of(
        self, pass_id: PassId, rosters: Sequence[Collection[Actor]], now: float, closed: Collection[int] = ()
    ) -> tuple[Listener, ...]:
        """The listeners of a pass with these rosters. `closed`: stages in which nobody may begin to listen now."""
        busy = {actor for roster in rosters for actor in roster}
        listeners: list[Listener] = []
        for actor in busy:
            self._places.pop(actor.peer, None)
        for stage in range(self._settings.stages):
            there = [m for m in self._members.of_stage(stage) if m.actor not in busy]
            idle = [m for m in there if m.lost_at is None and m.leaving_since is None]
            goes_on = [self._goes_on(m, pass_id) for m in idle]
            known = [m for m, goes in zip(idle, goes_on, strict=True) if goes]
            new = [m for m, goes in zip(idle, goes_on, strict=True) if not goes]
            present = self._members.without_absent(rosters[stage])
            # additional devices of a person make room (Placement)
            taken = self._members.people.count(actor.peer for actor in present)
            places = max(0, self._rebalancing.most - taken - sum(not (m.given_up or m.absent) for m in known))
            here = [self._known(m) for m in known]
            here += [self._known(m) for m in there if m.lost_at is not None and self._loads(m)]
            here += self._lost_of(stage, now)
            if stage not in closed:
                new = [m for m in new if not m.given_up][:places] + [m for m in new if m.given_up]
                for member in new:
                    here.append(self._new(member, pass_id, here, now))
            for member in known + [m for m in new if m.listens_from is not None]:
                self._expect_progress(member, now)
            listeners += here
        listening = {listener.actor.peer for listener in listeners}
        for peer, place in self._places.items():
            if peer not in listening:
                place.seen_at = None
        return tuple(listeners)

    def repeat_decisions(self, pass_state: PassState) -> None:
        """Send the decisions that the listeners of a pass lack, once these know of the pass."""
        for listener in pass_state.listeners:
            member = self._members.get(listener.actor)
            lacks = member.status.lacks if member is not None and member.status is not None else None
            if lacks is None or member is None or not member.has_heard(pass_state.pass_id):
                continue
            for decision in (self._history.since(lacks) or [])[:TOLD_AT_ONCE]:
                self._out.send(listener.actor, Decide(decision, self._history.term))

    def _goes_on(self, member: Member, pass_id: PassId) -> bool:
        """Return True if a member already listens, or holds a state from which it can listen."""
        at, since = self._at(member), member.listens_from
        if since is None:
            told_before = member.has_heard_any and self._knows(member)  # by this coordinator before it restarted
            if at is None or not (at == pass_id.version or told_before):
                return False
            member.listen(at, pass_id)
            return True
        if at is None:
            return not member.has_heard(member.listens_since)
        return at >= since and self._knows(member)

    def _at(self, member: Member) -> int | None:
        return member.at(self._history.rolled_back_in, self._history.version)

    def _knows(self, member: Member) -> bool:
        """Return True if the coordinator still has all decisions that the member lacks."""
        lacks = member.status.lacks if member.status is not None else None
        return lacks is None or self._history.since(lacks) is not None

    def _loads(self, member: Member) -> bool:
        return member.stage is not None and member.listens_from is not None and self._known(member).loads

    def _known(self, member: Member) -> Listener:
        at = self._at(member)
        since = member.listens_from
        assert member.stage is not None and since is not None
        loads = at is None or (member.status is not None and member.status.loading is not None)
        version = since if at is None else at
        return Listener(member.actor, member.stage, version, loads, member.move_number, member.void_before)

    def _new(self, member: Member, pass_id: PassId, others: Sequence[Listener], now: float) -> Listener:
        """Make a member a listener. It loads the version of this pass, or continues with a version that it has begun to
        load.

        If too many versions are being loaded already, it loads the newest of these.
        """
        assert member.stage is not None
        loaded = {other.version for other in others if other.loads}
        version, before = pass_id.version, self._of_lost(member.actor.peer, now)
        if before is not None and before.stage == member.stage and self._history.since(before.version) is not None:
            version = before.version
        elif version not in loaded and len(loaded) >= MAX_VERSIONS:
            version = max(loaded)
        self._interrupted.pop(member.actor.peer, None)
        member.listen(version, pass_id)
        stage = StageIndex(member.stage)
        return Listener(member.actor, stage, version, True, member.move_number, member.void_before)

    def _of_lost(self, peer: str, now: float) -> Listener | None:
        found = self._interrupted.get(peer)
        if found is None or now > found.until or found.rolled_back_in != self._history.rolled_back_in:
            self._interrupted.pop(peer, None)
            return None
        return found.listener

    def _lost_of(self, stage: int, now: float) -> list[Listener]:
        """Peers that were loading this stage when they were lost, and may return to it."""
        found = [self._of_lost(peer, now) for peer in list(self._interrupted)]
        return [each for each in found if each is not None and each.stage == stage]

    def _expect_progress(self, member: Member, now: float) -> None:
        """Take the place from a listener that makes no progress, unless it has the newest version; and from one that
        has listened for too long and is not about to enter. It may continue to load, and enters if there is room.
        """
        at, version = self._at(member), self._history.version
        held_s = self._held_s(member.actor.peer, now)
        stands_still = at != version and now - member.progress_at > self._settings.step_budget_s
        is_far = at is None or at < version - 1 or (member.status is not None and member.status.loading is not None)
        if stands_still or (is_far and held_s > self._place_s(member)):
            member.yield_place()

    def _held_s(self, peer: str, now: float) -> float:
        """Seconds for which a device has listened since it last worked. The time of its absence does not count. Of a
        pause of the run, only as much counts as a long step takes.
        """
        while peer not in self._places and len(self._places) >= MAX_PLACES:
            del self._places[next(iter(self._places))]
        place = self._places.setdefault(peer, _Place())
        if place.seen_at is not None:
            place.held_s += min(now - place.seen_at, self._settings.longest_step_s)
        place.seen_at = now
        return place.held_s

    def _place_s(self, member: Member) -> float:
        """Seconds for which a listener keeps its place although it does not work.

        This is enough for a stage of any size on a line of timeouts.LEAST_LINE: the memory that the stage needs is
        larger than its state, which leaves time for the sums of the steps decided meanwhile. It is also several times
        as long as most peers of this run have needed, and several step budgets.
        """
        loading_s = 0.0 if member.stage is None else longest_load_s(self._settings.stage_needs, member.stage)
        budgets_s = PLACE_BUDGETS * self._settings.step_budget_s
        return max(budgets_s + loading_s, PLACE_ARRIVALS * self._rebalancing.arrival_s)
