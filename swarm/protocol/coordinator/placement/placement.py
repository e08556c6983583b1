"""Assigns stages to members and brings them to the current version: the coordinator's work between two passes.

Members are placed where they are needed. Members that lack the version are told where to get it. For a stage that no
peer holds, the coordinator waits, restores it, gives it a spare replica or, as the last resort, rolls back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from swarm.events import PeerJoined, RecordOutdated, RolledBack
from swarm.protocol.coordinator.membership.doubts import IF_DIVERGED
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.coordinator.proofs import proven
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Assign, Decide
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

RECALLED_BEATS = 4
"""Heartbeats that a new leader waits for the first report of a peer that has reported to all coordinators before."""


@dataclass(frozen=True, slots=True)
class NewTerm:
    """Void all orders given to peers so far. `rollback_to`: the version from which the history continues."""

    rollback_to: int | None = None


@dataclass(slots=True)
class Survey:
    """The state of the stages."""

    rosters: list[list[Actor]]
    """By stage: actors that hold the version, actors that can apply the last decision, actors in `promotion`."""
    promotion: set[Actor] = field(default_factory=set)
    """Listeners that lack only the last decision: the sums of its step are kept for them."""
    ready: bool = True
    """True if the next pass can open over these rosters."""
    waiting: str = ""
    """The reason why the next pass waits, if it is worth an event."""
    new_term: NewTerm | None = None

    def wait(self, reason: str) -> None:
        self.ready = False
        self.waiting = self.waiting or reason


class Placement:
    """Call `place` at any time, and `survey` between passes: repeatedly, until it is ready."""

    def __init__(
        self,
        me: Actor,
        settings: Settings,
        history: History,
        members: Members,
        rebalancing: Rebalancing,
        seats: Seats,
        failure_history: FailureHistory,
        out: Outbox,
    ) -> None:
        self.since = 0.0
        """When the last pass closed."""
        self._me = me
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self.rebalancing = rebalancing
        self._seats = seats
        self._failure_history = failure_history
        self._first_patience_s = settings.start_timeout_s
        if history.decision is not None or history.archived:  # version 0 is archived before an imported run begins
            self._first_patience_s = settings.recruit_after_s  # a resumed run: its peers are only away, not new
        self._opened_any = False
        self._missing_since: dict[int, float] = {}
        """Stages whose version no peer holds; since when."""
        self._empty_since: dict[int, float] = {}
        """Stages that no peer holds or is to load, and since when no peer has come."""
        self._arrived = 0
        """Number of members at the last check of those stages."""
        self._placed_for = (-1, 0)
        """The inputs of the last placement of all members."""
        self._handing_on = False
        """True if all holders of a stage are leaving. Meanwhile all members apply and save what was decided."""
        self._listened: frozenset[Actor] = frozenset()
        """The listeners of the last decided step."""

    def pass_closed(self, now: float) -> None:
        self.since = now
        self._missing_since.clear()
        self._empty_since.clear()
        for member in self._members:
            member.told_at = -1.0

    def decided(self, listened: Collection[Actor]) -> None:
        """A step is decided, and its sums are kept for the actors `listened`."""
        self._listened = frozenset(listened)

    def pass_opened(self, actors: Iterable[Actor], now: float) -> None:
        self._opened_any = True
        self.rebalancing.opened(actors, now)

    # ------------------------------------------------------------ placing

    def place(self, now: float) -> bool:
        """Give every member that has introduced itself a stage, or let it stand by. True if a member got a stage."""
        placed = False
        before = self._members.changes, self.rebalancing.most
        if before == self._placed_for:
            return False
        unplaced = self._members.unplaced
        room = bool(unplaced) and self._room()
        for member in unplaced:
            if not member.introduced or member.lost_at is not None or (member.standing_by and not room):
                continue
            if member.is_withheld:
                continue
            doubted = member.actor.peer in self._failure_history.doubts.left_out
            claim = None if doubted else self.rebalancing.claim(member)
            if claim is not None:
                placed = True
                reason = f"recruited from standby: {claim.reason}" if member.standing_by else claim.reason
                member.place(claim.stage, now)
                self._out.emit(PeerJoined(str(member.actor), claim.stage, reason))
                self.rebalancing.forecast(member, claim.stage)
                room = self._room()
            elif not member.standing_by:
                member.standing_by = True
                why = "it is left out of the run" if doubted else self.rebalancing.why_not(member)
                self._out.emit(PeerJoined(str(member.actor), None, why))
                self._out.send(member.actor, Assign(self._history.term, None, 0))
        self._placed_for = before
        return placed

    def _room(self) -> bool:
        """Return True if any stage has fewer members than it may have. While none has, standbys keep standing by."""
        away = Counter(member.stage for member in self._members.lost if not member.given_up)
        most = self.rebalancing.most
        return any(len(self._members.crew(s)) - away[StageIndex(s)] < most for s in range(self._settings.stages))

    def _bench(self) -> None:
        """Leave out the members on probation, if their stage has another member that holds the version.

        After an aborted attempt at this step, and while it is audited, probation does not count: the member found
        guilty may have waited for the one that is left, and an undecided step would never bring it back. It counts for
        a member whose state has differed twice: each time it comes back, the step is done again. Then the
        members are left out that more failures of this step accuse than a sibling; when the sibling has failed as
        often, they are back. If the step was not finite, one half of the members is left out (`halves`). Of several
        devices of one person, all but one make room for other people (`_doubles`). Doubted members are left out even
        if their stage has no other member (`Doubts`).
        """
        history = self._history
        probation = self._failure_history.probation
        in_vain = self._failure_history.aborts > 0 or self._failure_history.is_audited
        for stage in range(self._settings.stages):
            crew = [m for m in self._members.of_stage(stage) if m.lost_at is None]
            late = {
                m.actor
                for m in crew
                if probation.is_benched(m.actor.peer, history.version) and (not in_vain or m.drifts > 1)
            }
            there = [m for m in crew if m.is_current(history.version, history.decision)]
            against = {m.actor: self._failure_history.accusations.against(m.actor.peer) for m in crew}
            late.update(a for a, times in against.items() if times > min((against[m.actor] for m in there), default=0))
            late.update(m.actor for m in crew if self._failure_history.halves.leaves_out(m.actor.peer))
            late.update(self._doubles(stage, there))
            doubted = {m.actor for m in crew if m.actor.peer in self._failure_history.doubts.left_out}
            late |= doubted
            spared = history.version < history.end(self._settings) and any(m.actor not in late for m in there)
            for member in crew:
                member.bench(member.actor in doubted or (spared and member.actor in late))

    def _doubles(self, stage: int, there: list[Member]) -> list[Actor]:
        """The members of a stage, besides another device of the same person, whose places other people can take.

        `there`: those that hold the version. A place is wanted by each member of another person that stands by. When it
        holds the version too, and the stage has more than its largest number of members, a double is left out for it.
        """
        people, left_out = self._members.people, self._failure_history.doubts.left_out
        if not people.are_several:
            return []
        firsts: set[str] = set()
        doubles: list[Actor] = []
        for member in sorted(there, key=lambda member: (member.placed_at, member.actor)):
            person = people.of(member.actor.peer)
            if person in firsts:
                doubles.append(member.actor)
            firsts.add(person)
        if not doubles:
            return []
        wanted = {
            person
            for m in self._members.unplaced
            if m.standing_by and m.lost_at is None and m.leaving_since is None and m.actor.peer not in left_out
            if (person := people.of(m.actor.peer)) not in firsts and self.rebalancing.may_hold(m, stage)
        }
        places = len(wanted) + max(0, len(there) - self.rebalancing.most)
        return doubles[max(0, len(doubles) - places) :] if places else []

    # ------------------------------------------------------------ catching up

    def survey(self, now: float) -> Survey:
        """Place members, tell those that lack the version how to catch up, and report whether every stage is held."""
        self._bench()
        self.place(now)
        if not self._may_wait_for_replicas(now):
            self.rebalancing.consider(now)
        found, history = Survey([]), self._history
        deserted: list[int] = []
        """Stages that only members hold that have paused for long."""
        crews = [
            [m for m in self._members.of_stage(s) if m.is_current(history.version, history.decision)]
            for s in range(self._settings.stages)
        ]
        self._handing_on = any(crew and all(m.leaving_since is not None for m in crew) for crew in crews)
        for stage in range(self._settings.stages):
            holders, coming, needy = self._crew(stage)
            staying = [m for m in (*holders, *coming) if not m.is_withheld]
            paused = [m for m in (*holders, *coming) if m.paused and m.leaving_since is None]
            crew = len(staying) + sum(not m.given_up for m in needy)
            if holders or coming:
                self._missing_since.pop(stage, None)
                if not staying and paused:
                    if self._wait_for_paused(stage, paused, needy, found):
                        deserted.append(stage)
                elif not staying:
                    found.wait(f"the last replica of stage {stage} is leaving")
                    if not crew and not history.restorable:
                        self._recruit(stage, now)
            else:
                self._missing(stage, crew, found, now)
            if crew:
                self._empty_since.pop(stage, None)
            if unheard := [m for m in needy if self._may_be_further(m, now)]:
                needy = [m for m in needy if not self._may_be_further(m, now)]
                found.ready = False
                self._ask_to_apply(unheard, now)
            promotion: list[Member] = []
            if staying:
                promotion = [m for m in needy if self._enters(m) and not m.paused]
                needy = [m for m in needy if not self._listens(m)]
            at_work = proven(staying)
            if any(m.shown for m in at_work):
                promotion = [m for m in promotion if m.shown]
            needy = self._wanted(needy, len(staying))
            self._supply(stage, needy, proven(holders), coming, now)
            for member in needy:
                if member.is_waited_for(now, self._settings.step_budget_s):
                    found.ready = False
            if crew + len(paused) < self._settings.replicas and self._may_wait_for_replicas(now):
                found.wait(f"stage {stage} has {crew} of {self._settings.replicas} replicas")
            found.rosters.append([m.actor for m in (*at_work, *promotion)])
            found.promotion.update(m.actor for m in promotion)
        if found.new_term is None and self._members.are_beyond(history.term):
            self._out.emit(RecordOutdated(history.term, self._members.next_term(history.term)))
            found.new_term = NewTerm()
        if deserted and found.new_term is None and not self._missing_since:
            self._recruit(deserted[0], now)  # not while a stage has no copy: who is moved might have the last one
        return found

    def _wait_for_paused(self, stage: int, paused: list[Member], needy: list[Member], found: Survey) -> bool:
        """Only paused members hold a stage: wait for them. True if another peer is to take it up after all."""
        who = "; ".join(f"{member.actor} is paused: {member.paused}" for member in paused)
        found.wait(f"stage {stage} waits, since {who}")
        others = any(not (m.given_up or m.paused) for m in needy)
        return not others and all(member.absent for member in paused)

    def _listens(self, member: Member) -> bool:
        """True if a member that lacks the version, while others hold it, loads it as a listener, so that no pass waits
        for it.

        Not at the end of the run, nor at the start of this process: then all members begin together. But a member that
        has listened in an earlier process stays a listener.
        """
        if self._history.version == self._history.end(self._settings):
            return False
        return self._opened_any or member.has_heard_any

    def _enters(self, member: Member) -> bool:
        """Return True if it lacks only the last decision, and the sums of that step are kept for it."""
        version = self._history.version
        held = self._history.decision is not None and member.version == version - 1
        return held and self._listens(member) and member.actor in self._listened and member.enters_from <= version

    def _crew(self, stage: int) -> tuple[list[Member], list[Member], list[Member]]:
        """The members of a stage that hold the version, that can apply the last decision, and that need a state.

        Leaving and paused members are among the first two: they have no part in the next pass, but they can hand on
        their state.
        """
        holders: list[Member] = []
        coming: list[Member] = []
        needy: list[Member] = []
        for member in self._members.of_stage(stage):
            if member.lost_at is not None or member.benched:
                continue
            if member.version == self._history.version:
                if member.given_up and member.shown:
                    member.has_state()
                holders.append(member)
            elif member.can_apply(self._history.decision):
                coming.append(member)
            elif member.leaving_since is None:
                needy.append(member)
        return holders, coming, needy

    def _may_be_further(self, member: Member, now: float) -> bool:
        """Return True if it may have advanced since: between heartbeats it reported only to the former leader."""
        since = member.recalled_at
        if since is None or member.status is None:
            return False
        return now - since < RECALLED_BEATS * self._settings.heartbeat_s

    def _wanted(self, needy: list[Member], held: int) -> list[Member]:
        """The members that are to load the version: as many as the stage lacks, at the end all; given-up members in
        addition.

        A peer may come back to a stage that has all its replicas by now; it stays in reserve.
        """
        if not needy:
            return []
        waiting = [m for m in needy if not (m.given_up or m.absent)]
        if self._history.version < self._history.end(self._settings):
            del waiting[max(0, self.rebalancing.most - held) :]
        return waiting + [m for m in needy if m.given_up or m.absent]

    def _supply(self, stage: int, needy: list[Member], holders: list[Member], coming: list[Member], now: float) -> None:
        """Tell members that can apply the decision to do so, and those that lack the version where to get it."""
        history = self._history
        gaps = needy or self._handing_on or history.version == history.end(self._settings)
        gaps = gaps or history.controls.paused is not None
        if gaps:
            self._ask_to_apply(coming, now)  # otherwise the next Open carries the decision
        for member in needy:
            if not holders and not (history.restorable and not coming):
                continue
            late = member.given_up and member.assigned not in (None, (stage, history.version))
            if late and now < member.patience_until:
                continue  # a newer order would interrupt its download
            if not self._tell(member, now):
                continue
            initialised = history.version == 0 and not self._settings.imported
            # Those that are still to apply the decision too: else a state would be fetched from whoever is first.
            those = (*holders, *coming) if holders and not initialised else ()
            donors = self._members.donors(member.actor for member in those)
            archive = None if initialised or donors else self._me
            member.assigned = (stage, history.version)
            if late:
                member.give_up(now, self._settings.step_budget_s)
            order = Assign(history.term, StageIndex(stage), history.version, donors, archive, member.move_number)
            self._out.send(member.actor, order)

    def _ask_to_apply(self, members: Iterable[Member], now: float) -> None:
        history = self._history
        for member in members:
            if history.decision is not None and self._tell(member, now):
                self._out.send(member.actor, Decide(history.decision, history.term, save=history.is_asked))

    def ask_to_save(self, now: float) -> None:
        """Send the last decision again to the members that hold its version and have not saved it."""
        history = self._history
        for member in self._members:
            if history.decision is None or member.version != history.version or member.status is None:
                continue
            if member.status.checkpoint_version < history.version and self._tell(member, now):
                self._out.send(member.actor, Decide(history.decision, history.term, save=history.is_asked))

    def _tell(self, member: Member, now: float) -> bool:
        """Return True if it is time to send an order (again) to this member."""
        if member.told_at >= 0 and now - member.told_at < 2 * self._settings.heartbeat_s:
            return False
        member.told_at = now
        return True

    def _may_wait_for_replicas(self, now: float) -> bool:
        """Whether to wait at the start of this process for a while: the first pass should open with every peer."""
        first = self._members.first_heard_at
        return not self._opened_any and (first is None or now - first < self._first_patience_s)

    @property
    def _all_have_come(self) -> bool:
        """True if there are as many peers as the run asks for, wherever they are."""
        here = sum(member.lost_at is None for member in self._members)
        return here >= self._settings.stages * self._settings.replicas

    # ------------------------------------------------------------ a stage without the version

    def _missing(self, stage: int, crew: int, found: Survey, now: float) -> None:
        """No peer holds the version: wait for a copy, then roll back to the archived version.

        Not while no peer could load the older version: after a restart of the coordinator, peers need a while to come
        back.
        """
        history, settings = self._history, self._settings
        if not crew and all(len(self._members.of_stage(s)) < 2 for s in range(settings.stages)):
            self._missing_since.pop(stage, None)
            found.wait(self._nobody(stage))
            self._ask_for_a_seat(stage, now)
            return
        since = self._missing_since.setdefault(stage, now)
        recruit = now - since >= settings.recruit_after_s
        if not history.restorable and self._may_wait_for_replicas(now):
            recruit = False  # its holder may only be late to come back
        if history.restorable:
            found.wait("" if crew else self._nobody(stage))
            if not crew and recruit and (self._all_have_come or not self._may_wait_for_replicas(now)):
                self._recruit(stage, now)
            return
        found.wait("" if recruit else f"no peer holds stage {stage} at version {history.version}")
        if recruit and found.new_term is None:
            target = history.rollback_target
            reason = f"the last copy of stage {stage} at version {history.version} is gone"
            found.new_term = self.go_back(target, reason)

    def _nobody(self, stage: int) -> str:
        """The text that says why a stage has no peer, and what the organiser can do."""
        left_out = self._failure_history.doubts.left_out
        those = [(m.actor, left_out[m.actor.peer]) for m in self._members.of_stage(stage) if m.actor.peer in left_out]
        if not those:
            return f"stage {stage} has no peer"
        who = "; ".join(f"{actor} is left out: {why}" for actor, why in those)
        return f"stage {stage} has no trusted peer. {who}. Add another peer for this stage. {IF_DIVERGED}"

    def go_back(self, target: int, reason: str) -> NewTerm:
        """All held states are void: the history continues from version `target`."""
        self._out.emit(RolledBack(self._members.next_term(self._history.term), target, reason))
        for member in self._members:
            member.version = None
            member.has_state()
        return NewTerm(target)

    def _ask_for_a_seat(self, stage: int, now: float) -> None:
        """No stage can spare a replica, and for a while no peer has come that would hold this stage."""
        if len(self._members) > self._arrived:
            self._empty_since.clear()  # others may be on their way, as after a restart of the coordinator
        self._arrived = len(self._members)
        since = self._empty_since.setdefault(stage, now)
        if now - since >= self._settings.recruit_after_s and not self._may_wait_for_replicas(now):
            self._seats.lacking(stage, now)

    def _recruit(self, stage: int, now: float) -> None:
        """No peer stands by for a stage without peers: move a replica that can be spared, or let a peer hold two."""
        if self.rebalancing.recruit(StageIndex(stage), now) is None:
            self._seats.lacking(stage, now)
