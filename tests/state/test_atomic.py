"""Atomic files: two writers, killed writers, and file systems that keep no permissions or cannot sync a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swarm import atomic
from swarm.atomic import atomic_file, keeps_permissions, write_whole
from swarm.state.error import how_to_make_room


def test_a_private_file_is_private_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "key"
    torn = tmp_path / f"key.part0{atomic.TEMPORARY}"
    torn.write_bytes(b"torn")
    torn.chmod(0o644)
    with atomic_file(path, private=True) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        write_whole(file, b"secret")
    assert path.read_bytes() == b"secret" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keeps_permissions(tmp_path) and [each.name for each in tmp_path.iterdir()] == ["key"]


def test_a_disk_without_permissions_keeps_private_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT refuses to change permissions, and shows the same ones for each file."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    with atomic_file(tmp_path / "key", private=True) as file:
        write_whole(file, b"secret")
    assert (tmp_path / "key").read_bytes() == b"secret"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_no_failed_disk(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"), atomic_file(tmp_path / "a") as file:
            write_whole(file, b"a")
    else:
        with atomic_file(tmp_path / "a") as file:
            write_whole(file, b"a")
        assert (tmp_path / "a").read_bytes() == b"a"


def test_a_limit_of_file_sizes_is_not_called_a_full_disk() -> None:
    assert "ulimit -f" in how_to_make_room(OSError(errno.EFBIG, "File too large"))
    assert how_to_make_room(OSError(errno.ENOSPC, "No space left on device")) == "free some space"


def test_two_writers_of_one_file_do_not_write_into_each_other(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with atomic_file(path) as first:
        write_whole(first, b"first, ")
        with atomic_file(path) as second:
            write_whole(second, b"second")
            write_whole(first, b"whole")
        assert path.read_bytes() == b"second"
        with pytest.raises(RuntimeError), atomic_file(path) as third:
            write_whole(third, b"third")
            raise RuntimeError
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first, whole" and list(tmp_path.iterdir()) == [path]


def test_a_file_with_the_suffix_of_an_unfinished_one_is_kept(tmp_path: Path) -> None:
    """`init` once deleted a user's RUN.toml.tmp."""
    (tmp_path / "RUN.toml.tmp").write_text("mine")
    with atomic_file(tmp_path / "RUN.toml") as file:
        write_whole(file, b"ours")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"RUN.toml": "ours", "RUN.toml.tmp": "mine"}


@pytest.mark.parametrize("private", [False, True])
def test_what_a_killed_writer_left_is_removed_by_the_next(private: bool, tmp_path: Path) -> None:
    path = tmp_path / "[key]"
    code = (
        "import os, signal, sys, pathlib\n"
        "from swarm.atomic import atomic_file\n"
        "with atomic_file(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(b'torn')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert atomic.torn(path) == [left]
    with atomic_file(path, private=private) as file:
        assert list(tmp_path.iterdir()) == [left], "under the same name, so that none is left for ever"
        write_whole(file, b"whole")
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"whole"


def test_without_locks_the_file_of_another_writer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "model"
    with atomic_file(path) as first, atomic_file(path) as second:
        write_whole(first, b"first")
        write_whole(second, b"second")
    assert path.read_bytes() == b"first" and list(tmp_path.iterdir()) == [path]


def test_a_writer_whose_new_file_is_taken_for_a_torn_one_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of a file and its lock, another writer may look."""
    path = tmp_path / "model"
    lock = fcntl.flock
    meddled: list[int] = []

    def meddle(handle: int, operation: int) -> None:
        if not meddled:
            meddled.append(handle)
            (taken,) = atomic.torn(path)
            taken.unlink()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", meddle)
    with atomic_file(path) as file:
        write_whole(file, b"whole")
    assert meddled and path.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [path]
