"""A stranger floods a coordinator: it learns nothing, and a newcomer trains meanwhile.

`python -m benchmarks.flood` does it for ten minutes and measures.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeSwarm
from swarm_processes import DEADLINE_S, Swarm

from peers.run.home import Home
from swarm.events import MicrobatchAccumulated, PeerJoined, PeerRefused, StepDecided
from swarm.manifest import PROTOCOL_VERSION
from swarm.net.dht_protocol import NotAdmitted
from swarm.net.door import STRANGER
from swarm.net.identity import Identity
from swarm.net.invite import parse
from swarm.net.proto import link_pb2

pytestmark = pytest.mark.swarm
PACE = "--pace=0.04,0.08"
LONG = ("run.steps=2000", "batch.microbatches=4", "checkpoint.every=1000", "evaluation.every=0", "swarm.replicas=1")
SECONDS = 20
RECORDS = 2000
_REFUSAL = link_pb2.HelloReply(refusal=link_pb2.NO_PASS, reason=STRANGER, protocol_version=PROTOCOL_VERSION)
REFUSED_STREAM = (struct.pack("<II", _REFUSAL.ByteSize(), 0) + _REFUSAL.SerializeToString()).hex()
REFUSED_REQUEST = repr(NotAdmitted())
CUT = {"stream reset", "session shutdown", "connection failed"}
"""What its own libp2p daemon says when a connection ends."""


def test_a_stranger_that_floods_the_coordinator_learns_nothing_and_a_newcomer_trains(
    make_swarm: MakeSwarm, tmp_path: Path
) -> None:
    swarm = make_swarm("none", *LONG)
    swarm.coordinate()
    for name in ("p0", "p1"):
        swarm.join(name, PACE)
    swarm.coordinator.wait_for(StepDecided, step=0)
    address = parse(swarm.invite).addresses[0]
    command = [sys.executable, "-m", "benchmarks.stranger", address, str(SECONDS), f"--records={RECORDS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stranger:
        swarm.coordinator.wait_for(PeerRefused)
        newcomer = swarm.join("p2", PACE)
        swarm.coordinator.wait_for(PeerJoined, 3)
        newcomer.wait_for(MicrobatchAccumulated)
        out, err = stranger.communicate(timeout=SECONDS + DEADLINE_S)
    assert stranger.returncode == 0, err
    report = json.loads(out)
    assert report["done"]["tcp connections"] and report["done"]["streams"] and report["done"]["dht refused"], report
    words = report["told"].keys()
    assert words <= {"", REFUSED_STREAM, REFUSED_REQUEST} | CUT, words
    assert REFUSED_STREAM in words and REFUSED_REQUEST in words, "it was answered"
    assert not report["met"], "its libp2p daemon knows nobody but the attacked one"
    told = "".join(report["told"])
    for secret in secrets(swarm):
        assert secret not in told and secret.encode().hex() not in told
    decided = swarm.coordinator.of(StepDecided)[-1].step
    swarm.coordinator.wait_for(StepDecided, step=decided + 3)
    assert all(process.code is None for process in swarm.processes), swarm.words()


def secrets(swarm: Swarm) -> list[str]:
    """What only members may know: the run hash, their ids, the addresses of the peers."""
    members = [Identity.load(Home(peer.home).identity).peer_id for peer in swarm.peers.values()]
    return [swarm.manifest.hash, *members]
