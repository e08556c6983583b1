"""Two machines with one key: the newer process stays, the older one leaves, and all three say why."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import EVEN, Swarm

from swarm.events import DuplicateIdentity, ProcessStarted, ProcessStopped, StepApplied

PEERS = ("p0", "p1", "p2", "p3")


def test_a_copied_home_is_noticed_and_the_newer_one_stays(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm("int8", "run.steps=20", "timing.step_budget_s=600")
    swarm.coordinate()
    faults = {"p2": ("--fault=stop@StepApplied,step=5",)}  # so that there is still something to do
    swarm.join_stages(PEERS, {name: (EVEN, *faults.get(name, ())) for name in PEERS})
    p0, p2 = swarm.peers["p0"], swarm.peers["p2"]
    p2.wait_stopped()
    copy = swarm.folder / "copy"
    shutil.copytree(p0.home, copy, ignore=shutil.ignore_patterns("lock", "events.jsonl", "checkpoints", "retention"))
    twin = swarm.join("copy", EVEN)
    noticed = swarm.coordinator.wait_for(DuplicateIdentity)
    assert p0.wait_end(20.0) == 4
    (stopped,) = p0.of(ProcessStopped)
    assert "stale incarnation" in stopped.reason
    (told,) = p0.of(DuplicateIdentity)
    older, newer = (process.of(ProcessStarted)[0].actor for process in (p0, twin))
    assert told == DuplicateIdentity(older, None)
    assert noticed == twin.wait_for(DuplicateIdentity) == DuplicateIdentity(older, newer)
    for words in (p0.words(), twin.words(), swarm.coordinator.words()):
        assert "swarm-peer join --home OTHER" in " ".join(words.split())

    swarm.join("p0")  # as a supervisor would that starts whatever ends
    assert p0.wait_end(20.0) == 2
    assert "another process with the same key joined after this one" in " ".join(p0.words().split())
    p2.resume()  # not before: the run might be over when p0 asks
    swarm.finish(names=("p1", "p2", "p3", "copy"))
    assert twin.of(StepApplied), "it took part"
    assert len(swarm.coordinator.of(DuplicateIdentity)) == 1
    swarm.assert_equal(reference(swarm))
