"""Peers that come while the others train: they make nobody wait, and the run ends as one machine's would."""

from __future__ import annotations

from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from swarm.events import (
    Gathered,
    MicrobatchAccumulated,
    PassOpened,
    StateFetched,
    StepApplied,
    StepDecided,
)

PEERS = ("p0", "p1", "p2", "p3")
SETS = ("swarm.replicas=3", "swarm.start_timeout_s=2", "model.dim=64", "model.heads=4")
SLOW = "--max-rate=3Mbit"
"""Such that a stage's state takes longer than a step."""


def running(make_swarm: MakeSwarm, steps: int, *sets: str) -> Swarm:
    """Two stages of two replicas, which have decided two steps."""
    swarm = make_swarm("int8", *SETS, f"run.steps={steps}", *sets)
    swarm.coordinate()
    swarm.join_stages(PEERS, dict.fromkeys(PEERS, (SLOW,)))
    swarm.coordinator.wait_for(StepDecided, step=1)
    return swarm


def pauses(coordinator: Process) -> list[float]:
    """Seconds from each decision to the opening of the next step."""
    opened = {e.pass_id.split(":")[1]: at for at, e in coordinator.log if isinstance(e, PassOpened)}
    decided = {e.step: at for at, e in coordinator.log if isinstance(e, StepDecided)}
    return [opened[str(step + 1)] - at for step, at in decided.items() if str(step + 1) in opened]


def decided_while(swarm: Swarm, began: float, ended: float) -> int:
    return sum(isinstance(event, StepDecided) and began < at < ended for at, event in swarm.coordinator.log)


def test_a_peer_that_joins_makes_nobody_wait(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = running(make_swarm, 14)
    p4 = swarm.join("p4", SLOW)
    p4.wait_for(MicrobatchAccumulated)
    swarm.finish()
    came = next((at, event) for at, event in p4.log if isinstance(event, Gathered) and event.what.startswith("state"))
    at, state = came
    assert len(state.by_donor) == 2 and state.refetched == 0
    assert decided_while(swarm, at - state.index_s - state.pieces_s, at) >= 2, "it took longer than a step"
    assert [e for e in p4.of(Gathered) if e.what.startswith("sums")], "what was decided meanwhile"
    first = p4.of(StateFetched)[0].version
    applied = [e.step for e in p4.of(StepApplied)]
    assert applied == list(range(first, 14)), "every step since the version that it loaded, in order"
    assert max(pauses(swarm.coordinator)) < 0.5
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
