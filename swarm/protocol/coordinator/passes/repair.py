"""Repairs an open pass in which a peer dies, stalls, disagrees or has missed a message.

Every repair is a new table for one stage, sent to the stage and its neighbours. If that does not suffice, the result
tells the pass to exclude an actor (`Suspect`) or to abort the pass (`GiveUp`).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from swarm.events import MicrobatchesReleased, PeerFenced
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.announcements import Announcements
from swarm.protocol.coordinator.passes.assignment import amend, enlarge
from swarm.protocol.coordinator.passes.findings import Suspect, TooLong
from swarm.protocol.coordinator.passes.holdups import Holdups
from swarm.protocol.coordinator.passes.late_reductions import LateReductions
from swarm.protocol.coordinator.passes.lone_actors import LoneActors
from swarm.protocol.coordinator.passes.outcome import GiveUp
from swarm.protocol.coordinator.passes.pass_limits import PassLimits
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.promotion import Promotion
from swarm.protocol.coordinator.passes.slow_replicas import SlowReplicas
from swarm.protocol.coordinator.passes.stragglers import Stalled, Stragglers, Strikes
from swarm.protocol.coordinator.passes.withheld_work import WithheldWork
from swarm.protocol.ids import Actor, Microbatch, PassKind
from swarm.protocol.messages import Fenced, Release
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings


class Repair:
    """The repairs of one pass. It changes the tables of the pass state; `OpenPass` decides when to call it."""

    def __init__(
        self,
        pass_state: PassState,
        members: Members,
        settings: Settings,
        out: Outbox,
        promotion: Promotion,
        announcements: Announcements,
    ) -> None:
        self._pass_state = pass_state
        self._announcements = announcements
        self._promotion = promotion
        self._members = members
        self._settings = settings
        self._out = out
        self._limits = PassLimits(pass_state, settings)
        self._stragglers = Stragglers(pass_state, members, self._limits, settings)
        self._slow_replicas = SlowReplicas(pass_state, members, settings)
        self._lone_actors = LoneActors(pass_state, members, self._limits, settings)
        self._late_reductions = LateReductions(pass_state, members, settings)
        self.holdups = Holdups(pass_state, members, self._late_reductions, settings)
        self.withheld_work = WithheldWork(pass_state, members, settings, announcements, out)

    # ------------------------------------------------------------ the dead

    def fence(self, actor: Actor, reason: str) -> GiveUp | None:
        """Take an actor out of its stage for the rest of the pass. Its work in this pass is void."""
        pass_state = self._pass_state
        stage = pass_state.stage_of(actor)
        assert stage is not None
        table = pass_state.tables[stage]
        mine = pass_state.assigned_to(actor)
        unfinished = pass_state.unfinished(actor)
        finished = [m for m in mine if m not in unfinished]
        pass_state.disturbers[actor] = reason
        self._out.emit(
            PeerFenced(
                actor=str(actor),
                stage=stage,
                pass_id=str(pass_state.pass_id),
                finished=list(finished),
                unfinished=list(unfinished),
                reason=reason,
            )
        )
        self._out.send(actor, Fenced(pass_state.pass_id, reason))
        if len(table.roster) == 1:
            member = self._members.get(actor)
            fails = member is not None and member.lost_at is None and not member.is_withheld
            idle = ((actor, reason),) if fails and pass_state.kind is PassKind.TRAIN else ()
            return GiveUp(f"stage {stage} lost its last replica {actor}: {reason}", idle)
        pass_state.fences += 1
        pass_state.done_again += len(finished)
        table = amend(table, [actor], mine, pass_state.weights, self._spared())
        self._announcements.publish(stage, table, f"{actor} is fenced: {reason}")
        return None

    # ------------------------------------------------------------ the slow

    def released(self, sender: Actor, number: int, given: tuple[Microbatch, ...], now: float) -> None:
        """Process the answer to a Release. Released microbatches move only with the table that follows the answer.

        A new table would void the pending answers of siblings. So these are awaited too, until the next heartbeat.
        """
        pass_state = self._pass_state
        stage = pass_state.stage_of(sender)
        if stage is None or number != pass_state.tables[stage].number or sender not in pass_state.releasing:
            return
        pass_state.given[sender] = tuple(m for m in given if m in pass_state.assigned_to(sender))
        if all(a in pass_state.given for a in pass_state.tables[stage].roster if a in pass_state.releasing):
            self._hand_on(stage, now)

    def _hand_on(self, stage: int, now: float) -> None:
        """Give the microbatches that replicas of a stage have released to other replicas."""
        pass_state = self._pass_state
        table, withheld = pass_state.tables[stage], self._members.withheld()
        given = {actor: pass_state.given.pop(actor) for actor in table.roster if actor in pass_state.given}
        slow: dict[Actor, tuple[Microbatch, ...]] = {}
        spared = self._spared().union(given)
        reasons: list[str] = []
        new: Actor | None = None
        for giver, moved in given.items():
            del pass_state.releasing[giver]
            entrant = self._promotion.who_asked(giver)
            if not moved:
                continue
            self._out.emit(MicrobatchesReleased(str(pass_state.pass_id), str(giver), list(moved)))
            if entrant is not None:
                pass_state.enter(entrant, now)
                new = entrant
                table = amend(enlarge(table, entrant), [], moved, pass_state.weights, spared, [entrant])
                reasons.append(f"{entrant} has caught up, and takes over {len(moved)} microbatches of {giver}")
            elif giver in withheld:
                table = amend(table, [], moved, pass_state.weights, spared)
                reasons.append(f"{giver} {self.withheld_work.why(giver)} and hands on {len(moved)} microbatches")
            else:
                slow[giver] = moved
                pass_state.disturbers.setdefault(giver, f"it was slow and released {len(moved)} microbatches")
        if slow:
            every = [m for moved in slow.values() for m in moved]
            pass_state.released[stage].update(every)
            takers = self._slow_replicas.takers(stage, slow, len(every), now)
            table = amend(table, [], every, pass_state.weights, spared, takers)
            who = f"{next(iter(slow))} is" if len(slow) == 1 else f"{len(slow)} peers are"
            reasons.append(f"{who} slow and released {len(every)} microbatches")
        if reasons:
            self._announcements.publish(stage, table, "; ".join(reasons), new)
        if new is not None:
            self._announcements.tell(new, now)

    def _spared(self) -> frozenset[Actor]:
        """Actors that get no more work if they have other siblings: they leave, pause, or are on probation."""
        return self._pass_state.probed.union(self._members.withheld())

    # ------------------------------------------------------------ replicas that disagree

    def digests_differ(self, stage: int, strikes: Strikes) -> Suspect | None:
        """Replicas of a stage have different digests of the sum. Let the stage reduce once more; if the digests differ
        again, exclude the replica whose answer the fewest people have (`People`).

        If several answers are equally rare, exclude the replica with most strikes; of several, the last in the roster.
        """
        pass_state, table = self._pass_state, self._pass_state.tables[stage]
        held = pass_state.preparation.reports[stage]
        votes = self._members.people.votes(actor.peer for actor in table.roster)
        for actor in table.roster:
            pass_state.digest_votes[stage, held[actor].answer] += votes[actor.peer]
        if self._try_again(stage, "the replicas' sums differ: the stage adds up its gradients once more"):
            return None

        def rarity(actor: Actor) -> tuple[Fraction, int]:
            return pass_state.digest_votes[stage, held[actor].answer], -strikes(actor.peer)

        rarest = min(reversed(table.roster), key=rarity)
        return Suspect(rarest, "its sums differed from its siblings' twice")

    def _reduce_stuck(self, stage: int) -> Suspect | None:
        if self._try_again(stage, "the sums are not complete in time: the stage adds up its gradients once more"):
            return None
        return self._without_who_holds_up(stage, "the reduction waits for it, and a second attempt did not help")

    def _without_who_holds_up(self, stage: int, reason: str) -> Suspect | None:
        """Exclude the actor for which a reduction waits.

        That actor may itself have been kept waiting by another. If two people have waited for the same other actor,
        exclude that one instead.
        """
        pass_state, people = self._pass_state, self._members.people
        actor = self._late_reductions.holds_up(stage)
        if actor is None:
            return None
        accused = self._late_reductions.kept_waiting_by(actor)
        for each in accused:
            waited = pass_state.kept_waiting.setdefault(each, set())
            if people.count({*waited, actor.peer}) > people.count(waited) > 0:
                return Suspect(each, "several of its siblings wait for it in their reductions")
            waited.add(actor.peer)
        return Suspect(actor, reason, accused=accused)

    def _try_again(self, stage: int, reason: str) -> bool:
        """Let a stage reduce once more, under a new table number. Return False if it has already done this once."""
        pass_state, table = self._pass_state, self._pass_state.tables[stage]
        pass_state.digest_retries[stage] = pass_state.digest_retries.get(stage, 0) + 1
        if pass_state.digest_retries[stage] > 1:
            return False
        self._announcements.publish(stage, replace(table, number=table.number + 1), reason)
        return True

    # ------------------------------------------------------------ once a heartbeat

    def tick(
        self, failure_history: FailureHistory, unheard: frozenset[Actor], now: float
    ) -> Suspect | Stalled | GiveUp | TooLong | None:
        """Repeat messages that were lost, take work from slow actors, and return an actor that is stuck.

        `unheard`: actors that are silent, perhaps because this coordinator is cut off.
        """
        self.withheld_work.excuse_waiting(now)
        pass_state = self._pass_state
        trains = pass_state.kind is PassKind.TRAIN
        for actor in pass_state.actors:
            if self._members.get(actor) is None:
                return Suspect(actor, "it is gone", at_fault=False)
            self._announcements.tell_if_behind(actor, now)
        self._announcements.repeat_to_listeners(now)
        if (late := self._too_late()) is not None:
            late.came_late(pass_state.pass_id.version)
            return Suspect(
                late.actor, "it has not caught up, and its siblings have nothing left to do", at_fault=trains
            )
        if trains and (given_up := self._incomplete(failure_history, unheard, now)) is not None:
            return given_up
        if not trains and (reason := self._limits.outlasts(now)):
            return TooLong(reason, tuple(self._stragglers.dawdlers(unheard, now)))
        for stage in sorted({at for actor in pass_state.given if (at := pass_state.stage_of(actor)) is not None}):
            self._hand_on(stage, now)
        for actor, microbatches in self._slow_replicas.to_release(unheard, now):
            pass_state.releasing[actor] = microbatches
        for actor, microbatches in pass_state.releasing.items():
            if (at := pass_state.stage_of(actor)) is not None:
                self._out.send(actor, Release(pass_state.pass_id, pass_state.tables[at].number, microbatches))
        if trains and not unheard and not self.withheld_work.waits:
            self.holdups.tick(now)
        else:
            self.holdups.skip(now)
        strikes = failure_history.probation.strikes if trains else failure_history.idle_strikes
        for stalled in self._stragglers.stalled(strikes, unheard, now):
            return stalled if stalled.senders else Suspect(stalled.actor, stalled.reason)
        if unheard or not trains:
            return None  # reductions that wait for the unheard actors may still progress
        for stage in self._late_reductions.stuck(now):
            if (found := self._reduce_stuck(stage)) is not None:
                return found
        for stage, seconds in self._late_reductions.endless(now):
            reason = f"its stage waits for it, and has been reducing for {seconds}"
            if (found := self._without_who_holds_up(stage, reason)) is not None:
                return found
        return None

    def _incomplete(self, failure_history: FailureHistory, unheard: frozenset[Actor], now: float) -> GiveUp | None:
        """Give the step up if it has taken too long, or if it only waits for an actor without siblings."""
        pass_state, aborts = self._pass_state, failure_history.aborts
        against = failure_history.accusations.against
        idle = self._lone_actors.idle(aborts, against, unheard, now)
        if not idle and not self._limits.is_overrun(aborts, now):
            return None
        return GiveUp(f"not complete after {now - pass_state.opened_at:.1f} s", tuple(idle))

    def _too_late(self) -> Member | None:
        """A promoted member that still lacks the last decision when all its siblings are done."""
        pass_state = self._pass_state
        for table in pass_state.tables:
            for actor in (a for a in table.roster if a in pass_state.promotion):  # a set has no order to replay
                member = self._members.get(actor)
                status = member.status if member is not None else None
                begun = status is not None and status.pass_id == pass_state.pass_id
                siblings = [a for a in table.roster if a not in pass_state.promotion]
                done = siblings and not any(pass_state.unfinished(a) for a in siblings)
                if member is not None and done and not begun:
                    return member
        return None
