"""A swarm as a flow: which share of the possible work gets done when peers come and go, under the real placement rules.

Newcomers and moves are decided by the coordinator's own `Placement` and planner, with the values that it would measure.
The work itself is a simple model. A stage computes the microbatches of a step at the summed rate of its peers, and the
step is over when the slowest stage is done. Taking up a stage takes state bytes ÷ link rate, and a peer works from the
next step on. When a peer dies, its share of the open step is lost, and its siblings repeat it. When the last copy of a
stage is lost, so is all work since the last checkpoint. Passes, messages and reduces are not simulated;
`swarm.simulation.runs.world` does this.

The possible work at a moment is the most that the present peers could do if each of them had every state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from random import Random
from typing import Any

from benchmarks.preemptions import Preemptions
from swarm.events import PeerMoved
from swarm.manifest import OptimizerSection
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.placement.placement import Placement
from swarm.protocol.coordinator.placement.rebalancing import Rebalancing
from swarm.protocol.coordinator.placement.seats import Seats
from swarm.protocol.ids import Actor, StageIndex, Term
from swarm.protocol.io import Emit
from swarm.protocol.messages import Join, Status
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

_ME = Actor("coordinator", 0)


@dataclass(frozen=True, slots=True)
class Course:
    """The simulated course. `period_s`: seconds between considered moves; 0: after every step; None: no peer moves."""

    stages: int
    preemptions: Preemptions
    period_s: float | None = 0.0
    microbatches: int = 64
    seconds_per_microbatch: float = 2.0
    """Seconds of forward and backward in a stage of cost 1, at a peer of speed 1."""
    state_bytes: float = 2e9
    link_bytes_per_s: float = 25e6
    spread: float = 1.0
    """The factor between the fastest and the slowest peer; speeds are log-uniform between them."""
    costs: tuple[float, ...] = ()
    """The costs of the stages. Empty: 1 each."""
    checkpoint_every: int = 10
    max_replicas: int = 1024
    """Largest number of replicas of a stage."""
    claims: bool = True
    """False: newcomers take a random stage, as in a swarm without placement."""
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """The result. `done` and `possible` are numbers of microbatches."""

    done: float = 0.0
    possible: float = 0.0
    moves: int = 0
    hours: float = 0.0
    stood_by_s: float = 0.0
    """Peer-seconds in which peers had no stage."""
    starved_s: float = 0.0
    """Seconds in which some stage had no peer."""
    rollbacks: int = 0

    @property
    def share(self) -> float:
        """The share of the possible work that was done."""
        return self.done / self.possible if self.possible else 1.0

    @property
    def moves_per_hour(self) -> float:
        return self.moves / self.hours if self.hours else 0.0


def flow(course: Course) -> Outcome:
    """Run a course from its beginning to the end of its trace."""
    return _Flow(course).run()


def best_rate(speeds: Sequence[float], costs: Sequence[float]) -> float:
    """Microbatches per second of the best arrangement. For equal speeds it is exact, otherwise an upper bound.

    The bound allows every peer to be divided among the stages, so shares of it are understated.
    """
    if len(speeds) < len(costs):
        return 0.0
    if max(speeds) <= min(speeds) * (1 + 1e-9):
        stages = [(1 / cost, cost) for cost in costs]  # (rate, cost): the slowest gets one more until nobody is left
        heapify(stages)
        for _ in range(len(speeds) - len(costs)):
            rate, cost = stages[0]
            heapreplace(stages, (rate + 1 / cost, cost))
        return stages[0][0] * speeds[0]
    return sum(speeds) / sum(costs)


@dataclass(slots=True)
class _Node:
    actor: Actor
    speed: float
    member: Member
    download: int = 0
    """Number of its newest download. If an older download ends, it belongs to a stage that the node has left."""
    stage: int | None = None
    """The stage in which it is, or to which it moves."""
    ready: bool = False
    """True if the node has the state."""
    measured: int | None = None
    """The stage in which its speed was measured."""
    works: bool = False
    """True if the node takes part in the open step."""


class _Flow:
    def __init__(self, course: Course) -> None:
        self.course = course
        self.costs = course.costs or (1.0,) * course.stages
        self.outcome = Outcome(hours=course.preemptions.seconds / 3600)
        self._rng = Random(f"flow/{course.seed}")
        self._now = 0.0
        self._nodes: dict[int, _Node] = {}
        self._heap: list[tuple[float, int, str, Any]] = []
        self._sequence = 0
        self._possible = 0.0
        """Microbatches per second that are possible now."""
        self._rates = [0.0] * course.stages
        """Microbatches per second of each stage."""
        self._left = [0.0] * course.stages
        """Microbatches of the open step that each stage still has to do."""
        self._open_since: float | None = None
        """The time since which the present step is open. None while a stage has no peer."""
        self._checkpoint = 0
        """Number of steps that the last checkpoint contains."""
        self._steps = 0
        self._considered_at = 0.0
        settings = _settings(course)
        self._settings = settings
        self._members = Members()
        self._out = Outbox(_ME)
        self._history = History(Term(1), None, 0)
        stage_costs = StageCosts(course.stages)
        self._rebalancing = Rebalancing(settings, self._history, self._members, stage_costs, self._out)
        failures = FailureHistory(self._members.people)
        self._placement = Placement(
            _ME,
            settings,
            self._history,
            self._members,
            self._rebalancing,
            Seats(settings, self._history, self._members, stage_costs, failures, self._out),
            failures,
            self._out,
        )

    def run(self) -> Outcome:
        trace = self.course.preemptions
        for change in trace.changes:
            self._at(change.at_s, "change", change)
        for number in range(trace.nodes):
            self._come(number, ready=True)
        self._changed()
        self._open()
        while True:
            at, kind, what = self._next(trace.seconds)
            self._pass_time(at)
            if kind == "end":
                return self.outcome
            if kind == "step":
                self._decided()
            elif kind == "loaded":
                node, number = what
                if node.download == number:
                    node.ready = True
                    node.member.version = 0
                    if self._open_since is None:
                        self._open()  # somebody waited for this
            else:
                for number in what.go:
                    self._go(number)
                for number in what.come:
                    self._come(number)
                self._changed()

    # ------------------------------------------------------------ time

    def _at(self, at: float, kind: str, what: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (at, self._sequence, kind, what))

    def _next(self, end_s: float) -> tuple[float, str, Any]:
        """The next event: the end of the step, or what is planned."""
        ends = [
            left / rate if rate else math.inf if left else 0.0
            for left, rate in zip(self._left, self._rates, strict=True)
        ]
        step_at = self._now + max(ends) if self._open_since is not None else math.inf
        event_at = self._heap[0][0] if self._heap else math.inf
        if min(step_at, event_at) >= end_s:
            return end_s, "end", None
        if step_at <= event_at:
            return step_at, "step", None
        at, _, kind, what = heappop(self._heap)
        return at, kind, what

    def _pass_time(self, at: float) -> None:
        seconds = at - self._now
        if self._open_since is not None:
            self._left = [max(0.0, left - rate * seconds) for left, rate in zip(self._left, self._rates, strict=True)]
        self.outcome.possible += self._possible * seconds
        self.outcome.stood_by_s += seconds * sum(node.stage is None for node in self._nodes.values())
        self.outcome.starved_s += seconds * (self._open_since is None)
        self._now = at

    # ------------------------------------------------------------ peers

    def _come(self, number: int, ready: bool = False) -> None:
        spread = self.course.spread
        speed = spread ** (self._rng.random() - 0.5) if spread > 1 else 1.0
        actor = Actor(f"peer{number}", 1)
        member = self._members.add(actor, self._now)
        member.join(Join(actor, None, speed))
        node = _Node(actor, speed, member)
        self._nodes[number] = node
        if not self.course.claims:
            stage = number % self.course.stages if ready else self._rng.randrange(self.course.stages)
            member.place(StageIndex(stage), self._now)
        self._place(at_once=ready)

    def _place(self, at_once: bool = False) -> None:
        """Let the coordinator place all nodes without a stage. Their downloads begin."""
        self._placement.place(self._now)
        for node in self._nodes.values():
            if node.member.stage != node.stage:
                self._take_up(node, at_once)
        self._out.take()

    def _take_up(self, node: _Node, at_once: bool = False) -> None:
        node.stage = node.member.stage
        node.ready = node.works = False
        node.member.status = node.measured = None
        node.download += 1
        if at_once:
            node.ready = True
            node.member.version = 0
        else:
            seconds = self.course.state_bytes / self.course.link_bytes_per_s
            self._at(self._now + seconds, "loaded", (node, node.download))

    def _go(self, number: int) -> None:
        """Let a node die, with its share of the open step."""
        node = self._nodes.pop(number)
        self._members.remove(node.actor)
        self._rebalancing.lost(node.member, self._now)
        if not node.works:
            return
        assert node.stage is not None
        crew = [n for n in self._nodes.values() if n.works and n.stage == node.stage]
        if crew:
            share = node.speed / (node.speed + sum(n.speed for n in crew))
            self._left[node.stage] += share * (self.course.microbatches - self._left[node.stage])
            return
        self._open_since = None
        if not any(n.ready and n.stage == node.stage for n in self._nodes.values()):
            self.outcome.rollbacks += 1
            self.outcome.done -= (self._steps - self._checkpoint) * self.course.microbatches
            self._steps = self._checkpoint

    def _changed(self) -> None:
        """The present nodes have changed: compute the rates again."""
        seconds = self.course.seconds_per_microbatch
        self._possible = best_rate([n.speed for n in self._nodes.values()], self.costs) / seconds if self._nodes else 0
        self._place()
        self._flow()
        if self._open_since is None:
            self._staff()

    def _flow(self) -> None:
        """The rate at which the open step progresses."""
        self._rates = [0.0] * self.course.stages
        for node in self._nodes.values():
            if node.works and node.stage is not None:
                self._rates[node.stage] += node.speed / self.costs[node.stage] / self.course.seconds_per_microbatch

    def _staff(self) -> None:
        """Send a node to a stage in which none works, unless one is already on the way."""
        for stage in range(self.course.stages):
            if not any(n.stage == stage for n in self._nodes.values()) and self.course.period_s is not None:
                self._rebalancing.recruit(StageIndex(stage), self._now)
                self._moved()
        self._open()

    # ------------------------------------------------------------ steps

    def _open(self) -> None:
        """Open the next step, with all nodes that have their state."""
        held = {node.stage for node in self._nodes.values() if node.ready}
        if len(held - {None}) < self.course.stages:
            return
        for node in self._nodes.values():
            node.works = node.ready
        self._open_since = self._now
        self._left = [float(self.course.microbatches)] * self.course.stages
        self._rebalancing.opened([node.actor for node in self._nodes.values() if node.works], self._now)
        self._flow()

    def _decided(self) -> None:
        assert self._open_since is not None
        step_s = self._now - self._open_since
        self._steps += 1
        self.outcome.done += self.course.microbatches
        if self._steps % self.course.checkpoint_every == 0:
            self._checkpoint = self._steps
        for node in self._nodes.values():
            if node.works and node.stage is not None and node.measured != node.stage:
                node.measured = node.stage
                seconds = self.costs[node.stage] * self.course.seconds_per_microbatch / node.speed
                node.member.status = Status(node.actor, StageIndex(node.stage), 0, seconds_per_microbatch=seconds)
                node.member.worked(self._steps)
        self._rebalancing.decided(step_s, None)
        period = self.course.period_s
        if period is not None and self._now - self._considered_at >= period:
            self._considered_at = self._now
            self._rebalancing.consider(self._now)
            self._moved()
        self._open_since = None
        self._open()
        if self._open_since is None:
            self._staff()

    def _moved(self) -> None:
        for action in self._out.take():
            if isinstance(action, Emit) and isinstance(action.event, PeerMoved):
                self.outcome.moves += 1
                node = next(n for n in self._nodes.values() if str(n.actor) == action.event.actor)
                self._take_up(node)
                node.member.moving = False


def _settings(course: Course) -> Settings:
    return Settings(
        stages=course.stages,
        microbatches=course.microbatches,
        steps=1 << 30,
        tokens_per_step=course.microbatches,
        targets_per_step=course.microbatches,
        optimizer=OptimizerSection(),
        replicas=2,
        max_replicas=course.max_replicas,
        evaluate_every=0,
        evaluate_microbatches=0,
        sample_tokens=0,
        vocabulary=0,
        checkpoint_every=course.checkpoint_every,
        step_budget_s=300.0,
        recruit_after_s=0.0,
        start_timeout_s=1.0,
    )
