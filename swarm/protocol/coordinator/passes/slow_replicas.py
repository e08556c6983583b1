"""Which replicas of an open pass are slow in comparison with idle siblings, and what these should take over from them.

A slow replica only loses work (RELEASE). It is not fenced.
"""

from __future__ import annotations

from collections.abc import Collection

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.work_stealing import SLOWER, Busy, Idle, relief
from swarm.protocol.ids import Actor, Microbatch
from swarm.protocol.settings import Settings


class SlowReplicas:
    def __init__(self, pass_state: PassState, members: Members, settings: Settings) -> None:
        self._pass_state = pass_state
        self._members = members
        self._settings = settings

    def to_release(self, unheard: Collection[Actor], now: float) -> list[tuple[Actor, tuple[Microbatch, ...]]]:
        """The microbatches that each slow actor should give up to idle siblings (`work_stealing`). `unheard` actors are
        left out.

        No microbatch moves twice. Otherwise, among many replicas, it might move from one slow peer to the next and
        never be done.
        """
        pass_state = self._pass_state
        orders = []
        for stage, table in enumerate(pass_state.tables):
            if not (idle := self._idle(stage, now)):
                continue
            left = {a: pass_state.unfinished(a) for a in table.roster}
            movable = {
                a: [m for m in mine if m not in pass_state.released[stage]]
                for a, mine in left.items()
                if mine and a not in pass_state.releasing and a not in unheard
            }
            busy = {
                a: Busy(self._pace(a, now), len(left[a]), len(may), self._sends_s(stage, a))
                for a, may in movable.items()
            }
            promised = sum(len(pass_state.releasing.get(a, ())) for a in table.roster)
            for actor, count in relief(busy, list(idle.values()), promised).items():
                orders.append((actor, tuple(movable[actor][-count:])))
        return orders

    def takers(self, stage: int, givers: Collection[Actor], count: int, now: float) -> list[Actor]:
        """The siblings that get `count` microbatches which slow peers of a stage have released: those that are done and
        faster.

        If there are more such siblings than microbatches, the ones that would be the first to send their part of the
        sums. The result may be empty.
        """
        slowest = max(self._pace(giver, now) for giver in givers)
        idle = self._idle(stage, now)
        faster = [a for a, each in idle.items() if a not in givers and slowest > SLOWER * each.pace]
        return sorted(faster, key=lambda a: idle[a].soonest)[: max(1, count)]

    def _idle(self, stage: int, now: float) -> dict[Actor, Idle]:
        """The idle actors of a stage that stay, with their speed. Actors whose speed is unknown are left out."""
        pass_state = self._pass_state
        idle = {}
        withheld = self._members.withheld()
        for actor in pass_state.tables[stage].roster:
            if actor in withheld or pass_state.unfinished(actor):
                continue
            seconds = self._members.seconds_per_microbatch(actor)
            if seconds is None and (done := pass_state.done_of(actor).bit_count()):
                seconds = (now - pass_state.began_at(actor)) / done
            if seconds is not None:
                idle[actor] = Idle(seconds, self._sends_s(stage, actor))
        return idle

    def _sends_s(self, stage: int, actor: Actor) -> float:
        """Seconds that an actor needs to send its part of the sums over its reported uplink."""
        member, sums = self._members.get(actor), self._settings.stage_sums
        if member is None or member.offered_uplink is None or not sums:
            return 0.0
        return sums[stage] / member.offered_uplink

    def _pace(self, actor: Actor, now: float) -> float:
        """Seconds of computing per microbatch: the measured value, or the time since the actor last finished a
        microbatch if that is longer.

        Before the first measurement, only that time counts. An actor that waits for others' frames is not slow.
        """
        unheard_s = self._settings.heartbeat_s  # it may have finished something and not reported it yet
        seconds = self._members.seconds_per_microbatch(actor) or 0.0
        return max(seconds, self._pass_state.in_hand_s(actor, now) - unheard_s)
