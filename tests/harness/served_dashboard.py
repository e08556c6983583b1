"""A dashboard process for tests, and a small client that returns its raw answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.generated_log import Shape, write_log

SMALL = Shape(peers=8, stages=2, hours=0.5, step_seconds=20, spans=True)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Dashboard:
    process: subprocess.Popen[str]
    address: str
    token: str
    read_token: str | None
    said: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    def ask(self, path: str, method: str = "GET", body: bytes | dict[str, Any] | None = None, **headers: str) -> Answer:
        """Send a request. `headers`: with underscores in place of dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        try:
            connection.request(method, path, content, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            told = {name.lower(): text for name, text in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        """The JSON of an answer, which must have status 200."""
        answer = self.ask(path, **headers)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return answer.json

    def act(self, path: str, body: dict[str, Any], **headers: str) -> Answer:
        """Send a POST request as the organiser's program does."""
        own = {"X_Swarm_Peer": "1", "Authorization": f"Bearer {self.token}"}
        return self.ask(path, "POST", body, **(own | headers))

    def wait(self, path: str, done: Any, seconds: float = 30.0) -> Any:
        """Repeat a request until `done(answer)`."""
        deadline = time.monotonic() + seconds
        while not done(found := self.get(path)):
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        return found


@contextlib.contextmanager
def dashboard(*words: str | Path, environment: dict[str, str] | None = None) -> Iterator[Dashboard]:
    """`swarm-peer dashboard WORDS` on a free port."""
    place = [] if "--address" in words else ["--address", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "peers", "dashboard", *map(str, words), *place, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"it ended with code {process.wait()}"
        told = json.loads(line)
        read = told["reader"]
        yield Dashboard(
            process,
            told["address"],
            (told["organiser"] or "").partition("#token=")[2],
            None if read is None else read.partition("#token=")[2],
        )
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(20)
        process.stdout.close()  # type: ignore[union-attr]


def generated_home(folder: Path, shape: Shape = SMALL) -> Path:
    write_log(folder / "events.jsonl", shape)
    return folder
