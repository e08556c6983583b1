"""Every coordinator of a group can tell the whole run: its own log, and copies of the others'."""

from __future__ import annotations

import itertools
import signal

from conftest import MakeGroup
from swarm_group import NAMES, GroupSwarm
from swarm_processes import Process

from peers.run.home import Home
from swarm.events import (
    DecisionRecorded,
    LeaderFollowed,
    LeadershipLost,
    PeerWorked,
    StepDecided,
    TableChanged,
    read_log,
)
from swarm.net.identity import Identity

PEERS = ("p0", "p1")
STEPS = 16
SETS = ("timing.step_budget_s=15", "timing.recruit_after_s=30", f"run.steps={STEPS}", "swarm.replicas=1")
FOUR = "batch.microbatches=4"


def known_to(swarm: GroupSwarm, process: Process) -> list[tuple[float, object]]:
    """What one coordinator's home tells, of all coordinators."""
    logs = [Home(process.home).events, *Home(process.home).mirrors.glob("*.jsonl")]
    return sorted(itertools.chain.from_iterable(read_log(log) for log in logs), key=lambda entry: entry[0])


def test_a_followers_home_tells_what_a_dead_leader_decided(make_group: MakeGroup) -> None:
    swarm = make_group(*SETS, FOUR)
    old = swarm.start_group("--fault=kill@StepDecided,step=6")
    swarm.join_stages(PEERS, alike=("--pace=0.1,0.2",))
    assert old.wait_end() == -signal.SIGKILL
    old.wait(lambda: swarm.coordinator is not old, "another leader", alive=False)
    leader = swarm.coordinator
    name = next(name for name, each in swarm.coordinators.items() if each is old)
    swarm.start_member(name)
    old.wait_for(LeaderFollowed, leader=leader.actor)
    copy = Home(leader.home).mirrors / f"{Identity.load(Home(old.home).identity).peer_id}.jsonl"
    leader.wait(
        lambda: any(isinstance(e, StepDecided) and e.step == 6 for _, e in read_log(copy)),
        "what the old leader wrote last",
    )
    swarm.finish_group()
    for each in NAMES:
        events = [event for _, event in known_to(swarm, swarm.coordinators[each])]
        decided = [event.step for event in events if isinstance(event, StepDecided)]
        assert decided == sorted(set(decided)), each
        # a leader that a busy machine deposes before a majority confirms its decision reports none: its successor does
        recorded = {event.step for event in events if isinstance(event, DecisionRecorded)}
        unreported = set(range(STEPS)) - set(decided)
        assert unreported <= recorded, each
        assert len(unreported) <= sum(isinstance(event, LeadershipLost) for event in events), each
        assert {event.pass_id.split(":")[1] for event in events if isinstance(event, PeerWorked)} >= {"1", "8"}
        assert any(isinstance(event, TableChanged) for event in events)
