"""A peer whose machine has no memory for a microbatch: it does it again, and at the second time it leaves for good."""

from __future__ import annotations

from conftest import MakeSwarm

from swarm.events import OutOfMemory, PeerFenced, PeerLeaving, ProcessStopped, StepAborted


def test_it_does_the_work_again_without_a_word_to_the_others(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", "run.steps=6", "swarm.replicas=1")
    swarm.coordinate()
    swarm.join_stages(("p0", "p1"), {"p0": ("--fault=starve@MicrobatchForwarded:3",)})
    swarm.finish()
    (short,) = swarm.peers["p0"].of(OutOfMemory)
    assert not short.leaves and "microbatch" in short.what and short.now < max(short.before, 1)
    assert not swarm.coordinator.of(PeerFenced) and not swarm.coordinator.of(StepAborted)
    assert [process.code for process in swarm.processes] == [0, 0, 0]
    swarm.assert_command_says_equal()


def test_the_second_time_it_leaves_with_the_reason(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", "run.steps=7", "swarm.replicas=2")
    swarm.coordinate()
    # Both strike in the first step, in which all peers have the same share. Later a peer that was slow may have none.
    faults = ("--fault=starve@MicrobatchForwarded:2", "--fault=starve@MicrobatchForwarded:3")
    swarm.join_stages(("p0", "p1", "p2", "p3"), {"p0": faults})
    assert swarm.peers["p0"].wait_end() == 4, swarm.peers["p0"].words()
    swarm.finish(("p1", "p2", "p3"))
    assert [event.leaves for event in swarm.peers["p0"].of(OutOfMemory)] == [False, True]
    (stopped,) = swarm.peers["p0"].of(ProcessStopped)
    assert "--max-memory" in stopped.reason
    assert len(swarm.coordinator.of(PeerLeaving)) == 1, "it says goodbye"
    swarm.assert_command_says_equal()
