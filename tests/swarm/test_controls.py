"""The organiser steers a real swarm: each command counts from when it is in the record, whoever dies afterwards.

Two stages, paced so that a step takes a good tenth of a second. What the swarm ends with equals what the reference
makes of the record.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from conftest import MakeGroup, MakeSwarm
from swarm_processes import Process, Swarm

from peers.run.home import Home
from peers.run.verdict import archived_digests
from peers.runtime.control_client import NoCoordinator, Refused, Reply, send
from swarm.events import (
    CheckpointArchived,
    ControlGiven,
    LeadershipTaken,
    PeerExpelled,
    PeerLeaving,
    ProcessStopped,
    RunFinished,
    StepDecided,
)

PACE = "--pace=0.04,0.04"
FOUR = "batch.microbatches=4"
TWO = dict.fromkeys(("p0", "p1"), (PACE, "--seats=1"))
"""Without a second seat, which would be let in by a command of its own, when the other peer is slow to start."""


def told(process: Process, command: str, value: str = "") -> Reply:
    return send(process.home, command, value, by="the test", why="to see it", timeout=30.0)


def typed(swarm: Swarm, *words: str) -> dict[str, object]:
    """From the command line."""
    done = swarm.run_command("control", *words, "--home", str(swarm.coordinator.home), "--json")
    assert done.code == 0, done.words()
    return dict(json.loads(done.output.read_text()))


def paused(process: Process) -> int:
    """Pause, and wait until nothing is open; returns the steps decided."""
    told(process, "pause")
    process.wait(lambda: told(process, "status").state["phase"] == "between steps", "the end of the open pass")
    return int(told(process, "status").state["steps_decided"])


def again(swarm: Swarm) -> None:
    """The coordinator is killed and comes back."""
    swarm.coordinator.kill()
    swarm.coordinator.wait_end()
    swarm.coordinate()


def ends_at(swarm: Swarm, version: int) -> None:
    """The run is over after so many steps, and they are what the record says."""
    swarm.finish()
    found, _ = archived_digests(swarm.coordinator.home, swarm.manifest)
    assert found == version, swarm.words()
    decided = [event.step for event in swarm.coordinator.of(StepDecided)]
    assert len(set(decided)) == len(decided) and set(decided) <= set(range(version))
    swarm.assert_command_says_equal(whole=False)


def test_rate_and_end_are_changed_while_it_is_paused_and_the_coordinator_killed(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", FOUR, "run.steps=15", "checkpoint.every=100", "swarm.replicas=1")
    swarm.coordinate()
    organiser = swarm.coordinator
    assert typed(swarm, "pause", "--by", "the test", "--why", "to see it")["number"] == 1, "before anybody has come"
    swarm.join_stages(tuple(TWO), TWO)
    again(swarm)
    assert told(organiser, "status").state["paused"] == {"by": "the test", "why": "to see it", "number": 1}
    time.sleep(1.5)
    assert not organiser.of(StepDecided), "the pause has outlived the coordinator"
    told(organiser, "resume")
    organiser.wait_for(StepDecided, step=1)
    decided = paused(organiser)
    told(organiser, "rate", "0.25")
    told(organiser, "steps", str(decided + 40))  # so far that it is changed once more before
    told(organiser, "checkpoint")
    organiser.wait_for(CheckpointArchived, version=decided)
    with pytest.raises(Refused, match=rf"{decided - 1} steps are too few"):
        told(organiser, "stop_after", str(decided - 1))
    again(swarm)
    assert told(organiser, "status").state["steps"] == decided + 40
    told(organiser, "resume")
    organiser.wait_for(StepDecided, step=decided + 1)
    told(organiser, "rate", "1")
    told(organiser, "steps", "18")
    ends_at(swarm, 18)
    rates = {event.step: event.rate for event in organiser.of(StepDecided)}
    assert all(rates[step] == 1.0 for step in range(decided))
    assert rates[decided] == rates[decided + 1] == 0.25 and rates[17] == 1.0
    given = organiser.of(ControlGiven)
    assert [event.number for event in given] == list(range(1, 1 + len(given))), "none twice after a restart"
    commands = [event.command for event in given if event.command != "admit"]
    assert commands == ["pause", "resume", "pause", "rate", "steps", "checkpoint", "resume", "rate", "steps"]


def test_a_checkpoint_of_a_step_in_between_outlives_a_kill(make_swarm: MakeSwarm) -> None:
    """A peer of each stage is killed when it is told to save."""
    swarm = make_swarm("none", FOUR, "run.steps=40", "checkpoint.every=100", "swarm.replicas=2")
    swarm.coordinate()
    names = ("p0", "p1", "p2", "p3")
    swarm.join_stages(names, dict.fromkeys(names, (PACE,)))
    organiser = swarm.coordinator
    organiser.wait_for(StepDecided, step=1)
    told(organiser, "checkpoint")
    swarm.peers["p0"].kill()
    archived = organiser.wait_for(CheckpointArchived)
    assert 2 <= archived.version < 40
    end = paused(organiser) + 3
    told(organiser, "stop_after", str(end))
    told(organiser, "resume")
    swarm.peers["p0"].wait_end()
    ends_at(swarm, end)
    assert end < 40 and organiser.of(RunFinished)[-1].step + 1 == end


def test_who_is_expelled_stays_out_and_who_is_dismissed_goes_politely(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", FOUR, "run.steps=60", "checkpoint.every=100", "swarm.replicas=2")
    swarm.coordinate()
    names = ("p0", "p1", "p2", "p3")
    swarm.join_stages(names, dict.fromkeys(names, (PACE,)))
    organiser = swarm.coordinator
    organiser.wait_for(StepDecided, step=1)
    told(organiser, "expel", swarm.peers["p2"].actor)
    assert swarm.peers["p2"].wait_end() == 4
    assert "expelled from the run by the test: to see it" in swarm.peers["p2"].of(ProcessStopped)[-1].reason
    told(organiser, "dismiss", swarm.peers["p3"].actor)
    assert swarm.peers["p3"].wait_end() == 0
    assert swarm.peers["p3"].of(PeerLeaving)[-1].reason == "let go by the test: to see it"
    assert "others hold stage 1" in swarm.peers["p3"].of(ProcessStopped)[-1].reason
    again(swarm)
    swarm.join("p2", PACE)
    assert swarm.peers["p2"].wait_end() == 4, "the record remembers it"
    with pytest.raises(Refused, match="is expelled already"):
        told(organiser, "expel", str(told(organiser, "status").state["expelled"][0]))
    end = paused(organiser) + 3
    told(organiser, "stop_after", str(end))
    told(organiser, "resume")
    ends_at(swarm, end)
    assert len(organiser.of(PeerExpelled)) == 1 and organiser.of(RunFinished)[-1].step + 1 == end


def test_who_dies_between_writing_a_command_and_logging_it_says_it_in_the_next_life(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", "run.steps=6", "swarm.replicas=1")
    swarm.coordinate()
    organiser = swarm.coordinator
    told(organiser, "rate", "0.5")
    told(organiser, "rate", "0.25")
    organiser.kill()
    organiser.wait_end()
    log = Home(organiser.home).events
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"number":2' not in line))  # as if it had not come to that
    swarm.coordinate()
    organiser.wait(lambda: len(controls_in(log)) == 2, "what was not said")
    assert [each["value"] for each in controls_in(log)] == ["0.5", "0.25"]
    again(swarm)
    swarm.join_stages(tuple(TWO))
    swarm.finish()
    assert [each["number"] for each in controls_in(log)] == [1, 2], "and once"


def controls_in(log: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [record for record in records if record["kind"] == "ControlGiven" and record["command"] != "admit"]


def test_without_a_coordinator_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCoordinator, match=r"no coordinator runs in .* \(there is no socket\)"):
        send(tmp_path, "status")


def test_what_a_follower_is_told_the_leader_does_and_the_next_leader_too(make_group: MakeGroup) -> None:
    swarm = make_group("run.steps=60", "swarm.replicas=1", "timing.step_budget_s=15", "timing.recruit_after_s=30")
    leader = swarm.start_group()
    follower, other = swarm.followers()
    assert told(follower, "pause").number == 1
    swarm.join_stages(tuple(TWO), TWO)
    assert told(other, "rate", "0.5").number == 4, "two devices were let in meanwhile"
    leader.kill()
    leader.wait_end()
    follower.wait(lambda: bool(follower.of(LeadershipTaken) or other.of(LeadershipTaken)), "another leader")
    state = told(swarm.coordinator, "status").state
    assert (state["rate"], state["paused"]["number"]) == (0.5, 1)
    time.sleep(2.0)
    assert not swarm.coordinator.of(StepDecided)
    there = follower if swarm.coordinator is other else other
    assert told(there, "resume").number == 5
    assert told(there, "stop_after", "6").number == 6
    swarm.finish_group(but=(leader,))
    decided = swarm.coordinator.of(StepDecided)
    assert [(event.step, event.rate) for event in decided] == [(step, 0.5) for step in range(6)]
    swarm.assert_command_says_equal(whole=False)
