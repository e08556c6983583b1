"""Everything dies or is told to leave, and the run goes on from the archive to the same digests."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from combinations import in_turn
from conftest import CODECS, MakeSwarm
from swarm_processes import EVEN, Swarm

from peers.run.home import Home
from swarm.events import (
    CheckpointArchived,
    CheckpointRefused,
    CheckpointWritten,
    CoordinatorAway,
    CoordinatorBack,
    CoordinatorStarted,
    PeerJoined,
    PeerLost,
    ProcessStarted,
    ProcessStopped,
    RecordOutdated,
    RolledBack,
    StateFetched,
    StepApplied,
    StepDecided,
)
from swarm.net.invite import parse
from swarm.state.archive import Archive

PEERS = ("p0", "p1", "p2", "p3")
LONG = "run.steps=16"
PATIENT = "timing.recruit_after_s=30"
"""For a coordinator that must find every peer again, however long they take to dial it."""

Reference = Callable[[Swarm], tuple[str, ...]]


def run_until_everything_dies(swarm: Swarm, version: int) -> int:
    """Start a swarm, kill all of it when `version` or a later one is the second or a later one in the archive.

    Returns the last step it logged as decided. A decision is on disk before it is logged, so the record may be one step
    ahead. The pace leaves time for the archive: without it, the swarm may train to the end first. A version may be left
    out, since peers report their newest.
    """
    swarm.coordinate()
    swarm.join_stages(PEERS, alike=(EVEN,))

    def there() -> bool:
        versions = [event.version for event in swarm.coordinator.of(CheckpointArchived)]
        return len(versions) > 1 and versions[-1] >= version

    swarm.coordinator.wait(there, f"version {version} in the archive")
    swarm.kill()
    assert all(process.code == -signal.SIGKILL for process in swarm.processes)
    return swarm.coordinator.of(StepDecided)[-1].step


@pytest.mark.parametrize(
    ("again", "codec"), in_turn({"same-homes": PEERS, "empty-homes": ("q0", "q1", "q2", "q3")}, CODECS)
)
def test_resume_when_everything_died(
    again: tuple[str, ...], codec: str, make_swarm: MakeSwarm, reference: Reference
) -> None:
    swarm = make_swarm(codec, LONG, PATIENT)
    logged = run_until_everything_dies(swarm, 4)
    swarm.coordinate()
    swarm.join_stages(again)
    swarm.finish(names=again)
    restarted = swarm.coordinator.of(CoordinatorStarted)[-1]
    assert restarted.term == 2 and restarted.decided in (logged, logged + 1)
    for name in again[:2]:  # the first of their stages: others may copy from them
        (fetched,) = swarm.peers[name].of(StateFetched)
        assert 4 <= fetched.version <= restarted.decided + 1
        if swarm.peers[name].of(CheckpointWritten, version=fetched.version):
            assert fetched.source == "own checkpoint"
        else:  # killed before its own copy was on its disk, or an empty home
            assert fetched.source in ("own checkpoint", "archive") if again == PEERS else fetched.source == "archive"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_peers_that_are_back_before_their_coordinator_wait_for_it(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", LONG, PATIENT)
    run_until_everything_dies(swarm, 4)
    for name in PEERS:
        swarm.join(name)
    for name in PEERS:
        away = swarm.peers[name].wait_for(CoordinatorAway)
        assert "no node answers at" in away.reason and away.leaves_in_s > 500
    swarm.coordinate()
    swarm.finish()
    assert all(swarm.peers[name].of(CoordinatorBack) for name in PEERS)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_a_restarted_peer_finds_a_coordinator_that_has_moved(make_swarm: MakeSwarm, reference: Reference) -> None:
    """The peer restarts with the old invite: it was connected when the coordinator came back at another port.

    Each stage has one peer, so the run waits for it.
    """
    swarm = make_swarm("none", LONG, PATIENT, "swarm.replicas=1")
    swarm.coordinate()
    old = swarm.invite
    swarm.join_stages(PEERS[:2], alike=(EVEN,))
    swarm.coordinator.wait_for(StepDecided, 2)
    swarm.coordinator.kill()
    swarm.coordinator.wait_end()
    swarm.move()
    notebook = Home(swarm.peers["p0"].home).notebook
    swarm.peers["p0"].wait(lambda: not at_one_of(old, notebook), "the coordinator's new address in the peer's notebook")
    swarm.peers["p0"].kill()
    swarm.peers["p0"].wait_end()
    swarm.join("p0", EVEN, invite=old)
    swarm.finish()
    assert len(swarm.peers["p0"].of(PeerJoined)) >= 2
    swarm.assert_equal(reference(swarm))


def at_one_of(invite: str, notebook: Path) -> bool:
    """Whether the notebook has no address of the coordinator that the invite does not have."""
    noted = json.loads(notebook.read_text()) if notebook.exists() else {}
    return {address for _, addresses in noted.values() for address in addresses} <= set(parse(invite).addresses)


def test_damaged_shard_of_the_archive_is_named_and_the_version_before_it_used(
    make_swarm: MakeSwarm, reference: Reference
) -> None:
    swarm = make_swarm("none", LONG)
    run_until_everything_dies(swarm, 6)
    archive = Home(swarm.coordinator.home).archive
    before, newest = Archive(archive, swarm.manifest.hash, 2, swarm.manifest.checkpoint.keep).complete_versions()[-2:]
    (folder,) = [path for path in archive.iterdir() if path.name.isdigit() and int(path.name) == newest]
    damaged = folder / "stage-1.safetensors"
    torn(damaged)
    swarm.coordinate()
    for name in ("q0", "q1", "q2", "q3"):
        swarm.join(name)
    swarm.finish(names=("q0", "q1", "q2", "q3"))
    refused = swarm.coordinator.of(CheckpointRefused)
    assert damaged in {Path(event.path) for event in refused}  # beside a version that was never finished, perhaps
    assert swarm.coordinator.of(RolledBack)[-1].version == before
    fetched = [(at, e) for peer in swarm.peers.values() for at, e in peer.log if isinstance(e, StateFetched)]
    for stage in (0, 1):  # its first peer, whoever that is: others may come when the run has gone on
        assert next(e.version for _, e in sorted(fetched, key=lambda x: x[0]) if e.stage == stage) == before
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_interrupted_processes_leave_and_the_run_goes_on(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", LONG, PATIENT)
    swarm.coordinate("--fault=stop@StepDecided,step=8")
    swarm.join_stages(PEERS, {"p0": ("--fault=stop@StepApplied,step=3",)})
    p0, coordinator = swarm.peers["p0"], swarm.coordinator
    p0.wait_for(StepApplied, step=3)
    p0.resume()
    p0.signal(signal.SIGINT)
    assert p0.wait_end(within_s=10.0) == 0
    assert p0.of(ProcessStopped)[0].reason == "left: others hold stage 0"
    coordinator.wait_for(StepDecided, step=8)
    coordinator.resume()
    coordinator.signal(signal.SIGINT)
    assert coordinator.wait_end(within_s=10.0) == 130
    assert [event.reason for event in coordinator.of(PeerLost)] == ["left: others hold stage 0"]
    swarm.coordinate()
    swarm.finish(names=("p1", "p2", "p3"))
    assert len(coordinator.of(ProcessStarted)) == 2 and not coordinator.of(RolledBack)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_older_copy_of_the_record_goes_back_to_its_checkpoint_with_the_peers_that_are_there(
    make_swarm: MakeSwarm, reference: Reference
) -> None:
    """The coordinator's disk is lost, and its home restored from a copy that knows neither the last steps nor terms."""
    swarm = make_swarm("int8", LONG)
    copy = swarm.folder / "copy"
    for life, step in enumerate((6, 10, 14)):
        swarm.coordinate(f"--fault=stop@StepDecided,step={step}")
        if not life:
            swarm.join_stages(PEERS)
        swarm.coordinator.wait_for(StepDecided, step=step)
        swarm.coordinator.kill()
        swarm.coordinator.wait_end()  # until then its home is in use
        if not life:
            shutil.copytree(swarm.coordinator.home, copy, ignore=shutil.ignore_patterns("control.*"))
    swarm.restore(copy)
    swarm.coordinate()
    swarm.finish()
    (outdated,) = swarm.coordinator.of(RecordOutdated)
    (back,) = swarm.coordinator.of(RolledBack)
    assert outdated.term == 2 and outdated.next_term >= 4, "peers have heard of term 3, or of a later one"
    assert back.version <= 7 and back.term > 3
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def torn(shard: Path) -> None:
    """Half of the file never reached the disk."""
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)
