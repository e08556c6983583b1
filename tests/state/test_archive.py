"""The archive: one verified copy of every stage."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from given_state import saved

from swarm.state.archive import Archive
from swarm.state.checkpoints import CheckpointStore
from swarm.state.error import StateError
from swarm.state.layout import ShardMeta, state_shapes
from swarm.state.transfer import TransferHeader, iter_chunks, iter_file_chunks

RUN = "ab" * 32
SHAPES = state_shapes({"w": (8, 16)})


def state(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, value) for name, shape in SHAPES.items()}


def meta(stage: int, version: int) -> ShardMeta:
    return ShardMeta(RUN, stage, version, version, "cd" * 32, "ef" * 32)


def file_hash(tensors: dict[str, torch.Tensor], of: ShardMeta) -> str:
    """What the replicas would say."""
    return TransferHeader.decode(next(iter_chunks(tensors, of)), "x").hash


def put(archive: Archive, stage: int, version: int, value: float = 1.0) -> None:
    sent = (state(value), meta(stage, version))
    writer = archive.receive(stage, version, file_hash(*sent))
    for chunk in iter_chunks(*sent):
        writer.feed(chunk)
    writer.commit()


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_the_newest_version_that_is_good_stays_beside_the_newest(tmp_path: Path) -> None:
    archive = Archive(tmp_path, RUN, stages=1, keep=1)
    archive.proven = 15
    for version in (5, 10, 20, 30):
        put(archive, 0, version)
    assert archive.complete_versions() == [10, 30]
    archive.proven = 35
    put(archive, 0, 40)
    assert archive.complete_versions() == [30, 40]


def test_the_version_that_the_run_goes_back_to_stays(tmp_path: Path) -> None:
    archive = Archive(tmp_path, RUN, stages=2, keep=5)
    for version in (5, 10, 15):
        put(archive, 0, version)
    put(archive, 1, 10)
    put(archive, 1, 15)
    archive.forget_after(10)
    assert archive.complete_versions() == [10] and not archive.holds(0, 15)


def test_complete_means_every_stage(tmp_path: Path) -> None:
    archive = Archive(tmp_path, RUN, stages=2, keep=2)
    put(archive, 0, 10, 0.5)
    assert archive.complete_versions() == [] and archive.newest() is None and archive.holds(0, 10)
    put(archive, 1, 10, 1.5)
    assert archive.complete_versions() == [10] and archive.newest() == 10
    stored = archive.checkpoint(1, 10).hash
    assert archive.holds(1, 10, stored) and not archive.holds(1, 10, "00" * 32) and not archive.holds(1, 20)
    assert float(archive.open_shard(1, 10, SHAPES).tensors["param/w"][0, 0]) == 1.5
    again = Archive(tmp_path, RUN, stages=2, keep=2)
    assert again.newest() == 10
    with pytest.raises(StateError, match="not in the archive"):
        put_only = Archive(tmp_path / "other", RUN, stages=2, keep=2)
        put(put_only, 0, 10)
        put_only.open_shard(1, 10)


def test_another_process_may_read_while_a_shard_arrives(tmp_path: Path) -> None:
    archive = Archive(tmp_path, RUN, stages=1, keep=2)
    put(archive, 0, 10)
    sent = (state(2.0), meta(0, 20))
    writer = archive.receive(0, 20, file_hash(*sent))
    for chunk in iter_chunks(*sent):
        writer.feed(chunk)
        assert Archive(tmp_path, RUN, stages=1, keep=2).newest() == 10
    writer.commit()
    assert Archive(tmp_path, RUN, stages=1, keep=2).newest() == 20


def test_what_cannot_be_pruned_is_named_and_the_shard_is_archived(tmp_path: Path) -> None:
    refused: list[tuple[Path, str]] = []
    archive = Archive(tmp_path, RUN, 1, 1, on_refused=lambda path, reason: refused.append((path, reason)))
    (tmp_path / "00000005" / "manifest.json").mkdir(parents=True)
    put(archive, 0, 10)
    assert archive.newest() == 10
    assert refused == [(tmp_path / "00000005", "is old and cannot be removed: Is a directory")]


def test_prune_keeps_complete_versions_and_what_is_newer(tmp_path: Path) -> None:
    archive = Archive(tmp_path, RUN, stages=2, keep=2)
    put(archive, 0, 5)  # never completed
    for version in (10, 20, 30):
        put(archive, 0, version)
        put(archive, 1, version)
    put(archive, 0, 40)  # not complete yet
    assert archive.complete_versions() == [20, 30]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000020", "00000030", "00000040"]


def test_a_replicas_file_arrives_byte_for_byte(tmp_path: Path) -> None:
    theirs = saved(
        CheckpointStore(tmp_path / "peer", RUN, 1), 0, 10, state(2.0), "ef" * 32, updates=10, chain="cd" * 32
    )
    archive = Archive(tmp_path / "archive", RUN, stages=1, keep=1)
    writer = archive.receive(0, 10, theirs.hash)
    for chunk in iter_file_chunks(theirs, RUN):
        writer.feed(chunk)
    stored = writer.commit()
    assert stored.path.read_bytes() == theirs.path.read_bytes()
    assert stored.hash == theirs.hash
    assert b"".join(iter_file_chunks(archive.checkpoint(0, 10), RUN)) == b"".join(iter_file_chunks(theirs, RUN))


def test_a_donor_that_differs_from_the_replicas_is_refused(tmp_path: Path) -> None:
    honest = saved(
        CheckpointStore(tmp_path / "peer", RUN, 1), 0, 10, state(2.0), "ef" * 32, updates=10, chain="cd" * 32
    )
    archive = Archive(tmp_path / "archive", RUN, stages=1, keep=1)
    writer = archive.receive(0, 10, honest.hash)
    for chunk in iter_chunks(state(2.0000002), meta(0, 10)):  # claims the right digest
        writer.feed(chunk)
    with pytest.raises(StateError, match="the replicas have"):
        writer.commit()
    writer.abort()
    assert files(tmp_path / "archive") == []


@pytest.mark.parametrize(
    ("sent", "value", "message"),
    [
        (meta(0, 11), 1.0, "version is 11"),
        (meta(1, 10), 1.0, "stage is 1"),
        (dataclasses.replace(meta(0, 10), run_hash="cd" * 32), 1.0, "run_hash"),
        (meta(0, 10), float("nan"), "NaN"),
    ],
)
def test_a_wrong_shard_leaves_nothing(tmp_path: Path, sent: ShardMeta, value: float, message: str) -> None:
    archive = Archive(tmp_path, RUN, stages=1, keep=1)
    writer = archive.receive(0, 10, file_hash(state(value), sent))
    with pytest.raises(StateError, match=message):
        for chunk in iter_chunks(state(value), sent):
            writer.feed(chunk)
        writer.commit()
    writer.abort()
    assert files(tmp_path) == [] and archive.newest() is None


def test_a_shard_of_another_version_under_the_right_header_leaves_nothing(tmp_path: Path) -> None:
    first, *rest = iter_chunks(state(1.0), meta(0, 9))
    lie = dataclasses.replace(TransferHeader.decode(first, "x"), version=10)
    archive = Archive(tmp_path, RUN, stages=1, keep=1)
    writer = archive.receive(0, 10, lie.hash)
    for chunk in (lie.encode(), *rest):
        writer.feed(chunk)
    with pytest.raises(StateError, match="version is 9, expected 10"):
        writer.commit()
    writer.abort()
    assert files(tmp_path) == []


def test_a_torn_or_oversized_transfer_leaves_nothing(tmp_path: Path) -> None:
    chunks = list(iter_chunks(state(1.0), meta(0, 10)))
    archive = Archive(tmp_path, RUN, stages=1, keep=1)
    writer = archive.receive(0, 10, "00" * 32)
    for chunk in chunks[:-1]:
        writer.feed(chunk)
    with pytest.raises(StateError, match="ended after"):
        writer.commit()
    writer.abort()
    writer = Archive(tmp_path, RUN, stages=1, keep=1, shard_limits=[1000]).receive(0, 10, "00" * 32)
    with pytest.raises(StateError, match="at most 1000"):
        writer.feed(chunks[0])
    with pytest.raises(StateError, match="no stage 1"):
        archive.receive(1, 10, "00" * 32)
    assert files(tmp_path) == []


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("harm", ["flip", "tear", "remove"])
def test_resume_falls_back_to_the_version_that_is_whole(tmp_path: Path, stage: int, harm: str) -> None:
    archive = Archive(tmp_path, RUN, stages=2, keep=3)
    for version in (10, 20):
        put(archive, 0, version)
        put(archive, 1, version)
    path = archive.checkpoint(stage, 20).path
    raw = bytearray(path.read_bytes())
    if harm == "flip":
        raw[-5] ^= 1
        path.write_bytes(raw)
    elif harm == "tear":
        path.write_bytes(raw[:100])
    else:
        path.unlink()
    refused: list[Path] = []
    again = Archive(tmp_path, RUN, stages=2, keep=3, on_refused=lambda file, reason: refused.append(file))
    assert again.newest() == 10
    assert refused == [path]
    assert not again.holds(stage, 20) and again.holds(1 - stage, 20), "it is to be fetched again"
    assert again.complete_versions() == [10], "the last intact version is not pruned for it"
    put(again, stage, 20)
    assert again.holds(stage, 20) and again.newest() == 20


def test_two_observers_with_one_home_fetch_a_shard_at_once(tmp_path: Path) -> None:
    """Each writes a file of its own: observers do not lock their home."""
    sent = (state(1.0), meta(0, 10))
    first, second = (Archive(tmp_path, RUN, stages=1, keep=1).receive(0, 10, file_hash(*sent)) for _ in range(2))
    header, *chunks = iter_chunks(*sent)
    for chunk in (header, *chunks):
        second.feed(chunk)
    first.feed(header)  # this once emptied the file of the other one
    second.commit()
    first.abort()
    assert Archive(tmp_path, RUN, stages=1, keep=1).newest() == 10
    assert files(tmp_path) == [f"00000010/{name}" for name in ("manifest.json", "stage-0.safetensors")]


FULL_DISK = """
import resource, sys, torch
from pathlib import Path
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.layout import ShardMeta
from swarm.state.transfer import TransferHeader, iter_chunks
archive = Archive(Path(sys.argv[1]), "ab" * 32, 1, 3)
def put(version):
    sent = {"param/w": torch.ones(1000)}, ShardMeta("ab" * 32, 0, version, 0, "cd" * 32, "ef" * 32)
    writer = archive.receive(0, version, TransferHeader.decode(next(iter_chunks(*sent)), "").hash)
    for chunk in iter_chunks(*sent):
        writer.feed(chunk)
    writer.commit()
put(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    put(20)
except StateError as error:
    print(error)
assert archive.newest() == 10
"""


def test_a_full_disk_leaves_the_archive_intact(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "not archived: File too large" in done.stdout
    assert not list(tmp_path.glob("**/*.tmp"))


def test_the_archive_itself_needs_no_torch() -> None:
    code = "import sys, swarm.state.archive; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=os.environ).returncode == 0
