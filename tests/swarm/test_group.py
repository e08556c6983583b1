"""Three coordinators: whichever dies, stands still or is cut off, one leads, and the result is that of one machine.

Two stages, two replicas. The leader dies at a named moment of step 2 and stays dead.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from conftest import MakeGroup
from swarm_group import GroupSwarm
from swarm_processes import Process, Swarm

from peers.chaos.internet import Namespaces, Relays
from peers.chaos.namespace import why_not
from peers.chaos.scenario import NetworkPlan
from swarm.events import (
    CoordinatorStarted,
    DecisionRecorded,
    LeaderFollowed,
    LeadershipLost,
    LeadershipTaken,
    PassOpened,
    ProcessStarted,
    StepApplied,
    StepDecided,
)

PEERS = ("p0", "p1", "p2", "p3")
SETS = ("timing.step_budget_s=15", "timing.recruit_after_s=30")
"""A heartbeat of half a second: a silent leader is replaced after a second and a half."""
PACED = dict.fromkeys(PEERS, ("--pace=0.04,0.08",))
"""A step takes half a second at least, so few are enough for what must happen before the end."""
FOUR, SLOWER = "batch.microbatches=4", dict.fromkeys(PEERS, ("--pace=0.08,0.16",))
"""Steps that take as long with half the work."""

Reference = Callable[[Swarm], tuple[str, ...]]


def ends_right(
    swarm: GroupSwarm, reference: Reference, but: tuple[Process, ...] = (), unsaid: frozenset[int] = frozenset()
) -> None:
    """`unsaid`: what may have been decided as its leader died, before its log said so."""
    swarm.finish_group(but)
    swarm.assert_replicas_identical()
    swarm.assert_archives_equal(reference(swarm), but)
    decided = [event.step for c in swarm.coordinators.values() for event in c.of(StepDecided)]
    assert len(set(decided)) == len(decided), "each step once, by one leader"
    assert set(range(swarm.manifest.run.steps)) - unsaid <= set(decided)


def new_leader(swarm: GroupSwarm, old: Process, decided: int) -> Process:
    """Who took over from `old`, after step `decided`."""
    leader, started = swarm.next_leader(old.of(CoordinatorStarted)[-1].term)
    assert leader is not old and started.decided == decided
    for peer in swarm.peers.values():
        assert peer.of(LeaderFollowed, leader=leader.actor), peer.words()
    return leader


def killed_mid_step(swarm: GroupSwarm, old: Process) -> None:
    leader = new_leader(swarm, old, decided=1)
    assert not old.of(StepDecided, step=2) and leader.of(StepDecided, step=2)
    assert any(e.pass_id.endswith(":2") for e in leader.of(PassOpened)), "the step was done again"


def killed_before_telling(swarm: GroupSwarm, old: Process) -> None:
    leader = new_leader(swarm, old, decided=2)
    assert old.of(StepDecided)[-1].step == 2 and leader.of(DecisionRecorded, step=2)
    taken = leader.at(LeadershipTaken)
    assert all(peer.at(StepApplied, step=2) > taken for peer in swarm.peers.values())


def killed_while_telling(swarm: GroupSwarm, old: Process) -> None:
    taken = new_leader(swarm, old, decided=2).at(LeadershipTaken)
    assert sorted(peer.at(StepApplied, step=2) < taken for peer in swarm.peers.values()) == [False, False, True, True]


@pytest.mark.parametrize(
    ("fault", "proof"),
    [
        ("kill@Frame,key=1:2/b0→m4", killed_mid_step),
        # two of those who are told half of it have been told nothing either
        pytest.param("kill@StepDecided,step=2", killed_before_telling, marks=pytest.mark.long),
        ("kill@Open:2,pass_id=1:3", killed_while_telling),
    ],
    ids=["mid-step", "decision-unsent", "decision-half-sent"],
)
def test_the_leader_is_killed(
    fault: str,
    proof: Callable[[GroupSwarm, Process], None],
    make_group: MakeGroup,
    reference: Reference,
    record_property: Callable[[str, object], None],
) -> None:
    swarm = make_group(*SETS)
    old = swarm.start_group(f"--fault={fault}")
    swarm.join_stages(PEERS)
    assert old.wait_end() == -signal.SIGKILL
    ends_right(swarm, reference, but=(old,))
    proof(swarm, old)
    died = old.log[-1][0]
    leader, _ = swarm.next_leader(old.of(CoordinatorStarted)[-1].term)
    leads, opens = leader.at(LeadershipTaken), leader.at(PassOpened)
    figures = f"another leads after {leads - died:.2f} s, and opens a pass after {opens - died:.2f} s"
    print(figures)
    record_property("take-over", figures)


def test_a_follower_is_killed_and_nothing_changes(make_group: MakeGroup, reference: Reference) -> None:
    swarm = make_group("timing.step_budget_s=60", "timing.recruit_after_s=30")
    leader = swarm.start_group()
    victim = swarm.followers()[0]
    swarm.join_stages(PEERS)
    swarm.peers["p0"].wait_for(StepApplied, step=1)
    victim.kill()
    assert victim.wait_end() == -signal.SIGKILL
    ends_right(swarm, reference, but=(victim,))
    assert swarm.coordinator is leader and len(leader.of(LeadershipTaken)) == 1 and not leader.of(LeadershipLost)


def test_a_leader_that_stood_still_comes_back_to_find_another(make_group: MakeGroup, reference: Reference) -> None:
    """Two at once: the older one wakes in the midst of a step of its own."""
    swarm = make_group(*SETS, "run.steps=16", "checkpoint.every=8")
    old = swarm.start_group("--fault=stop@Frame,key=1:2/b0→m4")
    swarm.join_stages(PEERS, PACED)
    old.wait(lambda: any(c.of(LeadershipTaken) for c in swarm.coordinators.values() if c is not old), "another leader")
    new = swarm.coordinator
    new.wait_for(StepDecided, step=3)
    old.resume()
    ends_right(swarm, reference)
    assert old.of(LeadershipLost) and not old.of(StepDecided, step=2)
    assert old.of(LeaderFollowed, leader=new.actor)


def test_all_coordinators_are_killed_and_start_again(make_group: MakeGroup, reference: Reference) -> None:
    """Without any invite: each knows from before where the others were. Peers have waited with their state."""
    swarm = make_group(*SETS, FOUR, "run.steps=10", "checkpoint.every=4")
    leader = swarm.start_group()
    swarm.join_stages(PEERS, SLOWER)
    leader.wait_for(StepDecided, step=2)
    for process in swarm.coordinators.values():
        process.kill()
        assert process.wait_end() == -signal.SIGKILL
    before = max(event.step for c in swarm.coordinators.values() for event in c.of(StepDecided))
    term = max(event.term for c in swarm.coordinators.values() for event in c.of(CoordinatorStarted))
    for name in reversed(swarm.coordinators):
        swarm.start_member(name)
    ends_right(swarm, reference, unsaid=frozenset({before + 1}))
    _, started = swarm.next_leader(term)
    assert started.decided in (before, before + 1)
    assert all(len(peer.of(ProcessStarted)) == 1 for peer in swarm.peers.values())


@pytest.mark.parametrize(
    "one_way",
    [pytest.param(False, id="both-ways", marks=pytest.mark.long), pytest.param(True, id="one-way")],
)
def test_a_leader_that_is_cut_off_decides_nothing_and_another_leads(
    one_way: bool, make_group: MakeGroup, reference: Reference
) -> None:
    """The network between the coordinators is cut for real: hosts of their own, and no packet from one to the other.

    The old leader still reaches every peer. One way: it speaks to the others and cannot hear them.
    """
    internet = Namespaces(NetworkPlan()) if why_not() is None else Relays(NetworkPlan())
    with internet:
        swarm = make_group(*SETS, FOUR, "run.steps=24", "checkpoint.every=8")
        swarm.on(internet, PEERS)
        old = swarm.start_group()
        swarm.join_stages(PEERS, SLOWER)
        old.wait_for(StepDecided, step=2)
        mine, others = swarm.host(old), [swarm.host(each) for each in swarm.followers()]
        pairs = [(other, mine) for other in others] + ([] if one_way else [(mine, other) for other in others])
        internet.cut(pairs)
        cut = time.time()
        old.wait_for(LeadershipLost)
        lost = old.at(LeadershipLost)
        old.wait(lambda: swarm.coordinator is not old, "another leader")
        new = swarm.coordinator
        print(f"cut off; leads no more after {lost - cut:.2f} s, another after {new.at(LeadershipTaken) - cut:.2f} s")
        new.wait_for(StepDecided, 4)
        assert not [at for at, event in old.log if isinstance(event, StepDecided) and at > lost]
        internet.heal(pairs)
        old.wait_for(LeaderFollowed, leader=new.actor)
        inherited = new.of(CoordinatorStarted)[
            -1
        ].decided  # the old leader's last word may have been heard, and no answer
        ends_right(swarm, reference, unsaid=frozenset({inherited}))
    assert "heard from" in old.of(LeadershipLost)[0].reason or "ballot" in old.of(LeadershipLost)[0].reason
