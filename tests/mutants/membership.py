"""Rules of those who come, go and move."""

from __future__ import annotations

from typing import Any, cast

from swarm.protocol.coordinator import divergence as divergence_module
from swarm.protocol.coordinator.audit.selection import Selection
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.departures import Departures
from swarm.protocol.coordinator.membership.delays import Delays
from swarm.protocol.coordinator.membership.doubts import Doubts
from swarm.protocol.coordinator.membership.halves import Halves
from swarm.protocol.coordinator.membership.kept_back import KeptBack
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.stage_costs import Lineup, StageCosts
from swarm.protocol.coordinator.passes import verdict as verdict_module
from swarm.protocol.coordinator.passes.assignment import amend
from swarm.protocol.coordinator.passes.open_pass import OpenPass
from swarm.protocol.coordinator.passes.withheld_work import WithheldWork
from swarm.protocol.coordinator.phase import Phase as CoordinatorPhase
from swarm.protocol.coordinator.placement import rebalancing as rebalancing_module
from swarm.protocol.coordinator.placement.placement import Placement
from swarm.protocol.coordinator.placement.planner import Move, Stay
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.coordinator.placement.withheld_states import WithheldStates
from swarm.protocol.ids import StageIndex
from swarm.protocol.messages import Means
from swarm.protocol.peer.catch_up import CatchUp
from swarm.protocol.peer.io import Apply, RestoreSums
from swarm.protocol.peer.step_cycle import StepCycle
from swarm.protocol.stage_needs import ComputeKind
from swarm.simulation.toy.sim_catch_up import Loans
from tests.mutants.mutant import Mutant, Patch
from tests.mutants.steps import without_self_fence


def _let_go_at_once() -> list[Patch]:
    """Who is leaving is dismissed whatever it has accumulated."""
    return [(OpenPass, "includes", lambda self, *actors: False)]


def _last_copy_let_go() -> list[Patch]:
    """Who is leaving is dismissed when its part in the pass is over, whoever holds its stage then."""
    return [(Departures, "_free", lambda self, *_: "its part is over")]


def _taken_from_a_leaver() -> list[Patch]:
    """What who is leaving has not reported is given to others before it answers."""
    drain = WithheldWork.drain

    def move_at_once(self: WithheldWork, now: float) -> Any:
        found, pass_state = drain(self, now), self._pass_state
        for actor, microbatches in list(pass_state.releasing.items()):
            stage = pass_state.stage_of(actor)
            if found is None and stage is not None and actor in self._members.withheld():
                self._announcements.publish(
                    stage, amend(pass_state.tables[stage], [], microbatches, pass_state.weights), "it is leaving"
                )
        return found

    return [(WithheldWork, "drain", move_at_once), without_self_fence()]


def _sums_unchecked() -> list[Patch]:
    """Whatever sums come are applied."""

    def apply(self: CatchUp, event: Any) -> Apply | None:
        if event.attempt != self._restoring:
            return None
        self._restoring = None
        return Apply(self._steps[event.attempt.pass_id.step].decision, event.attempt)

    return [(CatchUp, "restored", apply)]


def _step_left_out() -> list[Patch]:
    """The newest sums that are here are applied."""
    advance = CatchUp.advance

    def newest(self: CatchUp) -> RestoreSums | None:
        order = advance(self)
        later = [step for step, each in self._steps.items() if each.fetched]
        if order is None or max(later) == order.attempt.pass_id.step:
            return order
        self._held_stage.version = max(later)
        self._restoring = self._attempt(self._steps[max(later)].decision)
        return RestoreSums(self._restoring)

    return [(CatchUp, "advance", newest)]


def _in_the_roster_too_early() -> list[Patch]:
    """Who listens is in the next roster, and begins with what it holds."""
    begin = StepCycle._begin_if_ready

    def at_once(self: StepCycle, now: float) -> bool:
        opening, held_stage = self._opening, self._held_stage
        if opening is not None and held_stage.loading is None and held_stage.version is not None:
            held_stage.version = opening.pass_id.version
        return begin(self, now)

    return [
        (Placement, "_enters", lambda self, member: self._listens(member) and member.version is not None),
        (StepCycle, "_begin_if_ready", at_once),
    ]


def _copied_too_late() -> list[Patch]:
    """A donor copies its state when somebody comes for it, whatever it has applied since."""
    pull = Loans._pull

    def live(self: Loans, job: Any) -> None:
        for donor in self._shuffled(tuple(donor.actor for donor in job[1].order.donors)):
            donor.loans.copies = dict.fromkeys(donor.loans.copies, donor.state)
        pull(self, job)

    return [(Loans, "_pull", live)]


def _checkpoints_kept_back() -> list[Patch]:
    """Only those that computed a version may report its checkpoint, whether or not anybody gets it."""
    return [(KeptBack, "add", lambda self, stage, peers: None)]


def _state_kept_back() -> list[Patch]:
    """The run waits for the state of a stage's holders, whoever gets it."""
    return [(WithheldStates, "_nobody_gets", lambda self, *_: False)]


def _loses_again() -> list[Patch]:
    """Who loses its state loads an older one, and is relied upon as before."""
    return [(WithheldStates, "lose", lambda self, *_: "")]


def _last_replica_moved() -> list[Patch]:
    """The stage with the fewest peers has the least to do, so it seems, and gives one away."""

    def vacate(lineup: Lineup, download_s: float, horizon_s: float, barred: Any = ()) -> Move | Stay:
        source = min(range(len(lineup.crews)), key=lambda s: len(lineup.crews[s]))
        stage = max(range(len(lineup.crews)), key=lambda s: len(lineup.crews[s]))
        movable = [worker for worker in lineup.crews[source] if worker.movable]
        if source == stage or not movable:
            return Stay("nobody can")
        return Move(movable[0].actor, StageIndex(source), StageIndex(stage), 1.0, 0.0, "a broken plan")

    return [(rebalancing_module, "plan_move", vacate)]


def _moves_at_once() -> list[Patch]:
    consider = Rebalancing.consider

    def again(self: Rebalancing, now: float) -> Any:
        self._due = self._due or any(m.move_number and not m.has_worked for m in self._members)
        return consider(self, now)

    return [(Rebalancing, "consider", again), (Rebalancing, "longest_way_s", property(lambda self: -1.0))]


def _moved_before_drained() -> list[Patch]:
    """The next view is made while the pass is open."""
    deadlines = CoordinatorCore._deadlines

    def move_now(self: CoordinatorCore, now: float) -> None:
        deadlines(self, now)
        if self.phase is CoordinatorPhase.OPEN:
            self._placement.rebalancing._due = True
            self._placement.rebalancing.consider(now)

    return [(CoordinatorCore, "_deadlines", move_now)]


def _seat_given_up_at_once() -> list[Patch]:
    """Who was taken on is sent away again, whoever else holds its stage."""
    return [(Seats, "_needless", lambda self, member: "it has had its turn")]


def _one_stage_believed() -> list[Patch]:
    """What one stage alone says of itself ends the run, or sends it back."""

    def confirmed(stages: Any, *others: Any) -> bool:
        return bool(stages)

    return [(module, "is_confirmed", confirmed) for module in (divergence_module, verdict_module)]


def _reloads_for_ever() -> list[Patch]:
    """Who is doubted loads its state again and again, and keeps its stage."""
    return [(Doubts, "doubt", lambda self, doubted: list(doubted.who))]


def _devices_come_back() -> list[Patch]:
    """A second device of who is left out of a step that is not finite takes part."""
    return [(Halves, "leaves_out", lambda self, peer: peer in self.left_out)]


def _audits_left_out() -> list[Patch]:
    """Steps are audited when a peer is new or is doubted, and none is drawn."""
    plain = Selection.reason

    def undrawn(self: Selection, *of: Any) -> str:
        reason = plain(self, *of)
        return "" if reason.startswith("one step in") else reason

    return [(Selection, "reason", undrawn)]


def _kinds_alike() -> list[Patch]:
    """What a stage needs is reckoned as if every peer computed on a CPU in fp32."""
    need = StageCosts.need

    def on_a_cpu(self: StageCosts, member: Any, stage: int, *, alone: bool) -> int | None:
        usual = Means(kind=ComputeKind.HOST_FP32)
        return need(self, cast(Member, usual), stage, alone=alone)

    return [(StageCosts, "need", on_a_cpu)]


def _late_alone() -> list[Patch]:
    """Nobody takes a place beside a late peer."""
    return [(Delays, "was_alone", lambda self, peer: False)]


MEMBERSHIP = (
    Mutant("late alone", "who is late alone gets another peer beside it", _late_alone, "hindering"),
    Mutant("devices come back", "a person's devices are in one half", _devices_come_back, "passes", 810_000),
    Mutant("audits left out", "one step in each period is audited", _audits_left_out, "audited"),
    Mutant("one stage believed", "what ends a run is seen by two stages", _one_stage_believed, "alone"),
    Mutant("checkpoints kept back", "others' copies count at last", _checkpoints_kept_back, "keeping"),
    Mutant("state kept back", "what nobody gets is lost", _state_kept_back, "keeping"),
    Mutant("loses again", "who loses its state makes room for others", _loses_again, "keeping"),
    Mutant("reloads for ever", "who is doubted twice makes room for others", _reloads_for_ever, "alone"),
    Mutant("sums unchecked", "who catches up applies what was decided", _sums_unchecked, "joining"),
    Mutant("step left out", "who catches up applies every step, in order", _step_left_out, "joining"),
    Mutant("in the roster too early", "who begins a pass holds its version", _in_the_roster_too_early, "joining"),
    Mutant("copied too late", "a copy is of the version that was asked for", _copied_too_late, "joining"),
    Mutant("let go at once", "who is leaving stays until its part in the step is decided", _let_go_at_once, "leave"),
    Mutant("last copy let go", "who holds a stage alone hands it on before it goes", _last_copy_let_go, "leave"),
    Mutant(
        "taken from a leaver",
        "only what is tombstoned moves, also when its owner leaves",
        _taken_from_a_leaver,
        "leave",
    ),
    Mutant("last replica moved", "a stage gives nobody away that it cannot do without", _last_replica_moved, "moves"),
    Mutant("moves at once", "the next peer moves when the one before has arrived", _moves_at_once, "moves"),
    Mutant("moved before drained", "a peer leaves its stage between passes", _moved_before_drained, "moves"),
    Mutant("kinds alike", "no peer gets a stage that does not fit into its memory", _kinds_alike, "memory"),
    Mutant("seat given up at once", "a seat is held until others hold its stage", _seat_given_up_at_once, "seats"),
)
