"""Turns: as many at once as there are places, in order, and nobody waits for one who does not go on."""

from __future__ import annotations

import errno
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from swarm.compute import turns as module
from swarm.compute.turns import Turns
from swarm.cores import Quota

LONG_S = 2 * module.SHORT_S
HOLDER = """
import sys, time
from pathlib import Path
from swarm.compute import turns
turns.visible_cores = lambda: {0}
turns.quota = lambda: None
turns.SHORT_S = 0.0
with turns.Turns(1, Path(sys.argv[1])) as mine:
    with mine.turn():
        pass
    with mine.turn():
        print("has it", flush=True)
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "visible_cores", lambda: {0})
    monkeypatch.setattr(module, "quota", lambda: None)


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the only place."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "has it\n"
        try:
            yield holder
        finally:
            holder.kill()


def known(turns: Turns, seconds: float = LONG_S) -> Turns:
    """After a microbatch that took so long."""
    with turns.turn():
        time.sleep(seconds)
    return turns


def test_two_do_not_compute_at_once_on_one_core(tmp_path: Path) -> None:
    together = most = 0
    counted = threading.Lock()

    def compute() -> None:
        nonlocal together, most
        with Turns(1, tmp_path) as turns:
            turns._usual_s = 60.0  # patient, however slow the machine
            for _ in range(5):
                with turns.turn():
                    with counted:
                        together += 1
                        most = max(most, together)
                    time.sleep(LONG_S)
                    with counted:
                        together -= 1
                turns._usual_s = 60.0

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert most == 1


@pytest.mark.parametrize(("threads", "places"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2]), (3, [0]), (5, [0]), (8, [0])])
def test_there_are_as_many_places_as_threads_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, places: list[int]
) -> None:
    monkeypatch.setattr(module, "visible_cores", lambda: set(range(5)))
    with Turns(threads, tmp_path):
        queue = {"queue-core-0", "queue-core-0-bell", "queue-core-0-places-bell"}
        assert {path.name for path in tmp_path.iterdir()} == queue | {f"core-{core}" for core in places}


@pytest.mark.parametrize(
    ("cores", "threads", "places"), [(0.5, 1, 1), (2.0, 1, 2), (2.5, 1, 3), (4.0, 2, 2), (2.0, 8, 1)]
)
def test_a_quota_gives_places_to_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: float, threads: int, places: int
) -> None:
    """64 visible cores of which a container may use two are two places, which other containers do not take."""
    monkeypatch.setattr(module, "visible_cores", lambda: set(range(64)))
    for group in ("/one", "/two"):
        monkeypatch.setattr(module, "quota", lambda group=group: Quota(cores, Path(group)))
        with Turns(threads, tmp_path):
            pass
    assert len(list(tmp_path.glob("group-*"))) == 2 * places and not list(tmp_path.glob("core-*"))


def test_who_has_just_had_a_turn_does_not_go_before_who_waits(tmp_path: Path) -> None:
    with Turns(1, tmp_path) as first, Turns(1, tmp_path) as second:
        order = []
        first._usual_s = second._usual_s = 60.0

        def wait() -> None:
            with second.turn():
                order.append("second")

        waiter = threading.Thread(target=wait)
        with first.turn():
            waiter.start()
            deadline = time.monotonic() + 60.0
            while module._locked(first._queue):  # until the other one is at the head of the queue
                module.fcntl.flock(first._queue, module.fcntl.LOCK_UN)
                time.sleep(0.01)  # it is to find it free
                assert time.monotonic() < deadline
        first._usual_s = 60.0
        with first.turn():
            order.append("first again")
        waiter.join(60.0)
        assert order == ["second", "first again"]


def test_who_waits_is_called_and_does_not_look_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 600.0)
    with ExitStack() as stack:
        peers = [stack.enter_context(Turns(1, tmp_path)) for _ in range(4)]
        done: list[int] = []

        def compute(name: int) -> None:
            for _ in range(5):
                peers[name]._usual_s = 60.0
                with peers[name].turn():
                    time.sleep(LONG_S)
                    done.append(name)

        threads = [threading.Thread(target=compute, args=[name], daemon=True) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert sorted(done) == sorted(5 * list(range(4)))


def test_a_bell_that_is_another_kind_of_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "queue-core-0-bell").write_text("not a pipe")
    with Turns(1, tmp_path) as turns:
        assert not turns._places


def test_what_is_short_needs_no_turn(tmp_path: Path) -> None:
    with held(tmp_path), Turns(1, tmp_path) as turns:
        turns._usual_s = module.SHORT_S
        with turns.turn():
            assert turns._without_until == 0.0


def test_the_place_of_who_is_killed_is_free(tmp_path: Path) -> None:
    with held(tmp_path) as holder, Turns(1, tmp_path) as turns:
        turns._usual_s = 60.0
        threading.Timer(LONG_S, holder.kill).start()
        with turns.turn():
            assert turns._without_until == 0.0, "it did not give up"
            assert holder.wait(60.0) == -signal.SIGKILL


def test_who_is_stopped_is_waited_for_once(tmp_path: Path) -> None:
    with held(tmp_path) as holder, Turns(1, tmp_path) as turns:
        holder.send_signal(signal.SIGSTOP)
        known(turns)
        with turns.turn():
            given_up = turns._without_until
            assert given_up > time.monotonic(), "computes without"
            time.sleep(LONG_S)
        with turns.turn():
            assert turns._without_until == given_up, "and did not ask again"


def test_who_waits_in_vain_again_and_again_asks_less_and_less_often(tmp_path: Path) -> None:
    with held(tmp_path), Turns(1, tmp_path) as turns:
        pauses = []
        for _ in range(2):
            known(turns)
            begun = time.monotonic()
            with turns.turn():
                pauses.append(turns._without_until - begun)
            turns._without_until = 0.0
        assert pauses[0] >= module.SULK_S and pauses[1] >= 2 * module.SULK_S


def test_who_ends_waits_for_no_turn(tmp_path: Path) -> None:
    with held(tmp_path), Turns(1, tmp_path) as turns:
        turns._usual_s = 600.0
        threading.Timer(LONG_S, turns.end).start()
        begun = time.monotonic()
        with turns.turn():
            assert time.monotonic() - begun < module.LONGEST_S / 2 and turns._without_until == 0.0


def test_where_there_are_no_locks_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with Turns(1, tmp_path) as turns:
        known(turns)
        monkeypatch.setattr(module.fcntl, "flock", flock)
        with turns.turn():
            assert turns._without_until == math.inf


def test_what_was_computed_is_not_lost_with_the_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with Turns(1, tmp_path) as turns:
        known(turns)
        with turns.turn(), (tmp_path / "core-0").open("rb+") as place:
            assert not module._locked(place.fileno()), "it has the place"
            monkeypatch.setattr(module.fcntl, "flock", flock)


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with Turns(1, tmp_path / "link") as turns:
        assert not turns._places
        with known(turns).turn():
            pass
    assert not list(tmp_path.glob("core-*"))
