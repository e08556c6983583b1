"""Runs with Muon, real cores and real compute in one process: whatever dies, the answer is the reference's."""

from collections.abc import Callable, Iterator

import pytest
from core_swarm import Swarm, killing, manifest, runs

from swarm.events import PeerLost
from swarm.protocol.peer import io as peer_io


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


@pytest.mark.parametrize("averaging", ["none", "dither:1"])
@pytest.mark.parametrize("kind", [peer_io.Forward, peer_io.Apply])
def test_a_killed_replica_changes_nothing(run, kind: type, averaging: str) -> None:
    of = manifest("int8", averaging=averaging, optimizer="muon")
    swarm = run(of, hook=killing(3, 1, kind))
    assert any(isinstance(event, PeerLost) for event in swarm.events)
    assert swarm.digests() == swarm.reference() == swarm.plain()
    other = run(manifest("int8", averaging=averaging))
    assert other.digests() != swarm.digests()
