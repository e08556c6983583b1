"""Checkpoints: commit, fall back, prune, full disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from given_state import saved

from swarm.state import draft
from swarm.state.checkpoints import CheckpointStore
from swarm.state.error import StateError
from swarm.state.folder import MANIFEST, Checkpoint
from swarm.state.layout import state_shapes
from swarm.state.room import SPARE_BYTES

RUN = "ab" * 32
SHAPES = state_shapes({"w": (8, 16), "b": (16,)})


def state(version: int) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, float(version)) for name, shape in SHAPES.items()}


class Refusals(list[tuple[Path, str]]):
    def __call__(self, path: Path, reason: str) -> None:
        self.append((path, reason))


def store(directory: Path, keep: int = 3, run: str = RUN) -> tuple[CheckpointStore, Refusals]:
    refusals = Refusals()
    return CheckpointStore(directory, run, keep, refusals), refusals


def save(checkpoints: CheckpointStore, stage: int, version: int, seed: int) -> Checkpoint:
    digest = f"{seed:064x}"
    return saved(checkpoints, stage, version, state(seed), digest, updates=version - 1, chain="cd" * 32)


def value(shard: object) -> float:
    return float(shard.tensors["param/w"][0, 0])


def test_save_load_and_prune(tmp_path: Path) -> None:
    checkpoints, refusals = store(tmp_path, keep=2)
    assert checkpoints.versions(1) == []
    for version in (10, 20, 30):
        one = save(checkpoints, 1, version, version)
        assert (one.stage, one.version, one.digest) == (1, version, f"{version:064x}")
        assert one.nbytes == one.path.stat().st_size
    assert checkpoints.versions(1) == [20, 30]
    assert value(checkpoints.load(1, 20, SHAPES)) == 20
    newest = checkpoints.load(1, 30, SHAPES)
    assert value(newest) == 30 and (newest.meta.version, newest.meta.updates, newest.meta.chain) == (30, 29, "cd" * 32)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000020", "00000030"]
    with pytest.raises(StateError, match="00000010"):
        checkpoints.load(1, 10)
    assert not refusals
    again, _ = store(tmp_path, keep=2)  # another process, later
    assert again.versions(1) == [20, 30] and value(again.load(1, 30)) == 30


def test_stages_are_kept_apart(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path, keep=1)
    save(checkpoints, 0, 10, 10)
    save(checkpoints, 1, 10, 11)
    save(checkpoints, 1, 20, 21)
    assert checkpoints.versions(0) == [10] and checkpoints.versions(1) == [20]
    assert value(checkpoints.load(0, 10)) == 10
    with pytest.raises(StateError, match="not committed"):
        checkpoints.load(1, 10)
    assert checkpoints.versions(2) == []


def test_saving_a_version_again_replaces_it(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path)
    save(checkpoints, 0, 10, 1)
    save(checkpoints, 0, 10, 2)
    assert value(checkpoints.load(0, 10)) == 2 and checkpoints.versions(0) == [10]


DAMAGE = {
    "shard torn in the head": ("stage-0.safetensors", lambda raw: raw[:20]),
    "shard torn in the values": ("stage-0.safetensors", lambda raw: raw[:-1]),
    "shard empty": ("stage-0.safetensors", lambda raw: b""),
    "shard longer": ("stage-0.safetensors", lambda raw: raw + b"\0"),
    "bit flipped in the length": ("stage-0.safetensors", lambda raw: flip(raw, 0)),
    "bit flipped in the head": ("stage-0.safetensors", lambda raw: flip(raw, 30)),
    "bit flipped in the values": ("stage-0.safetensors", lambda raw: flip(raw, len(raw) - 3)),
    "shard gone": ("stage-0.safetensors", None),
    "manifest torn": (MANIFEST, lambda raw: raw[: len(raw) // 2]),
    "manifest empty": (MANIFEST, lambda raw: b""),
    "manifest flipped": (MANIFEST, lambda raw: raw.replace(b'"bytes": ', b'"bytes": 1')),
    "manifest is no table": (MANIFEST, lambda raw: b"[]"),
    "manifest is not text": (MANIFEST, lambda raw: b"\xff\xfe" * 40),
    "manifest gone": (MANIFEST, None),
}


def flip(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_whole(tmp_path: Path, damage: str) -> None:
    checkpoints, _ = store(tmp_path)
    save(checkpoints, 0, 10, 10)
    newest = save(checkpoints, 0, 20, 20)
    name, change = DAMAGE[damage]
    path = newest.path.with_name(name)
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    again, _ = store(tmp_path)
    assert value(again.load(0, 10)) == 10
    with pytest.raises(StateError) as caught:
        again.load(0, 20)
    assert caught.value.where == str(path)


def test_every_flipped_byte_of_a_manifest_changes_nothing_or_is_refused(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path)
    newest = save(checkpoints, 0, 20, 20)
    path = newest.path.with_name(MANIFEST)
    raw = path.read_bytes()
    for place in range(len(raw)):
        path.write_bytes(flip(raw, place))
        try:
            assert checkpoints.checkpoint(0, 20) == newest
        except StateError as error:
            assert error.where == str(path)


def test_a_save_killed_at_any_point_is_as_if_it_had_not_begun(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path)
    save(checkpoints, 0, 10, 10)
    folder = tmp_path / "00000020"
    folder.mkdir()  # killed here,
    assert store(tmp_path)[0].versions(0) == [10]
    (folder / "stage-0.safetensors.part0.tmp").write_bytes(b"half")  # while writing,
    assert store(tmp_path)[0].versions(0) == [10]
    whole = (tmp_path / "00000010" / "stage-0.safetensors").read_bytes()
    (folder / "stage-0.safetensors").write_bytes(whole)  # after the rename,
    (folder / f"{MANIFEST}.part0.tmp").write_bytes(b"{")  # while committing
    (tmp_path / "0-30-1.draft").write_bytes(b"values")  # and while the next one was copied
    again, _ = store(tmp_path)
    assert again.versions(0) == [10] and not list(tmp_path.glob("*.draft"))
    save(again, 0, 20, 20)
    assert again.versions(0) == [10, 20] and value(again.load(0, 20)) == 20


def test_pruning_clears_what_was_never_finished_and_leaves_foreign_files(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path, keep=1)
    (tmp_path / "00000005").mkdir()
    for name in ("stage-0.safetensors", "stage-0.safetensors.part0.tmp", "manifest.json.part0.tmp"):
        (tmp_path / "00000005" / name).write_bytes(b"never committed")
    (tmp_path / "00000006").mkdir()
    (tmp_path / "00000006" / "notes.txt").write_text("mine")
    save(checkpoints, 0, 10, 10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000006", "00000010"]
    assert (tmp_path / "00000006" / "notes.txt").read_text() == "mine"


def test_what_is_saved_after_a_rollback_stays_and_what_was_rolled_back_goes(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path, keep=2)
    for version in (10, 20, 30):
        save(checkpoints, 0, version, version)
    save(checkpoints, 1, 30, 30)
    save(checkpoints, 0, 15, 15)
    assert checkpoints.versions(0) == [15] and value(checkpoints.load(0, 15)) == 15
    assert checkpoints.versions(1) == [30], "of another stage"
    save(checkpoints, 0, 25, 25)
    assert checkpoints.versions(0) == [15, 25]


def test_what_cannot_be_pruned_is_named_and_the_save_stands(tmp_path: Path) -> None:
    checkpoints, refusals = store(tmp_path, keep=1)
    obstacle = tmp_path / "00000005" / MANIFEST
    obstacle.mkdir(parents=True)
    assert save(checkpoints, 0, 10, 10).version == 10
    assert checkpoints.versions(0) == [10]
    ((path, reason),) = refusals
    assert path.parent == obstacle.parent and "cannot be removed: Is a directory" in reason


def test_another_runs_checkpoints_are_not_used(tmp_path: Path) -> None:
    save(store(tmp_path)[0], 0, 10, 10)
    other, _ = store(tmp_path, run="cd" * 32)
    assert other.versions(0) == []
    with pytest.raises(StateError, match="to run abab"):
        other.load(0, 10)


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep = 0"):
        CheckpointStore(tmp_path, RUN, 0)


FULL_DISK = """
import resource, sys, torch
from pathlib import Path
from swarm.compute.held import HeldState, Holds
from swarm.state.checkpoints import CheckpointStore
from swarm.state.error import StateError
checkpoints = CheckpointStore(Path(sys.argv[1]), "ab" * 32, 3)
def save(version):
    holds = Holds()
    holds.add(held := HeldState(holds, {"param/w": torch.ones(1000)}, version, 0, "00" * 32, ""))
    return checkpoints.save(checkpoints.draft(0, held))
save(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    save(20)
except StateError as error:
    print(error)
assert checkpoints.versions(0) == [10]
assert checkpoints.load(0, 10).meta.version == 10
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
save(30)
assert checkpoints.versions(0) == [10, 30]
"""


@pytest.mark.parametrize("room", [0, 100, 3000], ids=["no byte", "in the head", "in the values"])
def test_a_full_disk_leaves_older_checkpoints_intact(tmp_path: Path, room: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), str(room)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert "checkpoint of version 20 was not written: File too large; older checkpoints are intact" in done.stdout
    assert not [path for path in tmp_path.glob("**/*") if path.suffix in (".tmp", ".draft")]


def test_a_disk_without_room_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event log on the same disk needs some bytes at any time."""
    checkpoints, _ = store(tmp_path)
    save(checkpoints, 0, 10, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=SPARE_BYTES))
    monkeypatch.setattr(draft, "write_whole", None)
    with pytest.raises(StateError, match="No space left on device; older checkpoints are intact"):
        save(checkpoints, 0, 20, 1)
    assert checkpoints.versions(0) == [10]


def test_the_newest_that_is_good_stays_beside_the_newest(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path, keep=1)
    for version, proven in ((5, 0), (10, 5), (20, 15), (30, 15)):
        saved(checkpoints, 0, version, state(1), "ef" * 32, updates=version, chain="cd" * 32, proven=proven)
    assert checkpoints.versions(0) == [10, 30]
    saved(checkpoints, 0, 40, state(1), "ef" * 32, updates=40, chain="cd" * 32, proven=35)
    assert checkpoints.versions(0) == [30, 40]
