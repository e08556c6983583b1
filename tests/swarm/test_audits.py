"""Real peers, one of which computes numbers that look sound and are wrong: it is found, and the answer is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import MakeSwarm
from swarm_processes import Swarm

from swarm.events import PeerExpelled, PeerJoined, ProcessStopped, StepAudited, StepDecided

PEERS = ("p0", "p1", "p2", "p3", "p4", "p5")
"""Of two stages in turn."""
STEPS = 5


@pytest.mark.parametrize(("liar", "moment"), [("p2", "PeerJoined"), ("p1", "MicrobatchAccumulated,pass_id=1:0")])
def test_who_computes_wrong_is_expelled_before_any_of_it_counts(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]], liar: str, moment: str
) -> None:
    """The first step is audited, since nobody is known."""
    swarm = make_swarm("int8", "swarm.max_replicas=3", "swarm.replicas=3", "audit.every=1000", "audit.tolerance=0")
    swarm.coordinate()
    swarm.join_stages(PEERS, {liar: (f"--fault=lie@{moment}",)})
    assert swarm.peers[liar].wait_end() == 4
    (expelled,) = swarm.coordinator.of(PeerExpelled)
    assert expelled.actor == swarm.peers[liar].actor
    (joined,) = swarm.peers[liar].of(PeerJoined)
    assert (expelled.stage, expelled.step) == (joined.stage, 0)
    (stopped,) = swarm.peers[liar].of(ProcessStopped)
    assert "expelled from the run: at step 0 its numbers differ from those of 2 others" in stopped.reason
    swarm.finish()
    assert [event.agreed for event in swarm.coordinator.of(StepAudited, step=0)] == [True]
    assert len(swarm.coordinator.of(StepDecided)) == STEPS
    swarm.assert_equal(reference(swarm))
