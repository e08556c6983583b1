"""Private temporary folders: a killed process's folder is removed by the next one, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swarm.private_folder import OWNER, PrivateFolder

OWNING = """
import sys
from swarm.private_folder import PrivateFolder
folder = PrivateFolder("part-", sys.argv[1])
(folder.path / "socket").touch()
print(folder.path, flush=True)
sys.stdin.read()
"""


def _owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNING, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed, left = _owner(tmp_path)
    living, used = _owner(tmp_path)
    try:
        killed.kill()
        killed.wait(30)
        assert left.is_dir()
        with PrivateFolder("part-", str(tmp_path)) as folder:
            assert not left.exists()
            assert (used / "socket").exists(), "its owner lives"
            assert sorted(tmp_path.iterdir()) == sorted([used, folder.path])
    finally:
        living.kill()
        living.wait(30)
        for process in (killed, living):
            process.communicate()
    assert sorted(tmp_path.iterdir()) == [used]


def test_folders_of_others_stay(tmp_path: Path) -> None:
    """One without an owner's file, such as that of a control socket, and one with another name."""
    (tmp_path / "part-other").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / OWNER).touch()
    PrivateFolder("part-", str(tmp_path)).remove()
    assert {path.name for path in tmp_path.iterdir()} == {"part-other", "other"}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    (tmp_path / "part-link").mkdir()
    (tmp_path / "part-link" / OWNER).symlink_to(kept)
    PrivateFolder("part-", str(tmp_path)).remove()
    assert (tmp_path / "part-link").is_dir()


def test_a_disk_without_locks_leaves_a_folder_that_nobody_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", no_locks)
        unlocked = PrivateFolder("part-", str(tmp_path))
    PrivateFolder("part-", str(tmp_path)).remove()
    assert list(unlocked.path.iterdir()) == []
    unlocked.remove()
    assert not unlocked.path.exists()
