"""Judges which actors of an open pass stand still, and why, from what the coordinator has received.

An actor stands still if it exceeds a deadline, which follows from measured durations and the step budget (`timeouts`).
It is fenced. An actor that is only slow in comparison with its siblings loses work instead (`slow_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_limits import PassLimits
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.standstill import Standstill
from swarm.protocol.ids import Actor, Microbatch, PassKind
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import reduce_deadline, stall_deadline

Strikes = Callable[[str], int]
"""For a peer id, how often the peer has failed by its own fault (`Probation`)."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """An actor that finishes nothing."""

    actor: Actor
    reason: str
    lacks: Microbatch | None = None
    """A microbatch of which it must lack an input, if it does not simply do nothing."""
    senders: tuple[Actor, ...] = ()
    """The actors that report to have this input. If `lacks` is None, there are none."""


class Stragglers:
    def __init__(self, pass_state: PassState, members: Members, limits: PassLimits, settings: Settings) -> None:
        self._pass_state = pass_state
        self._members = members
        self._limits = limits
        self._settings = settings
        self._standstill = Standstill(pass_state, settings)

    def stalled(self, strikes: Strikes, unheard: Collection[Actor], now: float) -> list[Stalled]:
        """Actors that have work available and finish nothing, although siblings could do it. `unheard` actors are left
        out.

        An actor is never stalled only because it is slow: the deadline is several times its known time per microbatch.
        For an actor with unknown speed, the deadline doubles with each strike until it has shown its speed.

        An actor without siblings is named only if it waits for a neighbour that has some.
        """
        found = []
        for actor in (actor for table in self._pass_state.tables for actor in table.roster):
            if (member := self._members.get(actor)) is None or actor in unheard:
                continue
            if self._pass_state.is_alone(actor):
                stalled = self._kept_waiting(member, now)
            else:
                allowed = self._patience(member, strikes(actor.peer))
                stalled = self._stalled(member, allowed, now)
            if stalled is not None:
                found.append(stalled)
        return found

    def _stalled(self, member: Member, allowed: float, now: float) -> Stalled | None:
        """The member, if it finishes nothing. `allowed`: as in `_why_stalled`."""
        actor = member.actor
        if not (why := self._why_stalled(member, allowed, now)):
            return None
        lacks = None if self._pass_state.has_queued(actor) else self._pass_state.lacks(actor)
        return Stalled(actor, why) if lacks is None else Stalled(actor, why, *lacks)

    def _kept_waiting(self, member: Member, now: float) -> Stalled | None:
        """A member without siblings, if it lacks data of a neighbour that has siblings."""
        pass_state = self._pass_state
        if pass_state.kind is not PassKind.TRAIN:
            return None
        # its line may be slow, and nobody can do its work, so it has much time
        allowed = self._settings.step_budget_s / 2
        why = self._standstill.why_waiting(member, allowed, allowed, now)
        if not why or pass_state.has_queued(member.actor) or (lacks := pass_state.lacks(member.actor)) is None:
            return None
        senders = tuple(actor for actor in lacks[1] if not pass_state.is_alone(actor))
        return Stalled(member.actor, why, lacks[0], senders) if senders else None

    def _why_stalled(self, member: Member, allowed: float, now: float) -> str:
        """The reason why a member counts as stalled if it may take `allowed` seconds for one item of work. Empty: it
        does not count as stalled.
        """
        settings = self._settings
        if self._pass_state.kind is PassKind.TRAIN:
            line_s = settings.step_budget_s / 8
            answer = max(allowed, line_s)
            usual = reduce_deadline(member.reducing, settings.step_budget_s, settings.heartbeat_s)
            own = allowed if member.actor in self._pass_state.probed else min(answer, max(allowed, usual))
        else:
            line_s = min(settings.step_budget_s / 8, self._limits.while_s)
            own = answer = max(allowed, line_s)
        why = self._standstill.why_idle(member, allowed, own, now)
        why = why or self._standstill.why_waiting(member, line_s, answer, now)
        return why or self._standstill.why_unbegun(member.actor, max(answer, settings.step_budget_s / 2), now)

    def _patience(self, member: Member, strikes: int) -> float:
        """Seconds in which an actor with available work must finish some of it.

        Before it has shown its speed, its own word counts for half a step budget at most, and not again after a strike.
        """
        pass_state = self._pass_state
        settings = self._settings
        budget, seconds = settings.step_budget_s, member.shown_seconds_per_microbatch
        probed = member.actor in pass_state.probed

        def deadline_s(own_s: float | None) -> float:
            beat_s, fences = settings.heartbeat_s, pass_state.fences
            return stall_deadline(own_s, pass_state.services, budget, beat_s, fences, probed)

        allowed, said = deadline_s(seconds), member.seconds_per_microbatch
        if seconds is None and said is not None and deadline_s(said) <= allowed:
            allowed = deadline_s(said)
        elif seconds is None:
            longer = allowed * 2.0 ** min(strikes, 16) if strikes or said is None else deadline_s(said)
            allowed = max(allowed, min(longer, budget / 2))
        return allowed if pass_state.kind is PassKind.TRAIN else min(allowed, self._limits.while_s)

    def dawdlers(self, unheard: Collection[Actor], now: float) -> list[Actor]:
        """The actors of a forward-only pass that have had work for a while and have finished none of it, and those that
        may have kept them waiting.
        """
        while_s = self._limits.while_s
        found: dict[Actor, None] = {}
        for actor in self._pass_state.actors:
            member = self._members.get(actor)
            if member is None or actor in unheard:
                continue
            if (stalled := self._stalled(member, while_s, now)) is not None:
                found |= dict.fromkeys((actor, *stalled.senders))
        return list(found)
