"""What the coordinator's events tell is what its core knows, after every input, whatever happens to the swarm."""

from __future__ import annotations

import inspect

import pytest

from swarm import events as e
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import CoordinatorAction, CoordinatorInput
from swarm.protocol.io import Emit
from swarm.simulation.runs.runner import run_seed

SCENARIOS = ("mixed", "group", "seats", "audited", "averaging", "moves", "last-replica", "leave")


class Told:
    """What a reader of the events alone believes, of one life of a core."""

    def __init__(self) -> None:
        self.state = ("", "")
        self.stages: dict[str, int | None] = {}
        self.decided = -1
        self.rosters: dict[int, list[str]] = {}
        self.weights: dict[int, dict[str, float]] = {}
        self.steps: list[e.StepDecided] = []
        self.costs: list[e.FaultCosted] = []
        self.kinds: set[str] = set()

    def hear(self, event: e.Event) -> None:
        self.kinds.add(event.kind)
        match event:
            case e.StateChanged(state, reason):
                self.state = state, reason
            case e.PeerSeen(actor):
                assert actor not in self.stages
                self.stages[actor] = None
            case e.PeerJoined(actor, stage):
                assert actor in self.stages
                self.stages[actor] = stage
            case e.PeerLost(actor) | e.PeerGone(actor):
                del self.stages[actor]
            case e.CoordinatorStarted():
                self.decided = event.decided
            case e.RolledBack(version=version):
                self.decided = version - 1
            case e.TableChanged():
                self.rosters[event.stage] = event.roster
                self.weights[event.stage] = dict(zip(event.roster, event.weights, strict=True))
                assert len(event.rates) == len(event.roster)
            case e.StepDecided():
                self.decided = event.step
                self.steps.append(event)
            case e.PassOpened():
                assert event.replicas == [len(self.rosters[stage]) for stage in range(len(event.replicas))]
                assert event.microbatches > 0
            case e.PassProgress():
                for done, forwarded, total in event.stages:
                    assert 0 <= done <= forwarded <= total
            case e.FaultCosted():
                assert event.seconds >= 0.0 and event.step == self.decided and event.reason
                self.costs.append(event)
            case _:
                pass


def compared(monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """Every life of a core from now on is read along; returns what their readers believe."""
    readers: list[Told] = []
    of: dict[int, tuple[CoordinatorCore, Told]] = {}
    handle = CoordinatorCore.handle

    def handled(core: CoordinatorCore, event: CoordinatorInput, now: float) -> list[CoordinatorAction]:
        actions = handle(core, event, now)
        if id(core) not in of:
            of[id(core)] = core, Told()
            readers.append(of[id(core)][1])
        told = of[id(core)][1]
        for action in actions:
            if isinstance(action, Emit):
                told.hear(action.event)
                check_assignments(core, action.event, told)
        assert told.state == core.state
        assert told.stages == core.stages_held
        assert told.decided == core.decided
        for stage, weights in enumerate(core.weights):
            assert told.weights[stage] == weights
        return actions

    monkeypatch.setattr(CoordinatorCore, "handle", handled)
    return readers


def check_assignments(core: CoordinatorCore, event: e.Event, told: Told) -> None:
    if isinstance(event, e.StepDecided):
        assert len(event.assignments) == core.settings.stages
        for stage, assignment in enumerate(event.assignments):
            assert len(assignment) == core.settings.microbatches
            assert all(0 <= index < len(told.rosters[stage]) for index in assignment)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_reader_of_the_events_knows_what_the_core_knows(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = compared(monkeypatch)
    for seed in range(12 if scenario == "mixed" else 6):
        outcome = run_seed(scenario, seed)
        assert outcome.ok, (seed, outcome.invariant, outcome.detail)
    kinds: set[str] = set().union(*(told.kinds for told in readers))
    expected = {"StateChanged", "PeerSeen", "PeerJoined", "TableChanged", "PassOpened", "PassProgress", "StepDecided"}
    assert expected <= kinds
    if scenario == "mixed":
        assert {"PeerGone", "PlannerLooked", "FaultCosted"} <= kinds
    assert all(told.state[0] for told in readers)


def test_what_a_fault_in_an_evaluation_cost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = compared(monkeypatch)
    assert run_seed("storm", 266).ok
    told = [cost for reader in readers for cost in reader.costs if "+" in cost.pass_id]
    assert [(cost.actors, cost.seconds > 0 and cost.tokens > 0) for cost in told] == [(["peer2.1"], True)]
    readers.clear()
    assert run_seed("last-replica", 6).ok  # here the evaluation's peers are lost, and its step is done again
    first = next(cost for reader in readers for cost in reader.costs)
    assert first.pass_id == "3:0" and first.actors and "its connection broke" in first.reason


def test_states_are_the_words_that_are_documented() -> None:
    words = ("starting", "waiting", "training", "evaluating", "sampling", "finishing", "finished", "stopping")
    text = inspect.getsource(e.StateChanged)
    assert all(word in text for word in words)
