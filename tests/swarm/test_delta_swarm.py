"""Codec delta in real processes, over three epochs: peers die and come back; the record says what crossed whole."""

from collections.abc import Callable
from signal import SIGKILL

import pytest
from conftest import MakeSwarm
from swarm_processes import EVEN, Swarm

from swarm.events import MicrobatchAccumulated, MicrobatchForwarded, PeerFenced, StateFetched, StepApplied, StepDecided

HIT = "1:4"
BLOCKS = 3
PEERS = ("p0", "p1", "p2", "p3")

Reference = Callable[[Swarm], tuple[str, ...]]


@pytest.fixture
def epochs() -> int:
    return 3


@pytest.fixture
def swarm(make_swarm: MakeSwarm, epochs: int) -> Swarm:
    """Three steps are an epoch."""
    samples = make_swarm("int8").manifest.windows
    sequences = samples // (8 * BLOCKS)
    sets = (
        "codec.forward=delta:4",
        "batch.order=steps",
        f"batch.sequences={sequences}",
        f"run.steps={epochs * BLOCKS}",
    )
    made = make_swarm("int8", *sets, "timing.step_budget_s=600")
    assert made.manifest.step_blocks == BLOCKS
    return made


def changes(swarm: Swarm) -> list[int]:
    """By step, how many microbatches crossed as changes."""
    decided = swarm.coordinator.of(StepDecided)
    return [swarm.manifest.batch.microbatches - int(event.key_frames[0], 16).bit_count() for event in decided]


def test_a_sender_is_killed_in_a_later_visit(swarm: Swarm) -> None:
    swarm.coordinate()
    options = dict.fromkeys(PEERS, (EVEN,))
    options["p0"] += (f"--fault=kill@MicrobatchForwarded:1,pass_id={HIT}", "--slots=1")
    swarm.join_stages(PEERS, options)
    swarm.finish()
    p0 = swarm.peers["p0"]
    assert p0.code == -SIGKILL and len(p0.of(MicrobatchForwarded, pass_id=HIT)) == 1
    assert [event.actor for event in swarm.coordinator.of(PeerFenced, pass_id=HIT)] == [p0.actor]
    crossed = changes(swarm)
    assert crossed[:BLOCKS] == [0] * BLOCKS, "first visits are whole"
    assert sum(crossed[BLOCKS:]) > 8, "later ones are changes"
    assert sum(crossed[BLOCKS:]) < 8 * 2 * BLOCKS, "but for those that p0 would have sent"
    swarm.assert_replicas_identical()
    swarm.assert_command_says_equal()


@pytest.mark.parametrize("epochs", [5])
def test_a_receiver_is_killed_and_comes_back(swarm: Swarm, epochs: int, reference: Reference) -> None:
    swarm.coordinate()
    options = dict.fromkeys(PEERS, (EVEN,))
    options["p1"] += (f"--fault=kill@MicrobatchAccumulated:1,pass_id={HIT}",)
    options["p3"] += ("--fault=stop@StepApplied,step=6",)
    swarm.join_stages(PEERS, options)
    swarm.rejoin("p1", sibling="p3")
    p1 = swarm.peers["p1"]
    swarm.finish()
    fetched = p1.of(StateFetched)  # two, if it came when the sums of the step were no longer to be had
    assert {event.stage for event in fetched} == {1}
    assert "own checkpoint" not in {event.source for event in fetched}, "from its sibling: its own disk is not asked"
    assert p1.of(StepApplied, step=epochs * BLOCKS - 1) and p1.of(MicrobatchAccumulated)
    crossed = changes(swarm)
    assert crossed[:BLOCKS] == [0] * BLOCKS and sum(crossed[BLOCKS:]) > 8
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
