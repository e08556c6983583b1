"""Two processes of one coordinator, because its home was copied: one goes on, the other says why it does not."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeGroup, MakeSwarm
from swarm_processes import Process, Swarm

from peers.chaos.internet import Internet, Namespaces, Place, Relays
from peers.chaos.namespace import why_not
from peers.chaos.scenario import HostPlan, NetworkPlan
from peers.run.home import Home
from swarm.events import (
    CoordinatorCopied,
    LeaderFollowed,
    LeadershipLost,
    LeadershipTaken,
    PeerJoined,
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

HERE = Place("127.0.0.1", None, ("--listen=/ip4/127.0.0.1/tcp/0",), ())

Reference = Callable[[Swarm], tuple[str, ...]]


def copied(process: Process, name: str, but: tuple[str, ...] = ()) -> Path:
    """A copy of a coordinator's home as a backup would have it, without its log."""
    copy = process.home.with_name(name)
    without = shutil.ignore_patterns("control.*", "lock", "events*.jsonl", *but)
    return Path(shutil.copytree(process.home, copy, ignore=without))


def start(swarm: Swarm, home: Path, place: Place = HERE) -> Process:
    """Coordinate with a copied home, at another port."""
    output, nursery = swarm.folder / f"{home.name}.out", next(iter(swarm.peers.values())).nursery
    process = swarm.others[home.name] = Process(home.name, home, output, nursery)
    run(swarm, process, swarm.folder / f"{home.name}.invite", place)
    return process


def run(swarm: Swarm, process: Process, invite: Path, place: Place) -> None:
    process.namespace = place.namespace
    sets = [f"--set={text}" for text in swarm.sets]
    words = [f"--invite-file={invite}", "--devices=64", "--no-dashboard", *place.listening, *sets]
    process.start(["coordinate", str(swarm.run_file), *words])


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


def ended_beside(copy: Process, *says: str) -> None:
    """It knew where the other process is, and has not started. On a busy machine that may answer too late: then the
    members have said so.
    """
    code = copy.wait_end()
    assert code == (4 if copy.of(ProcessStarted) else 2)
    assert any(f"another process with the key of {copy.home} {each}" in told(copy) for each in says)
    assert not copy.of(StepDecided) and not Home(copy.home).superseded.exists()


def test_a_copy_beside_the_running_coordinator_does_not_start(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = in_training(make_swarm, 16)
    swarm.coordinator.wait_for(StepDecided, step=2)
    copy = start(swarm, copied(swarm.coordinator, "copy"))
    ended_beside(copy, f"is running, at {swarm._address}")
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
    if Home(left.home).superseded.exists():
        left_for(left, stays)
    else:
        assert left.code in (2, 4) and f"the key of {left.home} is running, at" in told(left)
    swarm.finish()
    swarm.assert_equal(reference(swarm))


class Apart:
    """A swarm whose processes are hosts of an emulated internet."""

    def __init__(self, swarm: Swarm, internet: Internet, peers: tuple[str, ...]) -> None:
        self.swarm, self._internet = swarm, internet
        self._places = {name: internet.add(HostPlan(name)) for name in ("original", "copy", *peers)}
        original = swarm.coordinator
        run(swarm, original, swarm._invite_file, self._places["original"])
        internet.started("original", original.pid)
        original.wait(swarm._invite_file.exists, "an invite")
        for name in peers:
            peer = swarm.peers.setdefault(name, swarm._process(name))
            peer.namespace = self._places[name].namespace
            swarm.join(name, *PACE, *self._places[name].joining)
            internet.started(name, peer.pid)
            original.wait_for(PeerJoined, len(swarm.peers))

    def start_copy(self, home: Path) -> Process:
        copy = start(self.swarm, home, self._places["copy"])
        self._internet.started("copy", copy.pid)
        return copy


def between(some: tuple[str, ...], others: tuple[str, ...]) -> list[tuple[str, str]]:
    """Every link from one to the other."""
    return [pair for a in some for b in others for pair in ((a, b), (b, a))]


def noted(coordinator: Process) -> dict[str, object]:
    """The peers whose addresses a coordinator has stored."""
    notebook = Home(coordinator.home).notebook
    return dict(json.loads(notebook.read_text())) if notebook.exists() else {}


def emulated() -> Internet:
    return Namespaces(NetworkPlan()) if why_not() is None else Relays(NetworkPlan())


def test_a_copy_that_cannot_reach_the_other_waits_while_that_works(make_swarm: MakeSwarm, reference: Reference) -> None:
    with emulated() as internet:
        swarm = make_swarm("none", "run.steps=20", *ALONE, "timing.step_budget_s=30")
        apart, original = Apart(swarm, internet, PEERS), swarm.coordinator
        original.wait_for(StepDecided, step=2)
        home = copied(original, "copy")
        internet.cut(between(("original",), ("copy",)))
        copy = apart.start_copy(home)
        waits = copy.wait_for(CoordinatorCopied)
        assert waits.addresses, "peers say where the other one is"
        seen = original.of(StepDecided)[-1].step
        original.wait_for(StepDecided, step=seen + 2)
        assert not original.of(StreamBroken) and not copy.of(StepDecided)
        original.kill()
        replaced(swarm, copy)
        swarm.finish()
        (back,) = copy.of(RolledBack)
        assert "the decision record is an older copy" in back.reason
        swarm.assert_replicas_identical()
        swarm.assert_equal(reference(swarm))


@pytest.mark.long
def test_two_halves_that_went_on_apart_follow_the_newer_one(make_swarm: MakeSwarm, reference: Reference) -> None:
    """Each half has a peer of each stage, and a coordinator. Their peers meet again when both have decided steps.

    A peer may send to the original for another 40 s, until libp2p finds its connection dead.
    """
    ours, theirs = ("original", "p0", "p1"), ("copy", "p2", "p3")
    with emulated() as internet:
        steps = ("run.steps=100", "checkpoint.every=4", "timing.step_budget_s=10")
        swarm = make_swarm("none", *steps, "swarm.replicas=1", "swarm.start_timeout_s=20")
        apart, original = Apart(swarm, internet, ("p0", "p1", "p2", "p3")), swarm.coordinator
        original.wait_for(StepDecided, step=2)
        original.wait(lambda: len(noted(original)) == 4, "the addresses of all peers in its home")
        home = copied(original, "copy")
        internet.cut(between(ours, theirs))
        copy = apart.start_copy(home)
        decided = copy.wait_for(StepDecided).step
        original.wait_for(StepDecided, step=decided + 2)
        internet.heal(between(ours, theirs))
        replaced(swarm, copy)
        left_for(original, copy)
        swarm.finish()
        swarm.assert_equal(reference(swarm))


def test_the_copy_of_a_member_of_a_group_ends_before_it_votes(make_group: MakeGroup, reference: Reference) -> None:
    swarm = make_group("timing.step_budget_s=15", "run.steps=20", "swarm.replicas=1", "swarm.max_replicas=1")
    leader = swarm.start_group()
    follower = swarm.followers()[0]
    swarm.join_stages(PEERS, alike=PACE)
    leader.wait_for(StepDecided, step=1)
    known = start(swarm, copied(follower, "known"))
    ended_beside(known, "is running, at", "takes part in the group, at")
    unknown = start(swarm, copied(follower, "unknown", UNKNOWN))
    assert unknown.wait_end() == 4
    (stopped,) = unknown.of(ProcessStopped)
    assert f"another process with the key of {unknown.home} takes part in the group, at /ip4/" in stopped.reason
    assert not unknown.of(LeaderFollowed) and not unknown.of(LeadershipTaken)
    follower.kill()  # its own next process is let in at once
    assert follower.wait_end() == -signal.SIGKILL
    swarm.start_member(swarm.host(follower))
    follower.wait_for(LeaderFollowed, 2)
    swarm.finish_group()
    assert len(leader.of(LeadershipTaken)) == 1 and not leader.of(LeadershipLost)
    swarm.assert_archives_equal(reference(swarm))
