"""What the coordinator's log tells of a real swarm: everybody's work in every step, tables, progress, states."""

from __future__ import annotations

import itertools
import math
from statistics import median

from conftest import MakeSwarm

from swarm.events import (
    Evaluated,
    FaultCosted,
    PassOpened,
    PassProgress,
    PeerDescribed,
    PeerFenced,
    PeerGone,
    PeerSeen,
    PeerWorked,
    PlannerLooked,
    ResourcesMeasured,
    StateChanged,
    StepDecided,
    TableChanged,
)

PEERS = ("p0", "p1", "p2", "p3")
STEPS = 8
KINDS = {"forward", "backward", "waiting", "reducing", "applying", "recovering"}
PACE = "--pace=0.05,0.1"


def test_the_log_tells_what_everybody_did_and_what_a_death_cost(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("int8", f"run.steps={STEPS}", "evaluation.every=4", "timing.step_budget_s=15")
    swarm.coordinate()
    faults = {"p3": ["--fault=kill@MicrobatchAccumulated,pass_id=1:5"]}
    swarm.join_stages(PEERS, {name: [PACE, *faults.get(name, ())] for name in PEERS})
    swarm.finish(names=("p0", "p1", "p2"))
    log = swarm.coordinator
    actors = {name: peer.actor for name, peer in swarm.peers.items()}

    states = [event.state for event in log.of(StateChanged)]
    assert states[:2] == ["starting", "waiting"] and states[-1] == "finished"
    assert {"training", "evaluating", "finishing"} <= set(states)
    assert all(event.reason for event in log.of(StateChanged))
    assert {event.actor for event in log.of(PeerSeen)} == set(actors.values())
    assert {event.actor for event in log.of(PeerGone)} <= {actors[name] for name in ("p0", "p1", "p2")}
    for name, actor in actors.items():
        (machine,) = [event.machine for event in log.of(PeerDescribed, actor=actor)]
        assert machine["device"] == "cpu" and machine["memory"] == 10**9 and machine["threads"] == 1
        assert swarm.peers[name].of(PeerDescribed)[0].machine == machine
        measured = swarm.peers[name].of(ResourcesMeasured)
        assert measured and all(min(each.cpu_seconds, each.daemon_cpu_seconds) > 0 for each in measured)

    kinds = [event.pass_kind for event in log.of(PassOpened)]
    assert kinds.count("evaluate") == len(log.of(Evaluated)) == 2 and kinds.count("train") == STEPS
    told = log.of(TableChanged)
    assert {event.stage for event in told[:2]} == {0, 1} and log.at(TableChanged) <= log.at(PassOpened)
    for event in told:
        assert len(event.roster) == len(event.weights) == len(event.rates)
    assert log.of(PlannerLooked)
    progress = log.of(PassProgress)
    assert progress and all(0 <= a <= f <= t == 8 for event in progress for a, f, t in event.stages)

    (fenced,) = log.of(PeerFenced)
    (costed,) = log.of(FaultCosted)
    assert costed.actors == [actors["p3"]] and costed.step == 5
    assert costed.microbatches == len(fenced.finished) and costed.usual_s > 0
    opened = {e.pass_id: log.at(PassOpened, pass_id=e.pass_id) for e in log.of(PassOpened, pass_kind="train")}
    decided = {e.step: log.at(StepDecided, step=e.step) for e in log.of(StepDecided)}
    took = {step: decided[step] - opened[f"1:{step}"] for step in range(STEPS)}
    lost = max(0.0, took[5] - median(took[step] for step in range(5)))
    assert math.isclose(costed.seconds, lost, abs_tol=0.05)

    for step, event in enumerate(log.of(StepDecided)):
        rosters: dict[int, list[str]] = {}
        for table in told:
            if log.at(TableChanged, pass_id=table.pass_id, number=table.number) <= decided[step]:
                rosters[table.stage] = table.roster
        served = {actor for roster in rosters.values() for actor in roster}
        worked = {each.actor: each for each in log.of(PeerWorked, pass_id=f"1:{step}")}
        assert set(worked) == served, (step, worked)
        for stage, assignment in enumerate(event.assignments):
            assert {rosters[stage][index] for index in assignment} <= served
    apart: list[float] = []
    for name in ("p0", "p1", "p2"):
        mine = log.of(PeerWorked, actor=actors[name])
        own = swarm.peers[name].of(PeerWorked)
        assert [(e.pass_id, e.seconds, e.spans) for e in own] == [(e.pass_id, e.seconds, e.spans) for e in mine]
        for one, two in itertools.pairwise(mine):
            if one.pass_id in ("1:3", "1:7"):
                continue  # an evaluation follows
            step_s = opened[two.pass_id] - opened[one.pass_id]
            assert set(one.seconds) == KINDS
            apart.append(abs(sum(one.seconds.values()) - step_s) / step_s)
            assert one.seconds["forward"] > 0 and one.seconds["backward"] > 0 and one.seconds["waiting"] > 0
            assert 0 < len(one.spans) <= 64
            ends = [0, *(start + length for _, _, start, length in one.spans)]
            assert ends == sorted(ends) and ends[-1] <= 1000 * sum(one.seconds.values()) + 1
        assert all(event.usage["resident"] > 1e7 for event in mine)
        links = [link for event in mine for link in event.links]
        assert {link["other"] for link in links} >= {log.actor}
        neighbours = [link for link in links if link["other"] != log.actor and link["other"] in actors.values()]
        assert any("forward" in link["sent"] or "backward" in link["sent"] for link in neighbours)  # type: ignore[operator]
        assert any(0 < float(link["rtt_s"]) < 5 for link in links if "rtt_s" in link)  # type: ignore[arg-type]
    assert median(apart) < 0.05, "an Open is underway for longer than the one before when the machine is busy"
    assert max(apart) < 0.5, apart
    recovered = [e for e in log.of(PeerWorked, pass_id="1:5") if e.seconds["recovering"] > 0]
    assert {event.actor for event in recovered} == {actors["p1"]}, "who took over what the dead one had"
