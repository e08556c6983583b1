"""Assigns stages to members and brings members to the current version: the coordinator's work between two passes.

Members without a stage get the stage that needs them most. Members that lack the version are told where to fetch it. If
no peer holds a stage, the coordinator waits for a copy, restores the stage from the archive, moves a spare replica to
it or, as the last resort, rolls back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from swarm.events import PeerJoined, RecordOutdated, RolledBack
from swarm.protocol.coordinator.membership.doubts import IF_DIVERGED
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.bench import Bench
from swarm.protocol.coordinator.placement.first_pass import FirstPass
from swarm.protocol.coordinator.placement.orders import Orders
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.recruiting import Recruiting
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.coordinator.placement.survey import NewTerm, Survey
from swarm.protocol.coordinator.placement.withheld_states import WithheldStates
from swarm.protocol.coordinator.proofs import proven
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Assign
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

RECALLED_BEATS = 4
"""A new leader knows some peers only from their reports during an earlier leader's term. It waits this number of
heartbeats for their first new report.
"""

_OVERSTAYED_BEATS = 3
"""Heartbeats after `leave_s` at which a leaving member that is still there no longer keeps its stage."""


class Placement:
    """Gives stages and versions to members. Call `place` at any time. Between passes, call `survey` until it is
    ready.
    """

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
        """The time when the last pass ended."""
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self.rebalancing = rebalancing
        self._seats = seats
        self._failure_history = failure_history
        self.orders = Orders(me, settings, history, members, out)
        self._bench = Bench(settings, history, members, rebalancing, seats, failure_history)
        self._first_pass = FirstPass(settings, history, members)
        self._recruiting = Recruiting(settings, members, self._first_pass, rebalancing, self._bench, seats)
        self._withheld_states = WithheldStates(settings, history, members, failure_history)
        self._missing_since: dict[int, float] = {}
        """For each stage whose version no peer holds, the time since which this is so."""
        self._placed_for = (-1, 0)
        """The members and properties for which all members were last placed. If they are unchanged, nothing needs to be
        placed.
        """
        self._waited_since: dict[str, float] = {}
        """For each person, the time since which the next pass has been waiting for a device of this person to load a
        state. No device is waited for longer than a step budget after that, even if it restarts or another one comes.
        """
        self._listened: frozenset[Actor] = frozenset()
        """The listeners of the last decided step."""

    def pass_closed(self, now: float) -> None:
        self.since = now
        self._missing_since.clear()
        self._recruiting.pass_closed()
        self.orders.pass_closed()

    def decided(self, listened: Collection[Actor]) -> None:
        """A step is decided. `listened`: the actors for which donors keep its sums."""
        self._listened = frozenset(listened)
        self._withheld_states.decided()

    def pass_opened(self, actors: Iterable[Actor], now: float) -> None:
        self._first_pass.has_opened = True
        self._waited_since.clear()
        self.rebalancing.opened(actors, now)

    # ------------------------------------------------------------ placing

    def place(self, now: float) -> bool:
        """Give a stage to every member that has introduced itself, or let it stand by. Return True if a member got a
        stage.
        """
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
        """Return True if any stage has fewer members than it may have. Otherwise, standbys continue to stand by."""
        away = Counter(member.stage for member in self._members.lost if not member.given_up)
        away.update(member.stage for member in self._members if member.is_on_call and member.lost_at is None)
        most = self.rebalancing.most
        return any(len(self._members.crew(s)) - away[StageIndex(s)] < most for s in range(self._settings.stages))

    # ------------------------------------------------------------ catching up

    def survey(self, now: float) -> Survey:
        """Place members, tell members that lack the version how to get it, and report whether every stage is held."""
        self._bench.choose(now)
        self.place(now)
        if not self._first_pass.may_wait(now):
            self.rebalancing.consider(now)
        found, history = Survey([]), self._history
        self.orders.look()
        for stage in range(self._settings.stages):
            self._survey_stage(stage, found, now)
        if found.new_term is None and self._members.are_beyond(history.term):
            self._out.emit(RecordOutdated(history.term, self._members.next_term(history.term)))
            found.new_term = NewTerm()
        if found.deserted and found.new_term is None and not self._missing_since:
            # not while a stage has no copy: the moved peer might have the last one
            self._recruiting.recruit(found.deserted[0], now)
        return found

    def _survey_stage(self, stage: int, found: Survey, now: float) -> None:
        """Survey one stage, and add its roster to what was found."""
        history = self._history
        holders, coming, needy = self._crew(stage)
        if self._withheld_states.has(stage, (*holders, *coming), needy, now):
            holders, coming = [], []
        staying = [m for m in (*holders, *coming) if not m.is_withheld]
        paused = [m for m in (*holders, *coming) if m.paused and m.leaving_since is None]
        crew = len(staying) + sum(not m.given_up for m in needy)
        if holders or coming:
            self._missing_since.pop(stage, None)
            if not staying and paused:
                if self._wait_for_paused(stage, paused, needy, found):
                    found.deserted.append(stage)
            elif not staying:
                found.wait(f"the last replica of stage {stage} is leaving")
                if not crew and (not history.restorable or all(self._overstays(m, now) for m in (*holders, *coming))):
                    self._recruiting.recruit(stage, now)
            elif all(m.idle for m in staying) and not self._members.crew(stage):
                if history.version == history.end(self._settings):
                    self._recruiting.recruit(stage, now)  # the other stages have done their work
                else:
                    self._seats.lacking(stage, now)  # no peer without a stage has taken the place beside them
        else:
            self._missing(stage, crew, found, now)
        if crew:
            self._recruiting.has_crew(stage)
        if unheard := [m for m in needy if self._may_be_further(m, now)]:
            needy = [m for m in needy if not self._may_be_further(m, now)]
            found.ready = False
            self.orders.ask_to_apply(unheard, now)
        promotion: list[Member] = []
        if staying:
            promotion = [m for m in needy if self._enters(m) and not m.paused]
            needy = [m for m in needy if not self._listens(m)]
        at_work = proven(staying)
        if any(m.shown for m in at_work):
            promotion = [m for m in promotion if m.shown]
        needy = self._wanted(needy, len(staying))
        self.orders.supply(stage, needy, proven(holders), coming, now)
        for member in needy:
            if self._is_waited_for(member, now):
                found.ready = False
        if crew + len(paused) < self._settings.replicas and self._first_pass.may_wait(now):
            found.wait(f"stage {stage} has {crew} of {self._settings.replicas} replicas")
        found.rosters.append([m.actor for m in (*at_work, *promotion)])
        found.promotion.update(m.actor for m in promotion)

    def _overstays(self, member: Member, now: float) -> bool:
        """Return True if a member says that it leaves, but has stayed much longer than any member may take for it."""
        longest_s = self._settings.leave_s + _OVERSTAYED_BEATS * self._settings.heartbeat_s
        return member.leaving_since is not None and now - member.leaving_since > longest_s

    def _wait_for_paused(self, stage: int, paused: list[Member], needy: list[Member], found: Survey) -> bool:
        """Only paused members hold a stage, so wait for them. Return True if another peer should take up the stage
        after all.
        """
        who = "; ".join(f"{member.actor} is paused: {member.paused}" for member in paused)
        found.wait(f"stage {stage} waits, because {who}")
        others = any(not (m.given_up or m.paused) for m in needy)
        return not others and all(member.absent for member in paused)

    def _listens(self, member: Member) -> bool:
        """Return True if a member that lacks the version should load it as a listener, so that no pass waits for it.

        False at the end of the run, and at the start of this process, when all members begin together. But a member
        that listened before the coordinator restarted stays a listener.
        """
        if self._history.version == self._history.end(self._settings):
            return False
        return self._first_pass.has_opened or member.has_heard_any

    def _enters(self, member: Member) -> bool:
        """Return True if the member lacks only the last decision and donors keep the sums of that step for it."""
        version = self._history.version
        held = self._history.decision is not None and member.version == version - 1
        return held and self._listens(member) and member.actor in self._listened and member.enters_from <= version

    def _crew(self, stage: int) -> tuple[list[Member], list[Member], list[Member]]:
        """The members of a stage that hold the version, those that can apply the last decision, and those that need a
        state.

        The first two lists include leaving and paused members. These have no part in the next pass, but others can
        fetch the state from them.
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

    def _is_waited_for(self, member: Member, now: float) -> bool:
        """Return True if the next pass waits for a member that lacks the version."""
        budget_s = self._settings.step_budget_s
        if not member.is_waited_for(now, budget_s):
            return False
        return now - self._waited_since.setdefault(self._members.people.of(member.actor.peer), now) < budget_s

    def _may_be_further(self, member: Member, now: float) -> bool:
        """Return True if the member may hold a newer version than it last reported, because it reported to the former
        leader.
        """
        since = member.recalled_at
        if since is None or member.status is None:
            return False
        return now - since < RECALLED_BEATS * self._settings.heartbeat_s

    def _wanted(self, needy: list[Member], held: int) -> list[Member]:
        """The members that should load the version: as many as the stage lacks (all of them at the end of the run), and
        those that were given up or are absent.

        A peer that returns to a stage with a full set of replicas stays in reserve.
        """
        if not needy:
            return []
        waiting = [m for m in needy if not (m.given_up or m.absent)]
        if self._history.version < self._history.end(self._settings):
            del waiting[max(0, self.rebalancing.most - held) :]
        return waiting + [m for m in needy if m.given_up or m.absent]

    # ------------------------------------------------------------ a stage without the version

    def _missing(self, stage: int, crew: int, found: Survey, now: float) -> None:
        """No peer holds the version. Wait for a copy, then roll back to the archived version.

        But do not roll back while no peer could load the older version: after a restart of the coordinator, peers need
        time to reconnect.
        """
        history, settings = self._history, self._settings
        if not crew and all(len(self._members.of_stage(s)) < 2 for s in range(settings.stages)):
            self._missing_since.pop(stage, None)
            found.wait(self._nobody(stage))
            self._recruiting.wait_for_newcomers(stage, now)
            return
        since = self._missing_since.setdefault(stage, now)
        recruit = now - since >= settings.recruit_after_s
        if not history.restorable and self._first_pass.may_wait(now):
            recruit = False  # its holder may only be late to reconnect
        if history.restorable:
            found.wait("" if crew else self._nobody(stage))
            if not crew and recruit and (self._first_pass.all_have_come or not self._first_pass.may_wait(now)):
                self._recruiting.recruit(stage, now)
            return
        found.wait("" if recruit else f"no peer holds stage {stage} at version {history.version}")
        if recruit and found.new_term is None:
            target = history.rollback_target
            newest = max((member.version or 0 for member in self._members), default=0)
            reason = f"the last copy of stage {stage} at version {history.version} is gone"
            if newest > history.version:
                reason = (
                    f"the decision record is an older copy: it ends with version {history.version}, and peers hold "
                    f"version {newest}"
                )
            found.new_term = self.go_back(target, self._withheld_states.lose(stage, now) or reason)

    def _nobody(self, stage: int) -> str:
        """The reason why a stage has no peer, and what the organiser can do, as text."""
        left_out, idle = self._failure_history.doubts.left_out, self._failure_history.idle
        crew = self._members.of_stage(stage)
        those = [(m.actor, left_out[m.actor.peer]) for m in crew if m.actor.peer in left_out]
        idlers = [(m.actor, why) for m in crew if m.benched and (why := idle.why(m.actor.peer)) is not None]
        if not those and not idlers:
            return f"stage {stage} has no peer"
        who = "; ".join(f"{actor} is left out: {why}" for actor, why in (*those, *idlers))
        if not those:
            return f"stage {stage} has no other peer. {who}"
        return f"stage {stage} has no trusted peer. {who}. Add another peer for this stage. {IF_DIVERGED}"

    def go_back(self, target: int, reason: str) -> NewTerm:
        """Void all states that peers hold. The run continues from version `target`."""
        self._out.emit(RolledBack(self._members.next_term(self._history.term), target, reason))
        for member in self._members:
            member.version = None
            member.computed = -1
            member.has_state()
        return NewTerm(target)
