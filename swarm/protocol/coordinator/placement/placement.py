"""Assigns stages to members and brings members to the current version: the coordinator's work between two passes.

Members without a stage get the stage that needs them most. Members that lack the version are told where to fetch it. If
no peer holds a stage, the coordinator waits for a copy, restores the stage from the archive, moves a spare replica to
it or, as the last resort, rolls back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from swarm.events import PeerJoined, RecordOutdated, RolledBack
from swarm.protocol.coordinator.membership.doubts import IF_DIVERGED
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.bench import Bench
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.coordinator.proofs import proven
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Assign, Decide
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import longest_load_s

RECALLED_BEATS = 4
"""A new leader knows some peers only from their reports during an earlier leader's term. It waits this number of
heartbeats for their first new report.
"""

KEPT_BACK_BUDGETS = 4
"""If all holders of a stage are paused, another peer has this number of step budgets to load their state, and the time
that the state takes on a slow line.
"""


@dataclass(frozen=True, slots=True)
class NewTerm:
    """All orders given so far become void. `rollback_to`: the version from which the history continues, if it is a
    rollback.
    """

    rollback_to: int | None = None


@dataclass(slots=True)
class Survey:
    """The result of `Placement.survey`: whether every stage is held, and by which members."""

    rosters: list[list[Actor]]
    """For each stage, three kinds of actors: those that hold the version, those that can apply the last decision, and
    those in `promotion`.
    """
    promotion: set[Actor] = field(default_factory=set)
    """Listeners that lack only the last decision. Donors keep the sums of that step for them."""
    ready: bool = True
    """True if the next pass can open with these rosters."""
    waiting: str = ""
    """The reason why the next pass waits, if an event should report it."""
    new_term: NewTerm | None = None

    @property
    def actors(self) -> list[Actor]:
        """All actors of the rosters."""
        return [actor for roster in self.rosters for actor in roster]

    def wait(self, reason: str) -> None:
        self.ready = False
        self.waiting = self.waiting or reason


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
        self._me = me
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self.rebalancing = rebalancing
        self._seats = seats
        self._failure_history = failure_history
        self._bench = Bench(settings, history, members, rebalancing, seats, failure_history)
        self._first_patience_s = settings.start_timeout_s
        if history.decision is not None or history.archived:  # version 0 is archived before an imported run begins
            self._first_patience_s = settings.recruit_after_s  # a resumed run: its peers are only late, not new
        self._opened_any = False
        self._missing_since: dict[int, float] = {}
        """For each stage whose version no peer holds, the time since which this is so."""
        self._empty_since: dict[int, float] = {}
        """For each stage that no peer holds or loads, the time since which this is so, or when the last peer joined."""
        self._withheld_since: dict[int, float] = {}
        """For each stage, when another peer first wanted its state in this step while all its holders left or paused.
        """
        self._kept_back_since: dict[int, float] = {}
        """For each stage whose checkpoints nobody gets, since when another peer beside its holders wants their state.
        """
        self._arrived: set[str] = set()
        """The peer ids of all members that were seen since then. One that returns must not delay what is done about an
        empty stage.
        """
        self._placed_for = (-1, 0)
        """The members and properties for which all members were last placed. If they are unchanged, nothing needs to be
        placed.
        """
        self._handing_on = False
        """True while all holders of a stage are leaving. Meanwhile, all members apply and save the last decision."""
        self._waited_since: dict[str, float] = {}
        """For each person, the time since which the next pass has been waiting for a device of this person to load a
        state. No device is waited for longer than a step budget after that, even if it restarts or another one comes.
        """
        self._listened: frozenset[Actor] = frozenset()
        """The listeners of the last decided step."""

    def pass_closed(self, now: float) -> None:
        self.since = now
        self._missing_since.clear()
        self._empty_since.clear()
        self._arrived.clear()
        for member in self._members:
            member.told_at = -1.0

    def decided(self, listened: Collection[Actor]) -> None:
        """A step is decided. `listened`: the actors for which donors keep its sums."""
        self._listened = frozenset(listened)
        self._withheld_since.clear()

    def pass_opened(self, actors: Iterable[Actor], now: float) -> None:
        self._opened_any = True
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
        if not self._may_wait_for_replicas(now):
            self.rebalancing.consider(now)
        found, history = Survey([]), self._history
        deserted: list[int] = []
        """`deserted`: stages whose members have all been paused for a long time."""
        crews = [
            [m for m in self._members.of_stage(s) if m.is_current(history.version, history.decision)]
            for s in range(self._settings.stages)
        ]
        self._handing_on = any(crew and all(m.leaving_since is not None for m in crew) for crew in crews)
        for stage in range(self._settings.stages):
            holders, coming, needy = self._crew(stage)
            if self._keep_it_back(stage, (*holders, *coming), needy, now):
                holders, coming = [], []
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
                elif all(m.idle for m in staying) and not self._members.crew(stage):
                    if history.version == history.end(self._settings):
                        self._recruit(stage, now)  # the other stages have done their work
                    else:
                        self._seats.lacking(stage, now)  # no peer without a stage has taken the place beside them
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
                if self._is_waited_for(member, now):
                    found.ready = False
            if crew + len(paused) < self._settings.replicas and self._may_wait_for_replicas(now):
                found.wait(f"stage {stage} has {crew} of {self._settings.replicas} replicas")
            found.rosters.append([m.actor for m in (*at_work, *promotion)])
            found.promotion.update(m.actor for m in promotion)
        if found.new_term is None and self._members.are_beyond(history.term):
            self._out.emit(RecordOutdated(history.term, self._members.next_term(history.term)))
            found.new_term = NewTerm()
        if deserted and found.new_term is None and not self._missing_since:
            self._recruit(deserted[0], now)  # not while a stage has no copy: the moved peer might have the last one
        return found

    def _wait_for_paused(self, stage: int, paused: list[Member], needy: list[Member], found: Survey) -> bool:
        """Only paused members hold a stage, so wait for them. Return True if another peer should take up the stage
        after all.
        """
        who = "; ".join(f"{member.actor} is paused: {member.paused}" for member in paused)
        found.wait(f"stage {stage} waits, because {who}")
        others = any(not (m.given_up or m.paused) for m in needy)
        return not others and all(member.absent for member in paused)

    def _keep_it_back(self, stage: int, holders: Sequence[Member], needy: Iterable[Member], now: float) -> bool:
        """Return True if all holders of a stage leave or pause, or nobody gets its checkpoints, and another peer has
        not got their state in time.

        Perhaps they do not give it, and will never leave or resume. So they do not count as holders any more.
        """
        if self._nobody_gets(stage, holders, needy, now):
            return True
        if not holders or not all(m.is_withheld for m in holders) or all(m.is_withheld for m in needy):
            return False
        settings = self._settings
        since = self._withheld_since.setdefault(stage, now)
        if all(m.leaving_since is not None for m in holders):
            return now - since > settings.leave_s + settings.step_budget_s
        return now - since > KEPT_BACK_BUDGETS * settings.step_budget_s + longest_load_s(settings.stage_needs, stage)

    def _nobody_gets(self, stage: int, holders: Sequence[Member], needy: Iterable[Member], now: float) -> bool:
        """Return True if neither the archive nor another peer beside the holders of a stage gets their state. As long
        as they have work to do, it is enough that the archive gets some bytes now and then: their line may be slow.
        """
        kept_back, settings = self._failure_history.kept_back, self._settings
        those = holders and all(kept_back.has(m.actor.peer) for m in holders) and not all(m.is_withheld for m in needy)
        if not those:
            self._kept_back_since.pop(stage, None)
            return False
        since = self._kept_back_since.setdefault(stage, now)
        if self._history.version < self._history.end(settings) and kept_back.arrived_since(stage, since):
            self._kept_back_since[stage] = now
            return False
        return now - since > KEPT_BACK_BUDGETS * settings.step_budget_s + longest_load_s(settings.stage_needs, stage)

    def _listens(self, member: Member) -> bool:
        """Return True if a member that lacks the version should load it as a listener, so that no pass waits for it.

        False at the end of the run, and at the start of this process, when all members begin together. But a member
        that listened before the coordinator restarted stays a listener.
        """
        if self._history.version == self._history.end(self._settings):
            return False
        return self._opened_any or member.has_heard_any

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

    def _supply(self, stage: int, needy: list[Member], holders: list[Member], coming: list[Member], now: float) -> None:
        """Tell members that can apply the decision to apply it, and members that lack the version where to fetch it."""
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
            # Include those that have yet to apply the decision. Otherwise, all would fetch from the first one that has
            # applied it.
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
        """Send the last decision again to the members that have its version but have not saved it."""
        history = self._history
        for member in self._members:
            if history.decision is None or member.version != history.version or member.status is None:
                continue
            if member.status.checkpoint_version < history.version and self._tell(member, now):
                self._out.send(member.actor, Decide(history.decision, history.term, save=history.is_asked))

    def _tell(self, member: Member, now: float) -> bool:
        """Return True if the member must be given an order, or be given it again."""
        if member.told_at >= 0 and now - member.told_at < 2 * self._settings.heartbeat_s:
            return False
        member.told_at = now
        return True

    def _may_wait_for_replicas(self, now: float) -> bool:
        """Return True while the first pass after the start of this process may wait for more peers."""
        first = self._members.first_heard_at
        return not self._opened_any and (first is None or now - first < self._first_patience_s)

    @property
    def _all_have_come(self) -> bool:
        """True if there are as many peers as the run asks for, in whatever stages."""
        here = sum(member.lost_at is None for member in self._members)
        return here >= self._settings.stages * self._settings.replicas

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
            self._ask_for_a_seat(stage, now)
            return
        since = self._missing_since.setdefault(stage, now)
        recruit = now - since >= settings.recruit_after_s
        if not history.restorable and self._may_wait_for_replicas(now):
            recruit = False  # its holder may only be late to reconnect
        if history.restorable:
            found.wait("" if crew else self._nobody(stage))
            if not crew and recruit and (self._all_have_come or not self._may_wait_for_replicas(now)):
                self._recruit(stage, now)
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
            found.new_term = self.go_back(target, self._lose(stage, now) or reason)

    def _lose(self, stage: int, now: float) -> str:
        """The run is about to go back, because nobody holds the state of this stage. Others may take the places of
        those that computed it. Return the reason, as text; empty if they do not hold the state either.

        Members that lose a state again, or give it to nobody, are left out until others have computed a step.
        """
        idle, version, budget_s = self._failure_history.idle, self._history.version, self._settings.step_budget_s
        crew = self._members.of_stage(stage)
        kept_back = [m.actor for m in crew if self._failure_history.kept_back.has(m.actor.peer)]
        why = f"neither the archive nor another peer gets version {version} of stage {stage} from "
        why += " and ".join(map(str, kept_back))
        for member in crew:
            peer, reason = member.actor.peer, f"it has lost version {version} of stage {stage}"
            if member.actor in kept_back:
                idle.leave_out(peer, why, budget_s, now)
            elif member.computed == version and idle.was(peer):
                idle.leave_out(peer, f"{reason}, and another one before", budget_s, now)
            elif member.computed == version:
                idle.add(peer, reason, budget_s, now)
        return why if kept_back else ""

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

    def _ask_for_a_seat(self, stage: int, now: float) -> None:
        """Ask a process for another seat, if no stage can spare a replica and for a while no peer has joined that could
        hold this stage.
        """
        here = {member.actor.peer for member in self._members}
        if not here <= self._arrived:
            self._empty_since.clear()  # others may be reconnecting, as after a restart of the coordinator
        self._arrived |= here
        since = self._empty_since.setdefault(stage, now)
        if now - since >= self._settings.recruit_after_s and not self._may_wait_for_replicas(now):
            self._seats.lacking(stage, now)

    def _recruit(self, stage: int, now: float) -> None:
        """Find a peer for a stage without peers while no peer stands by. Move a spare replica, or let a process hold a
        further stage.
        """
        if self.rebalancing.recruit(StageIndex(stage), now) is not None:
            return
        if (member := self._bench.left_aside(stage, now)) is not None:
            self.rebalancing.take_up(member, StageIndex(stage), now)
        else:
            self._seats.lacking(stage, now)
