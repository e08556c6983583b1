"""Atomic files on odd file systems: those that keep no permissions, and those that cannot sync a folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from swarm import atomic
from swarm.atomic import atomic_file, keeps_permissions, write_whole
from swarm.state.error import how_to_make_room


def test_a_private_file_is_private_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "key"
    torn = tmp_path / f"key{atomic.TEMPORARY}"
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
