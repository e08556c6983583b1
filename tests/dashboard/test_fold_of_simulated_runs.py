"""The fold against the core: in simulated runs with their faults, what the log says is what the core knows."""

import json
import os
from pathlib import Path

import pytest

from peers import cli
from peers.fold import RunState, apply
from swarm.events import Event, read_log
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.raft.member import GroupMember
from swarm.simulation.runs.runner import run_plan
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy.sim_coordinator import SimCoordinator

SEEDS = int(os.environ.get("FOLD_SEEDS", "60"))
"""Of each scenario. A thousand are run before a release: FOLD_SEEDS=1000."""
SCENARIOS = ("mixed", "storm", "group", "election", "moves", "joining", "seats", "audited", "tied")


class Comparing:
    """A scribe that folds what it hears and compares it with the core whenever that has handled something."""

    def __init__(self) -> None:
        self.state = RunState()
        self.events = self.compared = 0

    def told(self, coordinator: SimCoordinator, event: Event, now: float) -> None:
        self.events += 1
        apply(self.state, event, now, f"coordinator/{coordinator.actor}")

    def settled(self, coordinator: SimCoordinator) -> None:
        core = coordinator.core.core if isinstance(coordinator.core, GroupMember) else coordinator.core
        state = self.state
        if not isinstance(core, CoordinatorCore) or state.run.voice != f"coordinator/{coordinator.actor}":
            return
        self.compared += 1
        assert (state.run.word, state.run.reason) == core.state
        assert {actor: member.stage for actor, member in state.members.here.items()} == core.stages_held
        if core.phase.value != "starting":
            assert state.run.step == core.decided
        if core.weights and core.open_pass is not None:
            stages = state.pipeline.stages
            assert [dict(zip(s.roster, s.weights, strict=True)) for s in stages] == core.weights


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_state_step_members_and_weights_are_the_cores(scenario: str):
    compared = 0
    for seed in range(SEEDS // len(SCENARIOS) + 1):
        scribe = Comparing()
        outcome = run_plan(plan_of(scenario, seed), scribe=scribe)
        assert outcome.ok, f"{scenario} {seed}: {outcome.invariant}: {outcome.detail}"
        assert scribe.state.malformed == 0
        assert scribe.events > 20
        compared += scribe.compared
    assert compared > 20 * SEEDS // len(SCENARIOS)


def test_simulate_writes_logs_that_fold_to_the_end_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", "--scenario", "storm", "--seeds", "5", "--log", str(tmp_path / "logs"), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 5
    logs = sorted((tmp_path / "logs").glob("*/*/events.jsonl"))
    assert len(logs) == 5
    for log in logs:
        state = RunState()
        for at, event in read_log(log):
            apply(state, event, at, "coordinator")
        assert state.run.finished and state.run.step >= 0 and state.malformed == 0


def test_simulate_refuses_a_folder_with_other_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "0").mkdir()
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", "--seeds", "1", "--log", str(tmp_path)])
    assert ended.value.code == 2
    assert "is not empty" in " ".join(capsys.readouterr().err.replace("│", " ").split())
