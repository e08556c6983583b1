"""How much of a card stages may take with --offload, where the host's memory limits them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_data import DATA

from peers.run.dry_run import StageNeed, dry_run
from peers.stage.budgets import memory_for_states
from peers.stage.machine import Budgets, Machine
from peers.stage.offer import MachineError
from peers.stage.options import JoinOptions
from swarm.compute.memory_table import Mode
from swarm.compute.precision import Precision
from swarm.manifest import RunFile
from swarm.protocol.stage_needs import ComputeKind

MODEL = {"vocab_size": 512, "dim": 64, "layers": 6, "cuts": [1, 5], "heads": 2, "kv_heads": 1, "ffn_dim": 128}


@pytest.fixture(scope="module")
def needs() -> tuple[StageNeed, ...]:
    batch = {"microbatches": 4, "sequences": 1, "sequence_length": 16}
    run = RunFile.model_validate({"model": {**MODEL, "context": 64}, "batch": batch}).resolve(DATA)
    return dry_run(run, Mode("cuda", "bf16", offload=True)).stages


def fits(needs: tuple[StageNeed, ...], states: int) -> list[StageNeed]:
    return [need for need in needs if need.least.device <= states]


def test_stages_may_take_the_whole_card_if_the_host_has_room(needs: tuple[StageNeed, ...]) -> None:
    card = max(need.least.device for need in needs)
    assert memory_for_states(needs, Budgets(card, host=1 << 40)) == card


def test_the_host_limits_what_stages_may_take_of_the_card(needs: tuple[StageNeed, ...]) -> None:
    """Whatever a coordinator places there has room on the host too, several stages as well as one."""
    card = sum(need.least.device for need in needs)
    limited = 0
    for host in range(500_000, 8_000_000, 250_000):
        try:
            states = memory_for_states(needs, Budgets(card, host=host))
        except MachineError:
            assert not limited, "more memory is never worse"
            continue
        limited += states < card
        placed = fits(needs, states)
        assert placed and all(need.least.host <= host for need in placed)
        for one in needs:
            for other in needs:
                if one.least.device + other.least.device <= states:
                    assert one.least.host + other.least.host <= host
    assert limited > 3


def test_a_host_without_room_for_any_stage_is_refused_with_both_sizes(needs: tuple[StageNeed, ...]) -> None:
    with pytest.raises(MachineError, match=r"--offload: a stage .* up to \S+ MB .* may use 1\S* kB.*close other"):
        memory_for_states(needs, Budgets(1 << 40, host=1000))


def test_a_card_that_fits_no_stage_is_for_the_coordinator_to_say(needs: tuple[StageNeed, ...]) -> None:
    assert memory_for_states(needs, Budgets(1000, host=1000)) == 1000


def test_the_coordinator_is_told_what_stages_may_take() -> None:
    machine = Machine(Budgets(memory=1000, host=1000))
    with machine.sit("peer", on_call=False, tell=lambda event: None, changed=lambda: None) as seat:
        assert seat.means(1.0, None, None).memory == 1000
        machine.states = 600
        assert seat.means(1.0, None, None).memory == 600
        assert seat.memory_for_stage == 1000, "graphs may still use the rest"


def test_a_peer_with_offload_is_placed_as_one() -> None:
    options = JoinOptions(device="cuda:1", precision=Precision.BF16, offload=True)
    assert options.mode.kind is ComputeKind.OFFLOAD_BF16
    assert replace(options, offload=False).mode.kind is ComputeKind.CARD_BF16
