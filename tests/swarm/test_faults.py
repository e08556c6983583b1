"""One fault each, at a named moment: the run ends with the digests of the single-process run, and the logs prove it.

Two stages, two replicas: p0 and p2 hold stage 0, p1 and p3 stage 1; p4 stands by. The pass that is hit is that of step
2, "1:2": three more would follow.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
from collections.abc import Callable

import pytest
from combinations import in_turn, only_long
from conftest import CODECS, MakeSwarm
from swarm_processes import Process, Swarm

from swarm.events import (
    CheckpointArchived,
    CheckpointWritten,
    CoordinatorStarted,
    Event,
    FrameRecovered,
    LoopBlocked,
    MessagesDropped,
    MicrobatchAccumulated,
    MicrobatchForwarded,
    PassOpened,
    PeerFenced,
    PeerJoined,
    PeerLost,
    PeerWorked,
    ProcessStarted,
    ProcessStopped,
    ReduceCancelled,
    ReduceStarted,
    ResourcesMeasured,
    RolledBack,
    StageAmended,
    StagePrepared,
    StateFetched,
    StepAborted,
    StepApplied,
    StepDecided,
    StepMeasured,
    StreamBroken,
    TrafficMeasured,
)

PEERS = ("p0", "p1", "p2", "p3")
HIT = "1:2"
_BESIDES = (
    CheckpointWritten | LoopBlocked | MessagesDropped | PeerWorked | StreamBroken | TrafficMeasured | ResourcesMeasured
)
LONG, PACE = "run.steps=14", "--pace=0.03,0.06"
"""For what must still find steps to do when it comes back: few of them, each a third of a second at least."""


def kill_p0_when_p4_stands_by(swarm: Swarm) -> None:
    swarm.coordinator.wait_for(PeerJoined, actor=swarm.peers["p4"].actor)
    swarm.peers["p0"].wait_for(MicrobatchForwarded, pass_id=HIT)
    swarm.peers["p0"].kill()


def kill_bootstrap_and_continue(swarm: Swarm) -> None:
    node, p1 = swarm.others["bootstrap"], swarm.peers["p1"]
    p1.wait_for(MicrobatchAccumulated, pass_id="1:1")
    node.kill()
    node.wait_end()
    p1.resume()


def nothing(swarm: Swarm) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    proof: Callable[[Swarm], None]
    faults: dict[str, str] = dataclasses.field(default_factory=dict)
    meanwhile: Callable[[Swarm], None] = nothing
    """Done when all have joined: what an operator or a supervisor does."""
    sets: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    standby: bool = False
    bootstrap: bool = False
    """Enter through a node of its own."""


# ---------------------------------------------------------------- what operators and supervisors do


def restart_coordinator(swarm: Swarm) -> None:
    assert swarm.coordinator.wait_end() == -signal.SIGKILL
    swarm.coordinate()


def restart_coordinator_when_two_were_told(swarm: Swarm) -> None:
    """Not before they have applied what they were told, however busy the machine is."""
    assert swarm.coordinator.wait_end() == -signal.SIGKILL
    p0 = swarm.peers["p0"]
    p0.wait(lambda: sum(bool(p.of(StepApplied, step=2)) for p in swarm.peers.values()) == 2, "two that were told")
    swarm.coordinate()


def restart_p0(swarm: Swarm) -> None:
    swarm.rejoin("p0", sibling="p2")


def continue_p0_when_it_is_lost(swarm: Swarm) -> None:
    p0 = swarm.peers["p0"]
    swarm.coordinator.wait_for(PeerLost, actor=p0.actor)
    p0.resume()


def kill_stage_0_when_version_2_is_archived(swarm: Swarm) -> None:
    swarm.coordinator.wait_for(CheckpointArchived, version=2)
    for name in ("p0", "p2"):
        swarm.peers[name].wait_for(MicrobatchForwarded, pass_id="1:3")
        swarm.peers[name].kill()


# ---------------------------------------------------------------- what the logs must show


def died_at(process: Process, kind: type[Event], **fields: object) -> None:
    """The victim's log ends at the named moment: after it there is nothing but what other threads were writing."""
    last = [event for _, event in process.log if not isinstance(event, _BESIDES)][-1]
    assert isinstance(last, kind), last
    for name, value in fields.items():
        assert getattr(last, name) == value, last


def fenced(swarm: Swarm, victim: Process, stage: int) -> StageAmended:
    """The coordinator fenced the victim out of the pass that was hit, and moved all its microbatches."""
    (fence,) = swarm.coordinator.of(PeerFenced, pass_id=HIT)
    assert (fence.actor, fence.stage) == (victim.actor, stage)
    (amendment,) = [e for e in swarm.coordinator.of(StageAmended, pass_id=HIT) if "is fenced" in e.reason]
    assert amendment.stage == stage
    assert sorted(amendment.moved) == sorted(fence.finished + fence.unfinished)
    return amendment


def redone(swarm: Swarm, amendment: StageAmended, by: Process, victim: Process) -> None:
    """Every moved microbatch was accumulated by the survivor, also those the victim had finished."""
    survivor = [e.microbatch for e in by.of(MicrobatchAccumulated, pass_id=HIT)]
    assert sorted(survivor) == list(range(swarm.manifest.batch.microbatches))
    before = {e.microbatch for e in victim.of(MicrobatchAccumulated, pass_id=HIT)}
    assert before <= set(amendment.moved)
    recovered = {e.key for e in by.of(FrameRecovered)}
    assert any(f"m{m}" in key for key in recovered for m in amendment.moved), recovered


def killed_in_forward(swarm: Swarm) -> None:
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    died_at(p0, MicrobatchForwarded, pass_id=HIT)
    amendment = fenced(swarm, p0, 0)
    assert len(p0.of(MicrobatchAccumulated, pass_id=HIT)) < len(amendment.moved), "it had unfinished microbatches"
    redone(swarm, amendment, p2, p0)


def killed_in_backward(swarm: Swarm) -> None:
    p1, p3 = swarm.peers["p1"], swarm.peers["p3"]
    died_at(p1, MicrobatchAccumulated, pass_id=HIT)
    assert len(p1.of(MicrobatchAccumulated, pass_id=HIT)) == 1
    redone(swarm, fenced(swarm, p1, 1), p3, p1)


def killed_with_weights_due(swarm: Swarm) -> None:
    p1, p3 = swarm.peers["p1"], swarm.peers["p3"]
    assert p1.wait_end() == -signal.SIGKILL, "when the gradient of a microbatch had left for the stage before"
    assert not p1.of(MicrobatchAccumulated, pass_id=HIT), "the gradients of its weights were due"
    amendment = fenced(swarm, p1, 1)
    survivor = [e.microbatch for e in p3.of(MicrobatchAccumulated, pass_id=HIT)]
    assert sorted(survivor) == list(range(swarm.manifest.batch.microbatches)) and set(amendment.moved) < set(survivor)


def killed_in_reduce(swarm: Swarm) -> None:
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    died_at(p0, ReduceStarted)
    amendment = fenced(swarm, p0, 0)
    assert len(p0.of(MicrobatchAccumulated, pass_id=HIT)) == len(amendment.moved), "all was finished, and void"
    redone(swarm, amendment, p2, p0)
    void = p0.of(ReduceStarted)[-1].attempt
    assert void.startswith(f"{HIT}/s0")
    if p2.of(ReduceStarted, attempt=void):
        assert p2.of(ReduceCancelled, attempt=void)
    assert p2.of(StagePrepared, attempt=f"{HIT}/s0n{amendment.number}")


def killed_before_prepared_left(swarm: Swarm) -> None:
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    died_at(p0, StagePrepared)
    assert p0.of(StagePrepared)[-1].attempt.startswith(f"{HIT}/s0n")
    (decision,) = swarm.coordinator.of(StepDecided, step=2)
    if decision.without:  # all others were prepared: decided at once
        assert decision.without == [p0.actor]
        assert not swarm.coordinator.of(PeerFenced)
    else:
        redone(swarm, fenced(swarm, p0, 0), p2, p0)


def killed_after_prepared(swarm: Swarm) -> None:
    p0 = swarm.peers["p0"]
    died_at(p0, StagePrepared)
    attempt = p0.of(StagePrepared)[-1].attempt
    assert attempt.startswith(f"{HIT}/s0n")
    (decision,) = swarm.coordinator.of(StepDecided, step=2)
    assert decision.outcomes[0].startswith(f"{attempt[-1]}:"), "the attempt it took part in is the one that counts"
    assert swarm.coordinator.of(PeerLost, actor=p0.actor)
    assert not p0.of(StepApplied, step=2) and swarm.peers["p2"].of(StepApplied, step=2)


def stopped_and_continued(swarm: Swarm) -> None:
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    loss = swarm.coordinator.of(PeerLost, actor=p0.actor)[0]
    assert "silent for" in loss.reason and "deadline" in loss.reason
    redone(swarm, fenced(swarm, p0, 0), p2, p0)
    assert len(p0.of(ProcessStarted)) == 1
    assert swarm.coordinator.of(PeerJoined, actor=p0.actor)[1:], "the same incarnation came back"
    assert p0.of(StepApplied)[-1].step > 2, "and took part again"


def daemon_killed(swarm: Swarm) -> None:
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    (stop,) = p0.of(ProcessStopped)
    assert "daemon" in stop.reason
    redone(swarm, fenced(swarm, p0, 0), p2, p0)


def restarted_by_supervisor(swarm: Swarm) -> None:
    p0 = swarm.peers["p0"]
    first, second = p0.of(ProcessStarted)
    assert swarm.coordinator.of(PeerFenced, pass_id=HIT)[0].actor == first.actor
    assert first.actor != second.actor
    assert swarm.coordinator.of(PeerJoined, actor=second.actor, stage=0)
    assert {e.stage for e in p0.of(StateFetched)} == {0}  # once more where nobody keeps the first version any longer
    assert p0.of(StepApplied, step=swarm.manifest.run.steps - 1)


def coordinator_killed_mid_step(swarm: Swarm) -> None:
    first, second = lives(swarm.coordinator)
    last = [event for event in first if isinstance(event, PassOpened | StepDecided)][-1]
    assert isinstance(last, PassOpened) and last.pass_id == HIT
    assert CoordinatorStarted(term=2, decided=1) in second
    assert next(e.pass_id for e in second if isinstance(e, PassOpened)) == "2:2"
    for stage in (("p0", "p2"), ("p1", "p3")):
        again = [e.microbatch for name in stage for e in swarm.peers[name].of(MicrobatchAccumulated, pass_id="2:2")]
        assert set(again) == set(range(swarm.manifest.batch.microbatches))
    assert any(p.of(MicrobatchForwarded, pass_id=HIT) for p in swarm.peers.values()), "work was lost and done again"


def coordinator_killed_before_telling(swarm: Swarm) -> None:
    first, second = lives(swarm.coordinator)
    last = [event for event in first if isinstance(event, PassOpened | StepDecided)][-1]
    assert isinstance(last, StepDecided) and last.step == 2
    assert CoordinatorStarted(term=2, decided=2) in second
    assert not [e for e in second if isinstance(e, PassOpened) and e.pass_id.split(":")[1] == "2"]
    again = swarm.coordinator.at(CoordinatorStarted, term=2)
    assert all(peer.at(StepApplied, step=2) > again for peer in swarm.peers.values())


def coordinator_killed_while_telling(swarm: Swarm) -> None:
    first, second = lives(swarm.coordinator)
    last = [event for event in first if isinstance(event, PassOpened | StepDecided)][-1]
    assert isinstance(last, PassOpened) and last.pass_id == "1:3"
    assert CoordinatorStarted(term=2, decided=2) in second
    again = swarm.coordinator.at(CoordinatorStarted, term=2)
    assert sorted(peer.at(StepApplied, step=2) < again for peer in swarm.peers.values()) == [False, False, True, True]


def standby_took_over(swarm: Swarm) -> None:
    p0, p4 = swarm.peers["p0"], swarm.peers["p4"]
    joined = swarm.coordinator.of(PeerJoined, actor=p4.actor)
    assert joined[0].stage is None
    assert joined[1].stage == 0 and "recruited from standby" in joined[1].reason
    assert {e.source for e in p4.of(StateFetched)} == {"1 replica"}, "of p2, while that trains on"
    assert not p0.of(StepApplied, step=2)
    replicas = [e.replicas for e in swarm.coordinator.of(StepMeasured)]
    at_once = swarm.coordinator.of(StageAmended, pass_id=HIT, entrant=p4.actor)  # into the step that lost the other
    assert [key for key, _ in itertools.groupby(replicas)] == ([[2, 2]] if at_once else [[2, 2], [1, 2], [2, 2]])
    assert p4.of(MicrobatchAccumulated)


def rolled_back(swarm: Swarm) -> None:
    assert swarm.coordinator.of(StepAborted, pass_id="1:3")
    (back,) = swarm.coordinator.of(RolledBack)
    assert back.version == 2 and "stage 0" in back.reason
    (fetched,) = swarm.peers["p4"].of(StateFetched)
    assert (fetched.stage, fetched.version, fetched.source) == (0, 2, "archive")
    for name in ("p1", "p3"):
        assert len(swarm.peers[name].of(StepApplied, step=2)) == 2, "step 2 was done again"


def survived_without_bootstrap(swarm: Swarm) -> None:
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    assert swarm.others["bootstrap"].code == -signal.SIGKILL
    died_at(p0, MicrobatchAccumulated, pass_id=HIT)
    redone(swarm, fenced(swarm, p0, 0), p2, p0)


def lives(process: Process) -> list[list[Event]]:
    """The events of each life, from its ProcessStarted on."""
    found: list[list[Event]] = []
    for _, event in process.log:
        if isinstance(event, ProcessStarted):
            found.append([])
        found[-1].append(event)
    return found


# A peer has two of the eight microbatches at least, however slow it was before; if it is slow in this step, it may
# give up all but one: nothing may wait for its third, and as little as can be for its second.
FORWARD = f"kill@MicrobatchForwarded:1,pass_id={HIT}"
BACKWARD = f"kill@MicrobatchAccumulated:1,pass_id={HIT}"
REDUCE = f"attempt={HIT}/s0*"
"""Whatever the number of the table: a busy machine may have made the stage hand work over before."""
PATIENT = "timing.recruit_after_s=30"
"""For a coordinator that must find every peer again, however long they take to dial it."""

SCENARIOS = [
    Scenario("killed in forward", killed_in_forward, {"p0": FORWARD}, options=("--slots=1",)),
    Scenario("killed in backward", killed_in_backward, {"p1": BACKWARD}),
    Scenario("killed in reduce", killed_in_reduce, {"p0": f"kill@ReduceStarted,{REDUCE}"}),
    Scenario("killed before PREPARED left", killed_before_prepared_left, {"p0": f"kill@StagePrepared,{REDUCE}"}),
    Scenario("killed after PREPARED", killed_after_prepared, {"p0": f"kill@Prepared,{REDUCE}"}),
    Scenario(
        "stopped past its deadline and continued",
        stopped_and_continued,
        {"p0": f"stop@MicrobatchForwarded:1,pass_id={HIT}"},
        continue_p0_when_it_is_lost,
        sets=("timing.step_budget_s=12", "run.steps=16"),  # long enough to come back before the end on a busy machine
        options=("--pace=0.04,0.08",),
    ),
    Scenario("libp2p daemon killed", daemon_killed, {"p0": f"daemon@MicrobatchForwarded:1,pass_id={HIT}"}),
    Scenario(
        "restarted at once by a supervisor",
        restarted_by_supervisor,
        {"p0": f"kill@MicrobatchAccumulated:1,pass_id={HIT}", "p2": "stop@StepApplied,step=4"},
        restart_p0,
        sets=(LONG, "timing.step_budget_s=600"),
        options=(PACE,),
    ),
    Scenario(
        "coordinator killed mid-step",
        coordinator_killed_mid_step,
        {"coordinator": f"kill@Frame,key={HIT}/b0→m4"},
        restart_coordinator,
        sets=(PATIENT,),
    ),
    Scenario(
        "coordinator killed after telling two of four",
        coordinator_killed_while_telling,
        {"coordinator": "kill@Open:2,pass_id=1:3"},
        restart_coordinator_when_two_were_told,
        sets=(PATIENT,),
    ),
    Scenario(
        "bootstrap node killed",
        survived_without_bootstrap,
        {"p1": "stop@MicrobatchAccumulated,pass_id=1:1", "p0": f"kill@MicrobatchAccumulated:1,pass_id={HIT}"},
        kill_bootstrap_and_continue,
        sets=("timing.step_budget_s=600",),
        bootstrap=True,
    ),
    Scenario(
        "a standby replaces the lost",
        standby_took_over,
        {"p0": f"stop@MicrobatchForwarded,pass_id={HIT}"},
        kill_p0_when_p4_stands_by,
        sets=(LONG, "timing.step_budget_s=600"),
        options=(PACE,),
        standby=True,
    ),
    Scenario(
        "the last replica dies",
        rolled_back,
        {"p0": "stop@MicrobatchForwarded:1,pass_id=1:3", "p2": "stop@MicrobatchForwarded:1,pass_id=1:3"},
        kill_stage_0_when_version_2_is_archived,
        sets=("timing.step_budget_s=600",),
        options=("--pace=0.15,0.3",),  # version 2 is to be archived before step 3 begins
        standby=True,
    ),
]

SHOWN_BY_OTHERS = [
    # Nobody has been told; "after telling two of four" has two of whom the same is true.
    Scenario(
        "coordinator killed between record and message",
        coordinator_killed_before_telling,
        {"coordinator": "kill@StepDecided,step=2"},
        restart_coordinator,
        sets=(PATIENT,),
    ),
    # test_a_shared_mask_survives_a_kill does this with a mask as well.
    Scenario("no memory for graphs", killed_in_backward, {"p1": BACKWARD}, options=("--graph-budget=0",)),
]
"""Played with `--long`."""


SUBSPACE = ("model.residual=subspace", "model.subspace_dim=4", "model.tail_layers=1")
WIRES: dict[str, tuple[str, ...]] = {**{codec: (codec,) for codec in CODECS}, "subspace-int4": ("int4", *SUBSPACE)}


def by_name(scenarios: list[Scenario]) -> dict[str, Scenario]:
    return {each.name.replace(" ", "-"): each for each in scenarios}


@pytest.mark.parametrize(
    ("scenario", "wire"),
    [*in_turn(by_name(SCENARIOS), WIRES), *only_long(in_turn(by_name(SHOWN_BY_OTHERS), WIRES))],
)
def test_same_answer_under_faults(
    scenario: Scenario, wire: str, make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    play(scenario, make_swarm(*WIRES[wire], *scenario.sets), reference)


@pytest.mark.parametrize("budget", [(), ("--graph-budget=0",)], ids=["kept-graphs", "no-graphs"])
def test_a_shared_mask_survives_a_kill(
    budget: tuple[str, ...], make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """Gradients are decoded beside the forward frame: a replacement computes that frame anew, or receives it again."""
    scenario = Scenario("killed in backward", killed_in_backward, {"p1": BACKWARD}, options=budget)
    play(scenario, make_swarm("int8", "codec.forward=topk:0.25", "codec.backward=topk-shared"), reference)


def test_a_kill_between_both_halves_of_a_backward(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """The stage before has used the gradient when a replacement computes the microbatch anew."""
    fault = {"p1": f"kill@Frame:1,key={HIT}/b1←*"}
    play(Scenario("killed with weights due", killed_with_weights_due, fault), make_swarm("int8"), reference)


def play(scenario: Scenario, swarm: Swarm, reference: Callable[[Swarm], tuple[str, ...]]) -> None:
    faults = {name: (f"--fault={text}",) for name, text in scenario.faults.items()}
    entry = (f"--bootstrap={swarm.bootstrap()}",) if scenario.bootstrap else ()
    swarm.coordinate(*entry, *faults.get("coordinator", ()))
    names = (*PEERS, "p4") if scenario.standby else PEERS
    swarm.join_stages(names, {name: (*entry, *scenario.options, *faults.get(name, ())) for name in names})
    scenario.meanwhile(swarm)
    swarm.finish()
    scenario.proof(swarm)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
