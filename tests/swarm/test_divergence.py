"""A real swarm that diverges: every process ends with code 4, or all go on from before as the record says."""

from __future__ import annotations

from conftest import MakeSwarm

from peers.run.verdict import archived_digests
from swarm.events import CheckpointArchived, ProcessStopped, RolledBack, RunDiverged, StepDecided

HOT = ("optimizer.learning_rate=1e30", "optimizer.warmup_steps=1", "optimizer.min_ratio=1.0")
"""The first update already leaves parameters from which nothing finite follows."""


def test_all_processes_end_with_code_4_and_say_why(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", "run.steps=30", "checkpoint.every=2", "checkpoint.keep=1", "swarm.replicas=1", *HOT)
    swarm.coordinate()
    swarm.join_stages(("p0", "p1"))
    for process in swarm.processes:
        assert process.wait_end() == 4, process.words()
        (stopped,) = process.of(ProcessStopped)
        assert "3 steps in a row were skipped up to step 3" in stopped.reason
        assert "swarm-peer control rate 0.5" in stopped.reason
        assert "Traceback" not in process.words()
    assert [event.step for event in swarm.coordinator.of(StepDecided)] == [0, 1, 2, 3], "nobody works on for nothing"
    assert [event.version for event in swarm.coordinator.of(RolledBack)] == [0]


def test_they_go_back_and_end_like_the_reference(make_swarm: MakeSwarm) -> None:
    section = ("divergence.skips=1", "divergence.action=go_back", "divergence.rate=1e-33", "divergence.times=1")
    swarm = make_swarm("none", "run.steps=6", "checkpoint.every=3", "swarm.replicas=1", *HOT, *section)
    swarm.coordinate()
    swarm.join_stages(("p0", "p1"))
    swarm.finish()
    organiser = swarm.coordinator
    (told,) = organiser.of(RunDiverged)
    assert (told.version, told.rate) == (0, 1e-33)
    (given,) = organiser.commanded()
    assert (given.command, given.by) == ("go_back", "coordinator") and given.why == told.reason
    found, _ = archived_digests(organiser.home, swarm.manifest)
    assert found == 6 and organiser.of(CheckpointArchived, version=6)
    swarm.assert_command_says_equal()
