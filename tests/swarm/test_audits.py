"""Real peers, one of which computes numbers that look sound and are wrong: it is found, and the answer is right."""

from __future__ import annotations

from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Swarm

from swarm.events import PeerExpelled, PeerJoined, ProcessStopped, StepAudited, StepDecided

PEERS = ("p0", "p1", "p2", "p3", "p4", "p5")
"""Of two stages in turn."""
STEPS = 5


LIARS = {"p2": "PeerJoined", "p1": "MicrobatchAccumulated,pass_id=1:0"}
"""One in each stage, and when it begins: before its first microbatch, and in its backwards."""


def test_who_computes_wrong_is_expelled_before_any_of_it_counts(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    """The first step is audited, since nobody is known."""
    swarm = make_swarm("int8", "swarm.max_replicas=3", "swarm.replicas=3", "audit.every=1000", "audit.tolerance=0")
    swarm.coordinate()
    swarm.join_stages(PEERS, {name: (f"--fault=lie@{moment}",) for name, moment in LIARS.items()})
    for name in LIARS:
        liar = swarm.peers[name]
        assert liar.wait_end() == 4, name
        (expelled,) = swarm.coordinator.of(PeerExpelled, actor=liar.actor)
        (joined,) = liar.of(PeerJoined)
        assert (expelled.stage, expelled.step) == (joined.stage, 0), name
        (stopped,) = liar.of(ProcessStopped)
        reason = "expelled from the run: at step 0 its numbers differ from those of 2 other replicas"
        assert reason in stopped.reason, name
    swarm.finish()
    assert len(swarm.coordinator.of(PeerExpelled)) == len(LIARS)
    assert swarm.coordinator.of(StepAudited, step=0)[-1].agreed
    assert len(swarm.coordinator.of(StepDecided)) == STEPS
    swarm.assert_equal(reference(swarm))
