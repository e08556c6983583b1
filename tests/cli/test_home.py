"""Homes: one process each, and an incarnation that only grows."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peers.run import home as layout
from peers.run.home import Home, HomeError
from peers.run.home_names import FILES, FOLDERS
from peers.stage.admission import check_identity
from peers.stage.twin import check_note, is_of_a_twin


def test_incarnations_only_grow(tmp_path: Path):
    seen = []
    for now in (1000.0, 1000.2, 50.0, 2000.0, 2000.0):
        with Home.open(tmp_path / "home", clock=lambda now=now: now) as home:
            seen.append(home.incarnation)
    assert seen == [1000, 1001, 1002, 2000, 2001]


def test_a_lost_counter_brings_no_old_number_back(tmp_path: Path):
    with Home.open(tmp_path, clock=lambda: 1000.0) as home:
        first = home.incarnation
    (tmp_path / "incarnation").unlink()
    with Home.open(tmp_path, clock=lambda: 1007.0) as home:
        assert home.incarnation > first


@pytest.mark.parametrize("text", ["many", "", "9" * 19, "9" * 5000])
def test_a_damaged_counter_is_named(text: str, tmp_path: Path):
    (tmp_path / "port").write_text(text)
    assert Home(tmp_path).port == 0
    (tmp_path / "incarnation").write_text(text)
    says = f"incarnation holds '{text[:20]}', not a number of at most 18 digits: delete"
    with pytest.raises(HomeError, match=says) as kept:
        Home.open(tmp_path)
    assert kept.value.__traceback__ is not None  # which keeps the half-made home alive
    (tmp_path / "incarnation").write_text("5")
    with Home.open(tmp_path, clock=lambda: 0.0) as home:
        assert home.incarnation == 6, "the failed try must not have kept the lock"


def test_two_processes_never_share_a_home(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from peers.run.home import Home\n"
        "home = Home.open(Path(sys.argv[1])); print('in', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "in"
    before = (tmp_path / "incarnation").read_text()
    assert Home(tmp_path).occupant() == other.pid
    with pytest.raises(HomeError, match=rf"in use by process {other.pid}: give this process another --home"):
        Home.open(tmp_path)
    assert (tmp_path / "incarnation").read_text() == before
    os.kill(other.pid, signal.SIGKILL)
    other.wait(timeout=60)
    other.stdout.close()
    assert Home(tmp_path).occupant() is None
    with Home.open(tmp_path) as home:
        assert home.incarnation > int(before)
        assert Home(tmp_path).occupant() == os.getpid()


def test_a_process_that_only_looks_keeps_nobody_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Home.open(tmp_path).close()
    looking = (tmp_path / "lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)  # as `occupant` does, for a moment
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            looking.close()

    monkeypatch.setattr(layout.time, "sleep", pause)
    with Home.open(tmp_path):
        assert len(paused) == 2


def test_a_home_that_was_never_used_is_nobodys(tmp_path: Path):
    assert Home(tmp_path / "none").occupant() is None


def test_a_home_that_a_twin_drove_out_says_so_until_somebody_has_read_it(tmp_path: Path):
    home = Home(tmp_path)
    check_note(home)
    home.note_superseded("stale incarnation: you are incarnation 1, 2 was here already")
    with pytest.raises(HomeError, match=r"identity.key.*--home OTHER"):
        check_note(home)
    home.superseded.unlink()
    check_note(home)


def test_a_peer_that_has_lost_its_identity_does_not_silently_become_another(tmp_path: Path):
    home = Home(tmp_path)
    check_identity(home)  # a new home
    home.certificate.write_text("of the run")
    with pytest.raises(HomeError, match=r"identity\.key is missing.*restore it.*delete .*certificate"):
        check_identity(home)
    home.identity.write_text("key")
    check_identity(home)
    home.identity.unlink()
    home.certificate.unlink()
    check_identity(home)


@pytest.mark.parametrize(
    ("refusal", "is_twin"),
    [("stale incarnation: you are incarnation 1, 2 was here already", True), ("other run: …", False)],
)
def test_only_a_newer_process_with_the_same_key_is_a_twin(refusal: str, is_twin: bool):
    assert is_of_a_twin(refusal) is is_twin


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file_is_refused_at_the_start(name: str, tmp_path: Path):
    (tmp_path / name).mkdir()
    with pytest.raises(HomeError, match=f"{tmp_path / name} is a folder, but must be a file: move it away"):
        Home.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing else was made"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_file_in_place_of_a_folder_is_refused_at_the_start(name: str, tmp_path: Path):
    (tmp_path / name).write_text("")
    with pytest.raises(HomeError, match=f"{tmp_path / name} is a file, but must be a folder: move it away"):
        Home.open(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "disk")
    with pytest.raises(HomeError, match=f"{tmp_path / name} is a broken link, but must be a folder"):
        Home.open(tmp_path)
    (tmp_path / "disk").mkdir()
    Home.open(tmp_path).close()


def test_the_list_of_kinds_is_that_of_the_layout():
    told = [line.split()[0] for line in (layout.__doc__ or "").splitlines() if line and line[:2].islower()]
    kept = {name for name in told if not name.startswith("control.sock")}
    assert {name.rstrip("/") for name in kept if name.endswith("/")} == set(FOLDERS)
    assert {name for name in kept if not name.endswith("/")} == set(FILES)
