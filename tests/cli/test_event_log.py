"""The event log on a disk that fills up, and strangers that would fill it."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from peers.report.tally import Tally
from peers.runtime.run_observer import RunObserver
from swarm.events import EventLog, FloodNoticed, FrameRefused, PeerRefused, ProcessStopped, read_log
from swarm.events.wording import worth_telling
from swarm.net.callers import Flood
from swarm.protocol.ids import Actor

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from swarm.events import EventLog, ProcessStopped
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = EventLog(Path(sys.argv[1]), lambda: 0.0)
log.append(ProcessStopped("first"))
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
try:
    log.append(ProcessStopped("does not fit"))
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(ProcessStopped("last"))
"""


def test_an_event_that_does_not_fit_on_the_disk_is_said_and_leaves_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the event log cannot be written" in done.stdout and "events.jsonl" in done.stdout
    assert [event for _, event in read_log(path)] == [ProcessStopped("first"), ProcessStopped("last")]
    assert path.read_bytes().count(b"\n") == 2


def test_a_listener_that_fails_is_told_once_and_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(event: object, at: float) -> None:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    seen: list[object] = []
    log = EventLog(None, lambda: 0.0)
    log.listeners.extend((broken, lambda event, at: seen.append(event)))
    for reason in ("first", "second"):
        log.append(ProcessStopped(reason))
    assert seen == [ProcessStopped("first"), ProcessStopped("second")]
    assert capsys.readouterr().err.count("Traceback") == 1


def test_refusals_are_logged_ever_more_rarely(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)
    unused: Any = None
    observer = RunObserver(unused, log)
    for count in range(1, 1001):
        observer.frame_refused(Actor("other", 1), "poison", count)
        observer.peer_refused(f"peer {count % 2}", "other run")
    log.close()
    events = [event for _, event in read_log(tmp_path / "events.jsonl")]
    assert [e.count for e in events if isinstance(e, FrameRefused)] == [*range(1, 11), 100, 1000]
    of_one = [e.count for e in events if isinstance(e, PeerRefused) and e.peer == "peer 1"]
    assert of_one == [*range(1, 11), 100]


def test_a_tally_of_many_names_forgets_the_oldest() -> None:
    tally = Tally()
    assert [tally.add("first"), tally.add("first")] == [1, 2]
    for k in range(4096):
        tally.add(str(k))
    assert tally.add("first") == 1 and tally.add("4095") == 2
    assert [n for n in range(1, 2000) if worth_telling(n)] == [*range(1, 11), 100, 1000]


def test_strangers_count_together_because_each_may_come_under_many_names(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)
    unused: Any = None
    observer = RunObserver(unused, log)
    for number in range(10_000):
        observer.stranger_refused(f"stranger {number}", "no pass")
    log.close()
    events = [event for _, event in read_log(tmp_path / "events.jsonl")]
    assert [e.count for e in events if isinstance(e, PeerRefused)] == [*range(1, 11), 100, 1000, 10_000]


def test_a_flood_is_logged_with_what_is_done_about_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)
    unused: Any = None
    observer = RunObserver(unused, log)
    one, other = (Flood(ip_network(block), 140, 5.2, 1) for block in ("203.0.113.7/32", "2001:db8::/64"))
    for _ in range(20):
        observer.flooded(one, 60.0, "")
    observer.flooded(other, 60.0, "not possible here")
    log.close()
    events = [event for _, event in read_log(tmp_path / "events.jsonl") if isinstance(event, FloodNoticed)]
    assert [event.count for event in events if event.address == "203.0.113.7/32"] == [*range(1, 11)]
    assert events[0].sentence() == (
        "203.0.113.7/32 made 140 connections in 5 s. It can make no new connection for 60 s (event 1 of this address)"
    )
    assert "This process cannot block it (not possible here)" in events[-1].sentence()


def test_a_process_that_ends_does_not_list_whom_it_turns_away(tmp_path: Path) -> None:
    class Ending(RunObserver):
        def ending(self) -> bool:
            return True

    log = EventLog(tmp_path / "events.jsonl", lambda: 0.0)
    unused: Any = None
    observer = Ending(unused, log)
    observer.peer_refused("a peer", "closing: this process is about to end")
    observer.stranger_refused("a stranger", "closing: this process is about to end")
    log.close()
    assert not list(read_log(tmp_path / "events.jsonl"))
