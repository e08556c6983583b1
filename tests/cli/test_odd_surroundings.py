"""A process in odd surroundings does its work, or says in one line what is missing: no traceback, no silence."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from peers import cli
from peers.dashboard.companion import companion
from peers.dashboard.tokens import TokenError, Tokens
from peers.run.home import Home, HomeError
from peers.runtime import descriptors
from peers.runtime.descriptors import TooFewDescriptors, raise_limit

ROOT = Path(cli.__file__).parent.parent


def started(
    *arguments: str,
    before: tuple[str, ...] = (),
    prepare: Callable[[], None] | None = None,
    env: dict[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """`swarm-peer` with these arguments, until it ends."""
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(
        [*before, sys.executable, "-m", "peers", *arguments],
        preexec_fn=prepare, env=surroundings, capture_output=True, text=True, timeout=120, check=False, **options,
    )  # fmt: skip


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Its one line of complaint."""
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done.stderr
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    return done.stderr


AS_NOBODY = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
"""A user id that the system does not know, in a namespace of its own."""


def can_be_nobody() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run([*AS_NOBODY, "true"], check=False).returncode


needs_namespace = pytest.mark.skipif(not can_be_nobody(), reason="no user namespace can be made here")


@needs_namespace
def test_a_user_without_name_and_home_is_asked_for_one(tmp_path: Path) -> None:
    done = started("bootstrap", before=AS_NOBODY, cwd=tmp_path)
    assert "HOME is not set" in said(done) and "--home" in done.stderr
    assert not list(tmp_path.iterdir()), "and no folder is made somewhere else"


@needs_namespace
def test_a_user_without_a_name_works_where_it_may_write(tmp_path: Path) -> None:
    done = started("id", "--home", str(tmp_path / "home"), before=AS_NOBODY)
    assert done.returncode == 0 and done.stdout.startswith("12D3KooW"), done.stderr
    program = "import torch, hivemind, peers.stage.process, peers.coordinator.process"
    line = [*AS_NOBODY, sys.executable, "-c", program]
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    subprocess.run(line, env=surroundings, cwd=tmp_path, timeout=120, check=True)


@pytest.mark.parametrize("kind", ["a file", "below a file", "too long", "read-only"])
def test_a_home_that_cannot_be_one_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "home",
        "too long": tmp_path / ("x" * 300),
        "read-only": Path("/proc/swarm-peer"),
    }[kind]
    with pytest.raises(HomeError, match=r"cannot be a home .*--home"):
        Home.open(home)


def test_a_home_on_a_full_disk_is_told_to_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(HomeError, match=r"cannot be a home now \(No space left on device\): free space, or name"):
        Home.open(tmp_path / "home")


@pytest.mark.parametrize("mask", [0, 0o022])
def test_the_home_that_id_makes_is_its_users_alone(mask: int, tmp_path: Path) -> None:
    """With a umask of 0, everybody could replace the keys in it."""
    done = started("id", "--home", str(tmp_path / "home"), prepare=lambda: os.umask(mask) and None)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_a_very_deep_home_is_one(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*("d" * 200 for _ in range(8)))
    with Home.open(deep) as home:
        assert home.incarnation > 0


def test_a_tilde_that_no_shell_has_replaced_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Home.open(Path("~/swarm")) as home:
        assert home.path == tmp_path / "swarm"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_a_disk_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(HomeError, match="locks"):
        Home.open(tmp_path / "home")


def test_a_disk_without_permissions_is_a_home_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a USB stick, a Windows disk in WSL, or a network drive: every file seems to be everybody's."""
    with Home.open(tmp_path / "home"):
        assert not capsys.readouterr().err
    found = os.fstat

    def everybodys(handle: int) -> os.stat_result:
        told = list(found(handle))
        return os.stat_result([told[0] | 0o755, *told[1:]])

    monkeypatch.setattr(os, "fstat", everybodys)
    with Home.open(tmp_path / "home") as home:
        assert "keeps no permissions, so every user of this machine can read the keys" in capsys.readouterr().err
        organisers = Tokens.kept(home.path / "dashboard-token", reading=False)
        (home.path / "dashboard-token").chmod(0o755)
        assert Tokens.kept(home.path / "dashboard-token", reading=False) == organisers
    monkeypatch.undo()
    with pytest.raises(TokenError, match="can be read by others"):
        Tokens.kept(tmp_path / "home" / "dashboard-token", reading=False)


@pytest.mark.parametrize(
    "line", [["id", "--home", ""], ["export", ""], ["init", "--data="], ["prepare", "--input", ""]]
)
def test_an_empty_path_does_not_mean_this_folder(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(line)
    assert end.value.code == cli.EXIT_USER and "the path is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_empty_text_and_a_dot_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["id", "--home", "."])
    assert end.value.code == 0 and (tmp_path / "identity.key").exists()


def test_a_dashboards_process_makes_no_folder_called_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    companion(Path("~/home"), None, None, Console())
    assert [path.name for path in tmp_path.iterdir()] == ["me"]

    def unknown(path: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "expanduser", unknown)
    with pytest.raises(HomeError, match="HOME is not set"):
        companion(Path("~/home"), None, None, Console())


def test_a_deleted_current_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    deleting = ("sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh")
    done = started("id", "--home", str(tmp_path / "home"), before=deleting, cwd=tmp_path / "gone")
    assert "has been deleted" in said(done)
    assert not (tmp_path / "home").exists()


def limited(soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_low_limit_of_descriptors_is_raised() -> None:
    program = (
        "import resource; from peers.runtime.descriptors import raise_limit; raise_limit(); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=limited(40, 1000), env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "1000\n"


def test_too_few_descriptors_are_said_before_anything_begins(tmp_path: Path) -> None:
    done = started("bootstrap", "--home", str(tmp_path / "home"), prepare=limited(30, 30))
    assert "ulimit -n" in said(done)


def test_a_limit_that_cannot_be_raised_as_told_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(descriptors.resource, "setrlimit", refuse)
    raise_limit()
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (64, resource.RLIM_INFINITY))
    with pytest.raises(TooFewDescriptors, match="64"):
        raise_limit()


def test_running_out_of_descriptors_is_something_to_fix() -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    assert cli.is_user_error(error) and "ulimit -n" in cli._one_line(error)


def test_a_locale_without_our_signs_and_a_home_with_some(tmp_path: Path) -> None:
    home = tmp_path / "größe 河"
    for locale in ({"LANG": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = started("id", "--home", str(home), env=locale)
        assert done.returncode == 0 and done.stdout.startswith("12D3KooW"), done.stderr


IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
"""A shell whose mounts nobody else sees."""


@needs_namespace
def test_a_read_only_system_leaves_folders_in_memory_for_temporary_files(tmp_path: Path) -> None:
    """As in a container with a read-only root, a writable /dev/shm and a volume for the home."""
    program = (
        "import os, tempfile; from peers.cli import main; from peers.runtime.temporary_folder import "
        "choose_temporary_folder as choose; choose(required=True); print(tempfile.gettempdir(), os.environ['TMPDIR'])"
    )
    shut = (
        "for each in /tmp /var/tmp /usr/tmp; do [ ! -d $each ] || "
        "{ mount --rbind $each $each && mount -o remount,bind,ro $each; }; done; cd /proc; "
    )  # what is there can be read: this program may be among it
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    line = [*IN_NAMESPACE, shut + 'exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "/dev/shm /dev/shm\n", done.stderr
    shut += "for each in /dev/shm /run; do mount -t tmpfs -o ro none $each; done; "
    home = str(tmp_path / "home")
    assert "set TMPDIR" in said(started("bootstrap", "--home", home, before=(*IN_NAMESPACE, shut + 'exec "$@"', "sh")))


@needs_namespace
def test_missing_semaphores_are_named(tmp_path: Path) -> None:
    shut = ('mount -t tmpfs -o ro none /dev/shm; exec "$@"', "sh")
    home = str(tmp_path / "home")
    assert "no semaphore can be made in /dev/shm" in said(
        started("bootstrap", "--home", home, before=(*IN_NAMESPACE, *shut))
    )
