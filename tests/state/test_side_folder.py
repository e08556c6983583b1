"""A side folder: all files are replaced or none, whatever interrupts it, and one command at a time."""

from __future__ import annotations

import errno
import fcntl
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.side_folder import side_folder

OLD = {"last": "old", "both": "old", "gone": "old", "folder/a": "old", "yours": "yours"}
NEW = {"both": "new", "fresh": "new", "folder/b": "new", "last": "new", "yours": "yours"}
NAMES = ("both", "fresh", "folder", "last")
REPLACED = ("last", "both", "gone", "folder")
SIDE = ".writing"


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def replace_all(out: Path) -> None:
    with side_folder(out, SIDE) as side:
        fill(side.new, {name: text for name, text in NEW.items() if text == "new"})
        side.publish(NAMES, REPLACED)


def test_the_new_files_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    replace_all(tmp_path)
    assert contents(tmp_path) == NEW and not (tmp_path / SIDE).exists()


def moves(monkeypatch: pytest.MonkeyPatch, harmed: Iterator[bool], after: bool) -> None:
    """Make some moves fail: each takes the next of `harmed`. `after`: the move is made before it fails."""
    move = Path.replace

    def replace(path: Path, target: Path) -> Path:
        harm = next(harmed)
        if not harm or after:
            move(path, target)
        if harm:
            raise KeyboardInterrupt
        return target

    monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_an_interruption_leaves_all_old_files_or_all_new_ones(
    killed: bool, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """killed: no later move succeeds either, so that nothing is moved back before the next command."""
    results = []
    for at in range(2 + len(NAMES) + len(REPLACED)):
        out = tmp_path / str(at)
        fill(out, OLD)
        with monkeypatch.context() as patched:
            then = itertools.repeat(killed)
            moves(patched, itertools.chain(itertools.repeat(False, at), [True], then), after and not killed)
            try:
                replace_all(out)
            except KeyboardInterrupt:
                results.append(None)
        if killed:
            with side_folder(out, SIDE):
                pass
        assert contents(out) in (OLD, NEW), f"interrupted at move {at}"
        assert not (out / SIDE).exists()
        results.append(contents(out))
    assert OLD in results and NEW in results and None in results


def test_a_second_command_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with side_folder(out, SIDE) as side:
        fill(side.new, {"last": "new"})
        with pytest.raises(OSError, match="another swarm-peer writes to this folder") as caught, side_folder(out, SIDE):
            pass
        assert caught.value.errno == errno.EBUSY and caught.value.filename == str(out)
        side.publish(["last"], [])
    with side_folder(out, SIDE):
        pass
    assert contents(out) == {"last": "new"}


def test_a_disk_without_locks_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    fill(tmp_path, OLD)
    replace_all(tmp_path)
    assert contents(tmp_path) == NEW


def test_a_folder_that_is_removed_while_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command before this one removes its side folder at this moment."""
    lock = fcntl.flock
    removed: list[Path] = []

    def meddle(handle: int, operation: int) -> None:
        if not removed:
            for path in (tmp_path / SIDE).iterdir():
                path.unlink()
            (tmp_path / SIDE).rmdir()
            removed.append(tmp_path / SIDE)
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", meddle)
    with side_folder(tmp_path, SIDE) as side:
        assert removed and side.new.is_dir()
        with pytest.raises(OSError, match="another swarm-peer"), side_folder(tmp_path, SIDE):
            pass


def test_what_a_link_leads_to_is_not_emptied(tmp_path: Path) -> None:
    fill(tmp_path, {"mine/thesis": "mine"})
    (tmp_path / SIDE).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="is a link"), side_folder(tmp_path, SIDE):
        pass
    assert contents(tmp_path / "mine") == {"thesis": "mine"}
