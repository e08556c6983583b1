"""What can happen to a dashboard: it is killed, its port taken, its database deleted, its log full of lies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served_dashboard import dashboard, generated_home

from benchmarks.generated_log import Shape
from peers.dashboard.companion import Companion

TINY = Shape(peers=4, stages=2, hours=0.1, step_seconds=20, spans=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return generated_home(tmp_path / "home", TINY)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _served(port: int) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/run", timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (urllib.error.URLError, OSError):
        return None


def _wait(done: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def _beside(home: Path, port: int) -> Iterator[tuple[Companion, list[str]]]:
    said: list[str] = []
    with Companion([str(home), "--address", f"127.0.0.1:{port}"], said.append) as companion:
        yield companion, said


def test_a_killed_one_comes_back_at_the_same_place_and_ends_with_its_process(home: Path) -> None:
    port = _free_port()
    with _beside(home, port) as (companion, said):
        before = _wait(lambda: _served(port), "the dashboard")
        assert said and said[0].startswith(f"dashboard: http://127.0.0.1:{port}/#token=")
        first = companion._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        _wait(lambda: companion._process is not first and _served(port), "its return")
        assert any("is started again" in text for text in said)
        now = _wait(lambda: (run := _served(port)) and run["step"] == before["step"] and run, "all that it knew")
        assert now["loss"] == before["loss"]
    assert _served(port) is None and threading.active_count() < 20


def test_a_taken_port_is_asked_for_until_it_is_free(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with _beside(home, port) as (_, said):
            _wait(lambda: any("give another ADDRESS:PORT" in text for text in said), "the reason")
            taken.close()
            assert _wait(lambda: _served(port), "the dashboard")


def test_it_does_not_outlive_a_process_that_is_killed(home: Path) -> None:
    port = _free_port()
    script = (
        "import sys, time\nfrom peers.dashboard.companion import Companion\n"
        "with Companion(sys.argv[1:], print): time.sleep(600)\n"
    )
    words = [str(home), "--address", f"127.0.0.1:{port}"]
    parent = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.DEVNULL)
    try:
        _wait(lambda: _served(port), "the dashboard")
    finally:
        parent.kill()
        parent.wait()
    _wait(lambda: _served(port) is None, "its end", 15)


def test_a_deleted_database_is_made_again(home: Path) -> None:
    with dashboard(home) as shown:
        before = shown.wait("/api/v1/run", lambda run: not run["warnings"])
        steps = shown.get("/api/v1/series?name=loss&points=4000")
        for file in home.glob("dashboard.sqlite*"):
            file.unlink()
        again = shown.wait(
            "/api/v1/series?name=loss&points=4000",
            lambda series: series == steps and (home / "dashboard.sqlite").exists(),
        )
        assert again == steps and shown.get("/api/v1/run") == before


def test_without_a_place_for_its_database_it_serves_what_it_can(home: Path) -> None:
    with dashboard(home, "--database", "/proc/nowhere/x.sqlite") as shown:
        run = shown.wait("/api/v1/run", lambda run: run["step"] is not None)
        assert any("memory" in text for text in run["warnings"])
        assert shown.get("/api/v1/pipeline")["stages"]


def test_a_home_without_a_log_is_served_and_filled_later(tmp_path: Path) -> None:
    home = tmp_path / "new"
    home.mkdir()
    with dashboard(home) as shown:
        for path in ("run", "pipeline", "peers", "timeline", "links", "faults", "people", "checkpoints", "samples"):
            shown.get(f"/api/v1/{path}")
        shown.get("/api/v1/series?name=loss")
        assert shown.ask("/metrics").status == 200
        generated_home(home, TINY)
        assert shown.wait("/api/v1/run", lambda run: (run["step"] or 0) > 10)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.exe",
    "\x00\x1b]0;owned\x07\x1b[2J",
    "\ud800",
    "A" * 1_000_000,
    "${7*7}{{7*7}}",
    "../../etc/passwd",
)


def test_names_and_reasons_of_peers_are_data(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", TINY)
    at = 1_790_000_350.0
    with (home / "events.jsonl").open("a") as file:
        for text in HOSTILE:
            for record in (
                {"kind": "PeerSeen", "actor": text},
                {"kind": "PeerJoined", "actor": text[:60], "stage": 0, "reason": text},
                {"kind": "PeerDescribed", "actor": text[:60], "machine": {"device": text, text: 1, "memory": 1e999}},
                {"kind": "PeerRefused", "peer": text, "reason": text, "count": 1},
                {"kind": "PeerLost", "actor": text[:60], "stage": 0, "reason": text},
                {"kind": "Sampled", "version": 3, "prompt": text, "text": text},
                {"kind": "PeerWorked", "actor": text[:60], "stage": 1 << 80, "pass_id": text, "seconds": {text: -1}},
                {"kind": text, "actor": [text]},
            ):
                file.write(json.dumps({"at": at, **record}) + "\n")
        file.write('{"at": 1e999, "kind": "PeerSeen", "actor": "x"}\n[1]\nnull\n{"at": "x"}\n' + "[" * 50_000 + "\n")
    with dashboard(home) as shown:
        shown.wait("/api/v1/run", lambda run: ["cannot be read" in text for text in run["warnings"]] == [True])
        for path in ("run", "pipeline", "peers", "links", "faults", "people", "samples", "log", "marks", "timeline"):
            answer = shown.ask(f"/api/v1/{path}")
            assert answer.status == 200, path
            assert answer.headers["content-type"] == "application/json", "a browser does not take it for a page"
            assert len(answer.body) < 400_000, (path, len(answer.body))
            json.loads(answer.body)
        for name in ("%3Cscript%3E", "..%2F..%2Fetc", "%00", "x" * 500):
            assert shown.ask(f"/api/v1/peers/{name}").status in (400, 404)
        text = shown.ask("/metrics").body.decode()
        assert "script" not in text and len(text) < 50_000
    report = tmp_path / "run.html"
    subprocess.run([sys.executable, "-m", "peers", "report", home, "--out", report], check=True, timeout=120)
    page = report.read_text()
    assert "<script>alert" not in page and "\\u003cscript>alert(1)" in page


def test_two_dashboards_of_one_home_do_not_share_a_database(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", TINY)
    with dashboard(home) as first:
        before = first.wait("/api/v1/run", lambda run: not run["warnings"])
        steps = first.get("/api/v1/series?name=loss&points=4000")
        made = (home / "dashboard.sqlite").stat().st_ino
        with dashboard(home) as second:
            assert second.wait("/api/v1/run", lambda run: not run["warnings"]) == before
            assert second.token == first.token, "one login is good for both"
            with (home / "events.jsonl").open("a") as log:
                log.write('{"at": 1790000400.0, "kind": "RunPaused", "reason": "the last line"}\n')
            for shown in (first, second):
                shown.wait("/api/v1/log", lambda log: "the last line" in log["lines"][0]["text"])
                assert shown.get("/api/v1/series?name=loss&points=4000") == steps
                assert not shown.get("/api/v1/run")["warnings"]
        assert (home / "dashboard.sqlite").stat().st_ino == made
        for file in home.glob("dashboard.sqlite*"):
            file.unlink()
        first.wait("/api/v1/series?name=loss&points=4000", lambda _: (home / "dashboard.sqlite").exists())
        with dashboard(home) as third:  # the first one still holds the place of the file that is new
            made = (home / "dashboard.sqlite").stat().st_ino
            third.wait("/api/v1/run", lambda run: not run["warnings"])
            first.wait("/api/v1/series?name=loss&points=4000", lambda series: series == steps)
            assert (home / "dashboard.sqlite").stat().st_ino == made
    with dashboard(home, "--database", home / "dashboard.sqlite") as last:
        last.wait("/api/v1/run", lambda run: not run["warnings"])
        assert (home / "dashboard.sqlite").stat().st_ino == made, "the place is free again"


def test_a_port_that_is_taken_is_said_and_nothing_is_served(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        words = [sys.executable, "-m", "peers", "dashboard", str(home), "--address", place]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr
    assert f"cannot serve on {place}" in ended.stderr and "give another ADDRESS:PORT" in " ".join(ended.stderr.split())
    with dashboard(home) as other:  # nor does it keep the database of one that is served
        other.wait("/api/v1/run", lambda run: not run["warnings"])
        assert (home / "dashboard.sqlite").exists()


def test_a_peer_id_with_a_slash_has_an_answer(home: Path) -> None:
    with (home / "events.jsonl").open("a") as log:
        log.write('{"at": 1790000400.0, "kind": "PeerSeen", "actor": "Qm/with/slashes.7"}\n')
    with dashboard(home) as shown:
        shown.wait("/api/v1/peers?q=slashes", lambda peers: peers["total"] == 1)
        for name in ("Qm%2Fwith%2Fslashes.7", "Qm%2Fwith%2Fslashes", "Qm/with/slashes"):
            assert shown.get(f"/api/v1/peers/{name}")["actor"] == "Qm/with/slashes.7"
        assert shown.ask("/api/v1/peers/").status == 404
