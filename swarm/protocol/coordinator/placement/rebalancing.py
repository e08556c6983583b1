"""Chooses stages for newcomers and moves peers during the run. It calls the planner with the coordinator's
measurements.

The coordinator measures everything that the planner needs: the seconds from being assigned a stage to working in it,
the seconds per step, and how often peers leave. So no period must be configured: moves are considered after every
decided step.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarm.events import ManyReplicas, PeerJoined, PeerMoved
from swarm.protocol.catch_up_forecast import forecast
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.placement.churn import Churn, expected_quiet_s, replica_cap, undisturbed_replicas
from swarm.protocol.coordinator.placement.hysteresis import Hysteresis
from swarm.protocol.coordinator.placement.planner import Claim, Move, claim, plan_move, recruit
from swarm.protocol.coordinator.placement.planner_report import PlannerReport
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import Observed

DWELL_STEPS = 4
"""Minimum number of steps for which a peer stays in its stage, because its effect must be measured."""
DWELL_DOWNLOADS = 2
"""Minimum stay in a stage, as a multiple of the time that it takes to load the stage, so that a peer works for at least
half of its time.
"""
ROAMED, MOST_ROAMED = 2, 8
"""From this number of changes of its stage that nobody has ordered, a peer counts in plans only after a minimum stay,
which doubles with each change up to this number. One such change may be honest: an order of an earlier coordinator.
"""


class Rebalancing:
    """Call `claim` for a member without a stage, `consider` between passes, and `opened` and `decided` for each
    pass.
    """

    def __init__(
        self, settings: Settings, history: History, members: Members, stage_costs: StageCosts, out: Outbox
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self._stage_costs = stage_costs
        self._churn = Churn()
        self._steps = Observed()
        self._reduces = Observed()
        self._arrivals = Observed()
        self._began_at: float | None = None
        """The time when the first pass opened. Members placed before it had to wait for others."""
        self._warned = False
        self._moves = 0
        self._hysteresis = Hysteresis()
        self._told = PlannerReport(out)
        self._due = False
        """True if a step was decided since moves were last considered."""

    # ------------------------------------------------------------ measurements

    def opened(self, actors: Iterable[Actor], now: float) -> None:
        """A pass begins with these actors."""
        self._churn.present(len(self._members), now)
        for actor in actors:
            member = self._members.get(actor)
            if member is None or member.has_worked:
                continue
            member.has_worked = True
            if not member.move_number and member.stage is not None:
                self._hysteresis.changed(member.stage)
            if self._began_at is not None and member.placed_at >= self._began_at:
                self._arrivals.add(now - member.placed_at)
        if self._began_at is None:
            self._began_at = now

    def decided(self, step_s: float, reduce_s: float | None) -> None:
        """A step is decided after `step_s` seconds. `reduce_s`: seconds since its last stage was sealed, if known."""
        self._steps.add(step_s)
        if reduce_s is not None:
            self._reduces.add(reduce_s)
        self._stage_costs.learn(self._members, self._history.controls.banned)
        self._due = True
        self._warn()

    def _warn(self) -> None:
        """Warn once if many reductions lose a peer. A warning does not change the planned number of replicas."""
        reduce_s, planned = self._reduces.quantile(0.5), self._settings.replicas
        if self._warned or reduce_s is None:
            return
        most = undisturbed_replicas(self._churn.departures_per_s, reduce_s)
        if most < planned:
            self._warned = True
            self._out.emit(ManyReplicas(planned, most, reduce_s, 3600.0 * self._churn.departures_per_s))

    def lost(self, member: Member, now: float) -> None:
        """A member is gone."""
        if member.stage is not None:
            self._hysteresis.changed(member.stage)
        self._churn.present(len(self._members), now)
        self._churn.left(member.actor.peer, now)

    @property
    def most(self) -> int:
        """Largest number of peers in a stage."""
        settings = self._settings
        if settings.max_replicas:
            return settings.max_replicas
        longest = settings.step_budget_s / 3  # a reduction that stands still for so long is started again
        reduce_s = self._reduces.quantile(0.95)
        return replica_cap(
            self._churn.departures_per_s,
            longest if reduce_s is None else reduce_s,
            settings.microbatches,
            settings.replicas,
        )

    @property
    def step_s(self) -> float:
        """Recent seconds per step; 0 before the first decision."""
        return self._steps.quantile(0.5) or 0.0

    def forecast(self, member: Member, stage: StageIndex) -> None:
        """Emit a forecast whether a peer that takes up a stage now can catch up."""
        told = forecast(member.actor, stage, self._settings, member.downlink, self.step_s)
        if told is not None:
            self._out.emit(told)

    @property
    def arrival_s(self) -> float:
        """Seconds from being assigned a stage to working in it. Before the first measurement: the step budget."""
        seen = self._arrivals.quantile(0.5)
        return self._settings.step_budget_s if seen is None else seen

    @property
    def dwell_s(self) -> float:
        return max(DWELL_STEPS * self.step_s, DWELL_DOWNLOADS * self.arrival_s)

    @property
    def longest_way_s(self) -> float:
        """Longest time in seconds for which other moves wait while a peer moves."""
        return 2 * self.dwell_s + self._settings.step_budget_s

    @property
    def horizon_s(self) -> float:
        """Expected seconds until a peer joins or leaves one of two stages; at least the minimum stay."""
        peers = 2 * len(self._members) / self._settings.stages
        return max(self.dwell_s, expected_quiet_s(self._churn.departures_per_s, max(2, round(peers))))

    # ------------------------------------------------------------ choices

    def claim(self, member: Member) -> Claim | None:
        """The stage for a member without one. None: it stands by.

        The first choice is the stage of its checkpoint, if that stage lacks replicas. The second is the stage that the
        member was loading when it was lost. Otherwise the planner chooses, and prefers stages in which the owner has no
        other device.
        """
        settings, barred = self._settings, self._stage_costs.barred(self._members, member)
        wanted, people = member.preferred, self._members.people
        shunned = self._members.stages_of_people().get(people.of(member.actor.peer), frozenset[int]())
        if wanted is not None and 0 <= wanted < settings.stages and wanted not in barred | shunned:
            held = len(self._members.crew(wanted))
            if held < settings.replicas:
                return Claim(wanted, f"stage {wanted} had {held} of {settings.replicas} replicas")
        begun = member.interrupted
        if begun is not None and begun not in barred and len(self._members.crew(begun)) < self.most:
            return Claim(begun, f"it has some of the state of stage {begun} already")
        lineup = self._stage_costs.newcomers_lineup(self._members, settings.replicas, self.most)
        return claim(lineup, self._stage_costs.speed(member), self._stage_costs.uplink(member), barred, shunned)

    def may_hold(self, member: Member, stage: int) -> bool:
        """Return True if a member without a stage could get this one."""
        return stage not in self._stage_costs.barred(self._members, member)

    def why_not(self, member: Member) -> str:
        """The reason why there is no stage for a member, as text."""
        costs, barred = self._stage_costs, self._stage_costs.barred(self._members, member)
        free = [s for s in range(self._settings.stages) if len(self._members.crew(s)) < self.most]
        others = costs.held_by(self._members.companions(member))
        needs = [costs.need(member, s, alone=not others) for s in free if s in barred and s not in others]
        lacking = [need for need in needs if need is not None]
        if lacking and barred.issuperset(free) and member.memory is not None:
            beside = f", {sum(others.values()) / 1e9:.3g} GB of it for other peers in its process" if others else ""
            return (
                f"it has {member.memory / 1e9:.3g} GB of memory to plan with{beside}, but the smallest free stage "
                f"needs {min(lacking) / 1e9:.3g} GB on {member.kind.value}: stands by"
            )
        if free:
            return "another peer of its process holds the free stage: stands by"
        return f"every stage has its {self.most} replicas: stands by"

    def consider(self, now: float) -> Move | None:
        """Called after every decided step: move at most one peer, if that is worth it."""
        if not self._due or self._settings.stages < 2:
            return None
        self._due = False
        dwell_s = self.dwell_s

        def settled(member: Member) -> bool:
            stays_s = dwell_s * 2.0 ** min(member.roamed, MOST_ROAMED)
            return member.roamed < ROAMED or now - member.placed_at >= stays_s

        for member in self._members:
            on_the_way = member.move_number > 0 and not member.has_worked and not member.given_up
            if on_the_way and settled(member) and now - member.placed_at < self.longest_way_s:
                return None  # one move at a time

        def movable(member: Member) -> bool:
            return member.has_worked and now - member.placed_at >= dwell_s and self._is_ready(member)

        lineup = self._stage_costs.lineup(
            self._members, self._settings.replicas, self.most, self._is_ready, movable, settled
        )
        found = plan_move(lineup, self.arrival_s, self.horizon_s, self._hysteresis.barred(now, dwell_s))
        self._told.tell(lineup, found)
        if isinstance(found, Move):
            self._carry_out(found, now)
            return found
        return None

    def recruit(self, stage: StageIndex, now: float) -> Move | None:
        """Find a peer for a stage without peers while no peer stands by: a replica that another stage can spare."""
        lineup = self._stage_costs.lineup(self._members, self._settings.replicas, self.most, self._is_ready)
        found = recruit(lineup, stage)
        if found is not None:
            self._carry_out(found, now)
        return found

    def take_up(self, member: Member, stage: StageIndex, now: float) -> None:
        """Move a member that has no work in its own stage to a stage without peers."""
        assert member.stage is not None
        reason = f"moved from stage {member.stage}, where it has no work: stage {stage} has no peer"
        self._carry_out(Move(member.actor, member.stage, stage, 0.0, 0.0, reason), now)

    def _is_ready(self, member: Member) -> bool:
        """Return True if the member has the current version, or needs only to apply the last decision."""
        return member.is_current(self._history.version, self._history.decision)

    def _carry_out(self, move: Move, now: float) -> None:
        member = self._members.get(move.actor)
        assert member is not None
        self._moves += 1
        self._hysteresis.moved(move.source, move.stage, now)
        member.move(move.stage, self._history.version, self._moves, now)
        self._out.emit(PeerMoved(str(move.actor), move.source, move.stage, move.gain, move.cost, move.reason))
        self._out.emit(PeerJoined(str(move.actor), move.stage, f"moves from stage {move.source}"))
        self.forecast(member, move.stage)
