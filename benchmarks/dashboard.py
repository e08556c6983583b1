"""Measures what the dashboard costs and how soon it shows something, on generated logs; and whether viewers slow a
swarm.

    python -m benchmarks.dashboard [--rows hour,week] [--swarm] [--out benchmarks/results/dashboard.json]

For each row, a log is read from its beginning (rebuild). Then the log grows at the pace of its run, first without
viewers and then while 20 viewers watch three topics each; a browser opens the page meanwhile. CPU is that of the
dashboard's process. With --swarm, a paced swarm trains with and without a dashboard and 20 viewers, in turn on the same
machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil

from benchmarks.arguments import some_of
from benchmarks.corpus import folder_with_corpus
from benchmarks.generated_log import Shape, write_log
from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from peers.dashboard.assets import Assets

ROWS = {
    "hour": Shape(peers=10_000, stages=8, hours=1.0, step_seconds=60, links=1),
    "week": Shape(peers=100, stages=8, hours=168.0, step_seconds=60),
    "small": Shape(peers=16, stages=4, hours=1.0, step_seconds=10, spans=True),
}
VIEWERS = 20
TOPICS = "run,pipeline,peers"
RUN = """
[run]
name = "watched"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = 4096
dim = 64
layers = 4
heads = 2
kv_heads = 1
ffn_dim = 128
context = 64
cuts = [1, 2, 3]
[batch]
microbatches = 16
sequences = 1
sequence_length = 64
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=some_of(ROWS, ","), default="hour,week")
    parser.add_argument("--live", type=float, default=130.0, help="seconds that a log grows, in each of two phases")
    parser.add_argument("--swarm", action="store_true")
    parser.add_argument("--pairs", type=int, default=3, help="swarms with viewers, and as many without")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"assets_gzip_bytes": Assets().packed_bytes, "rows": {}}
    for name in filter(None, options.rows.split(",")):
        with tempfile.TemporaryDirectory(prefix="dashboard-") as folder:
            found["rows"][name] = _row(Path(folder), ROWS[name], options.live)
        print(name, json.dumps(found["rows"][name], indent=2), flush=True)
    if options.swarm:
        found["swarm"] = _swarm(options.pairs)
        print(json.dumps(found["swarm"]), flush=True)
    write_results(options.out, "dashboard", **found)


# ---------------------------------------------------------------- a log


def _row(folder: Path, shape: Shape, live_s: float) -> dict[str, Any]:
    home, whole = folder / "home", folder / "whole.jsonl"
    home.mkdir()
    write_log(whole, shape)
    log = home / "events.jsonl"
    rest = _cut(whole, log, 2 * live_s + 60)
    with _served(home) as (process, port, began):
        _wait_until_read(port)
        rebuilt_s, spent = time.monotonic() - began, process.cpu_times()
        snapshot = Viewer(port)
        snapshot.start()
        paint = _first_paint(port)
        _wait_for(lambda: snapshot.snapshot_bytes > 0)
        growing = Growing(log, rest)
        growing.start()
        alone = _cpu_share(process, live_s)
        viewers = [Viewer(port) for _ in range(VIEWERS)]
        for viewer in viewers:
            viewer.start()
        time.sleep(2)
        before = [viewer.nbytes for viewer in viewers]
        watched = _cpu_share(process, live_s)
        rates = [(viewer.nbytes - had) / live_s for viewer, had in zip(viewers, before, strict=True)]
        growing.over = True
        memory = process.memory_info().rss
        again = _first_paint(port)
        span = _get(port, "/api/v1/run")
        began = time.monotonic()
        _get(port, f"/api/v1/pipeline?at={(span['first_at'] + span['last_at']) / 2}")
        past_s = time.monotonic() - began
        time.sleep(3)
        memory_past = process.memory_info().rss
    database = home / "dashboard.sqlite"
    return {
        "log_bytes": log.stat().st_size,
        "rebuilt_s": round(rebuilt_s, 1),
        "rebuilt_cpu_s": round(spent.user + spent.system, 1),
        "first_paint_s": paint,
        "first_paint_while_20_watch_s": again,
        "snapshot_bytes": snapshot.snapshot_bytes,
        "snapshot_unpacked_bytes": snapshot.unpacked_bytes,
        "bytes_per_s_a_viewer": round(max(rates)),
        "memory_bytes": memory,
        "past_moment_s": round(past_s, 2),
        "memory_with_a_past_moment_bytes": memory_past,
        "cpu_share_no_viewer": round(alone, 4),
        f"cpu_share_{VIEWERS}_viewers": round(watched, 4),
        "events_written_live": growing.written,
        "database_bytes": database.stat().st_size,
    }


def _cut(whole: Path, log: Path, seconds: float) -> list[tuple[float, bytes]]:
    """Write all but the last `seconds` of a log to `log`. Returns the remaining lines with their times."""
    with whole.open("rb") as file:
        file.seek(max(0, whole.stat().st_size - 200_000_000))
        tail = file.read().splitlines(keepends=True)[1:] or whole.read_bytes().splitlines(keepends=True)
    times = [json.loads(line[: line.index(b",")] + b"}")["at"] for line in tail]
    start = times[-1] - seconds
    rest = [(at, line) for at, line in zip(times, tail, strict=True) if at > start]
    whole.rename(log)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - sum(len(line) for _, line in rest))
    return rest


class Growing(threading.Thread):
    """Appends the remaining lines of a log at the pace at which they were written."""

    def __init__(self, log: Path, rest: list[tuple[float, bytes]]) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._rest = rest
        self.over = False
        self.written = 0

    def run(self) -> None:
        if not self._rest:
            return
        first, began = self._rest[0][0], time.monotonic()
        with self._log.open("ab", buffering=0) as file:
            for at, line in self._rest:
                while (ahead := (at - first) - (time.monotonic() - began)) > 0.01 and not self.over:
                    time.sleep(min(ahead, 0.5))
                if self.over:
                    return
                file.write(line)
                self.written += 1


# ---------------------------------------------------------------- a dashboard and those who look at it


@contextmanager
def _served(home: Path) -> Iterator[tuple[psutil.Process, int, float]]:
    began = time.monotonic()
    words = ["dashboard", str(home), "--address", "127.0.0.1:0", "--json"]
    child = subprocess.Popen([*PEERS, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = int(json.loads(child.stdout.readline())["address"].rstrip("/").rpartition(":")[2])
        yield psutil.Process(child.pid), port, began
    finally:
        child.terminate()
        child.wait(30)


def _get(port: int, path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _wait_until_read(port: int) -> None:
    _wait_for(lambda: not _get(port, "/api/v1/run")["warnings"])


def _wait_for(done: Any, seconds: float = 3600.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the dashboard does not get there")
        time.sleep(1.0)


def _cpu_share(process: psutil.Process, seconds: float) -> float:
    """The share of a core that was used, user and system time together."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


class Viewer(threading.Thread):
    """Reads an event stream. `nbytes`: number of bytes received."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.nbytes = self.snapshot_bytes = self.unpacked_bytes = 0

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=3600)
        connection.request("GET", f"/events?topics={TOPICS}", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        unpack, text = zlib.decompressobj(31), b""
        try:
            while chunk := answer.read1(65_536):
                self.nbytes += len(chunk)
                if not self.snapshot_bytes:
                    text += unpack.decompress(chunk)
                    if text.count(b"event: snapshot") == text.count(b"\n\n") - 1 == TOPICS.count(",") + 1:
                        self.snapshot_bytes, self.unpacked_bytes = self.nbytes, len(text)
        except (OSError, HTTPException):
            return  # the dashboard has ended


def _first_paint(port: int) -> dict[str, float] | None:
    """Seconds from the request of the page to the first content, and to the run's numbers. None if there is no browser
    here.
    """
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(bypass_csp=True)  # to wait for a condition; the page itself needs no eval
        page.goto("about:blank")
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_function("document.querySelector('main').innerText.length > 200")
        numbers = page.evaluate("performance.now()")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        browser.close()
    return {"first": round(paint / 1000, 2), "with_the_run": round(numbers / 1000, 2)}


# ---------------------------------------------------------------- a swarm that is watched


def _swarm(pairs: int, steps: int = 24) -> dict[str, Any]:
    """Step times with a dashboard and 20 viewers, and without them, measured in turn."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with folder_with_corpus("watched") as folder:
        run_file = folder / "RUN.toml"
        run_file.write_text(RUN.format(steps=steps))
        for number in range(2 * pairs):
            watched = number % 2 == 0
            peers = [[*PEERS, "join", "--threads=1", "--pace=0.02,0.04", "--max-memory=500MB"]] * 4
            with LocalSwarm(folder / f"swarm-{number}", run_file, peers) as swarm:
                if watched:
                    with _served(swarm.folder / "coordinator") as (_, port, _):
                        for viewer in [Viewer(port) for _ in range(VIEWERS)]:
                            viewer.start()
                        swarm.finish(600)
                else:
                    swarm.finish(600)
                seconds[watched].append(swarm.step_seconds(steps, first=8))
    ratio = statistics.median(seconds[True]) / statistics.median(seconds[False])
    return {
        "step_s_watched": seconds[True],
        "step_s_alone": seconds[False],
        "watched_to_alone": round(ratio, 4),
        "steps": steps,
    }


if __name__ == "__main__":
    main()
