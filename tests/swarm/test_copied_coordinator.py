"""Two processes of one coordinator, because its home was copied: one goes on, the other says why it does not."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from peers.run.home import Home
from swarm.events import (
    ProcessStarted,
    ProcessStopped,
    RolledBack,
    StepDecided,
    StreamBroken,
)

PEERS = ("p0", "p1")
ALONE = ("swarm.replicas=1", "swarm.max_replicas=1", "checkpoint.every=4")
PACE = ("--pace=0.02,0.04",)
UNKNOWN = ("join-token",)
"""Without it, a copy does not know where the other process listens."""

Reference = Callable[[Swarm], tuple[str, ...]]


def copied(process: Process, name: str, but: tuple[str, ...] = ()) -> Path:
    """A copy of a coordinator's home as a backup would have it, without its log."""
    copy = process.home.with_name(name)
    without = shutil.ignore_patterns("control.*", "lock", "events*.jsonl", *but)
    return Path(shutil.copytree(process.home, copy, ignore=without))


def start(swarm: Swarm, home: Path) -> Process:
    """Coordinate with a copied home, at another port."""
    sets = [f"--set={text}" for text in swarm.sets]
    process = swarm.others[home.name] = Process(
        home.name, home, swarm.folder / f"{home.name}.out", swarm.coordinator.nursery
    )
    words = [f"--invite-file={home}.invite", "--listen=/ip4/127.0.0.1/tcp/0", "--devices=64", "--no-dashboard"]
    process.start(["coordinate", str(swarm.run_file), *words, *sets])
    return process


def told(process: Process) -> str:
    """What a process printed, in one line."""
    return " ".join(process.words().split())


def in_training(make_swarm: MakeSwarm, steps: int, more: tuple[str, ...] = ()) -> Swarm:
    swarm = make_swarm("none", f"run.steps={steps}", *ALONE, "timing.step_budget_s=30")
    swarm.coordinate(*more)
    swarm.join_stages(PEERS, alike=PACE)
    return swarm


def replaced(swarm: Swarm, copy: Process) -> Process:
    """The copy is the coordinator from now on. Returns the one from before."""
    original, swarm.coordinator = swarm.coordinator, copy
    swarm.others["original"] = original
    return original


def left_for(original: Process, copy: Process) -> None:
    """It has ended because the copy was started later, says where that runs, and does not start again by itself."""
    assert original.wait_end() == 4, original.words()
    (stopped,) = original.of(ProcessStopped)
    for text in (stopped.reason, told(original)):
        assert "another process with the key of" in text and "was started later, at /ip4/" in text
        assert str(original.home) in text and "superseded" in text


def test_a_copy_beside_the_running_coordinator_does_not_start(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = in_training(make_swarm, 16)
    swarm.coordinator.wait_for(StepDecided, step=2)
    copy = start(swarm, copied(swarm.coordinator, "copy"))
    assert copy.wait_end() == 2
    assert not copy.of(ProcessStarted), "it has dialled no peer"
    assert f"another process with the key of {copy.home} is running, at {swarm._address}" in told(copy)
    swarm.finish()
    assert not swarm.coordinator.of(StreamBroken)
    swarm.assert_equal(reference(swarm))


def test_a_copy_that_learns_of_the_other_from_peers_ends(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = in_training(make_swarm, 16)
    swarm.coordinator.wait_for(StepDecided, step=2)
    copy = start(swarm, copied(swarm.coordinator, "copy", UNKNOWN))
    assert copy.wait_end() == 4
    (stopped,) = copy.of(ProcessStopped)
    assert f"another process with the key of {copy.home} is running, at {swarm._address}" in stopped.reason
    assert not copy.of(StepDecided) and not Home(copy.home).superseded.exists()
    swarm.finish()
    assert not swarm.coordinator.of(StreamBroken) and not swarm.coordinator.of(RolledBack)
    swarm.assert_equal(reference(swarm))


def test_a_coordinator_that_slept_leaves_when_it_wakes(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = in_training(make_swarm, 16, ("--fault=stop@StepDecided,step=4",))
    swarm.coordinator.wait_stopped()
    copy = start(swarm, copied(swarm.coordinator, "copy"))
    original = replaced(swarm, copy)
    copy.wait_for(StepDecided, step=8)
    original.resume()
    left_for(original, copy)
    assert original.of(StepDecided)[-1].step == 4
    swarm.finish()
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_of_two_that_start_together_one_goes_on(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = in_training(make_swarm, 16)
    swarm.coordinator.wait_for(StepDecided, step=2)
    swarm.coordinator.kill()
    assert swarm.coordinator.wait_end() == -signal.SIGKILL
    homes = [copied(swarm.coordinator, name) for name in ("one", "two")]
    one, two = [start(swarm, home) for home in homes]
    one.wait(lambda: one.code is not None or two.code is not None, "the end of one", alive=False)
    left, stays = (one, two) if one.code is not None else (two, one)
    replaced(swarm, stays)
    if left.code == 2:
        assert "is running, at" in told(left)
    else:
        left_for(left, stays)
    swarm.finish()
    swarm.assert_equal(reference(swarm))
