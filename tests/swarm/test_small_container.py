"""A peer in a container of 1 GiB, on a machine with more: it joins, trains, and is not killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MakeSwarm

from peers.launching.nursery import Nursery
from swarm.events import MachineMeasured, StepApplied

GIB = 1 << 30
PLACES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)
"""Of cgroups v1 and v2: (where, the limit, the most that was used)."""


@pytest.fixture
def container() -> Iterator[tuple[Path, str]]:
    """A group with a limit of 1 GiB, and the file of its peak."""
    for base, limit, peak in PLACES:
        folder = base / f"swarm-peer-small-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(GIB))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield folder, peak
        folder.rmdir()
        return
    pytest.skip("no cgroup with a memory limit can be made here")


@contextmanager
def within(folder: Path, pid: int) -> Iterator[None]:
    """For a while, the process is in that group."""
    groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    before = next(path for _, kinds, path in groups if "memory" in kinds.split(",") or not kinds)
    (folder / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (folder.parent / before.lstrip("/") / "cgroup.procs").write_text(str(pid))


@pytest.mark.swarm
def test_a_peer_stays_within_the_limit_of_its_container(
    container: tuple[Path, str], nursery: Nursery, make_swarm: MakeSwarm
) -> None:
    folder, peak = container
    shape = ("model.dim=128", "model.heads=4", "model.ffn_dim=512", "model.context=128")
    batch = ("batch.sequences=4", "batch.sequence_length=128", "batch.microbatches=4")
    swarm = make_swarm("int8", *shape, *batch, "run.steps=2", "swarm.replicas=1")
    swarm.coordinate()
    with within(folder, nursery.pid):  # the peer is a fork of it, and reads its limits at once
        small = swarm.join("p0", "--max-memory=64GB", capacity=None)
    small.wait_for(MachineMeasured)
    assert small.of(MachineMeasured)[0].memory < GIB - (400 << 20) // 2
    swarm.join("p1")
    small.wait_for(StepApplied, 2)
    swarm.finish()
    assert small.code == 0
    assert int((folder / peak).read_text()) < GIB
