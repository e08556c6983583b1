"""The event stream of a real process: what changes arrives, once, in few bytes, and nobody holds others up."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from served_dashboard import Dashboard, dashboard, generated_home
from starlette.requests import Request

from benchmarks.generated_log import Shape
from peers.dashboard import stream as stream_module
from peers.dashboard.access import Denied
from peers.dashboard.process import STREAMED_SAMPLES
from peers.dashboard.stream import MOST_STREAMS, Hub, _Viewer
from peers.dashboard.tokens import Access

SHAPE = Shape(peers=8, stages=2, hours=0.1, step_seconds=20)


class Stream:
    """A viewer: reads messages as they come."""

    def __init__(self, shown: Dashboard, query: str, *, packed: bool = True, **headers: str) -> None:
        self.raw = socket.create_connection(("127.0.0.1", shown.port), 30)
        lines = [f"GET /events?{query} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers.items())]
        if packed:
            lines.append("Accept-Encoding: gzip")
        self.raw.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        self._unpack = zlib.decompressobj(31) if packed else None
        self._file = self.raw.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        while self._file.readline().strip():
            pass
        self.nbytes = 0
        self._text = b""
        self.last_id = ""
        self.told_at = 0.0
        """The server's time in the last ping."""

    def read(self, seconds: float = 20.0) -> tuple[str, dict[str, object]]:
        """(event, data) of the next message that is no ping."""
        self.raw.settimeout(seconds)
        while True:
            while b"\n\n" not in self._text:
                size = int(self._file.readline(), 16)
                chunk = self._file.read(size + 2)[:-2]
                assert chunk, "the stream has ended"
                self.nbytes += len(chunk)
                self._text += self._unpack.decompress(chunk) if self._unpack else chunk
            message, _, self._text = self._text.partition(b"\n\n")
            fields = dict(line.split(b": ", 1) for line in message.split(b"\n") if not line.startswith(b":"))
            if b"id" in fields:
                self.last_id = fields[b"id"].decode()
            if fields.get(b"event") == b"ping":
                self.told_at = json.loads(fields[b"data"])["at"]
            elif b"data" in fields:
                return fields[b"event"].decode(), json.loads(fields[b"data"])

    def close(self) -> None:
        self._file.close()
        self.raw.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return generated_home(tmp_path / "home", SHAPE)


@pytest.fixture
def shown(home: Path) -> Iterator[Dashboard]:
    with dashboard(home) as running:
        running.wait("/api/v1/run", lambda run: not run["warnings"])
        yield running


def _pause(home: Path, reason: str) -> None:
    with (home / "events.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "kind": "StateChanged", "state": "paused", "reason": reason}) + "\n")


@pytest.mark.parametrize("packed", [True, False])
def test_a_snapshot_and_then_only_what_changes(shown: Dashboard, home: Path, packed: bool) -> None:
    viewer = Stream(shown, "topics=run,pipeline", packed=packed)
    whole = {}
    for _ in range(2):
        event, message = viewer.read()
        assert event == "snapshot"
        whole[message["topic"]] = message["data"]
    for topic in ("run", "pipeline"):
        assert whole[topic] == shown.get(f"/api/v1/{topic}")
    _pause(home, "lunch")
    event, message = viewer.read()
    assert event == "change" and message["topic"] == "run"
    assert message["data"]["state"]["reason"] == "lunch"
    assert "tokens" not in message["data"] and "replicas" not in message["data"]
    viewer.close()


def test_a_stream_tells_the_servers_time(shown: Dashboard) -> None:
    """Events may be hours apart, so the last one says nothing about the time."""
    before = time.time()
    viewer = Stream(shown, "topics=run")
    viewer.read()
    assert before - 0.1 <= viewer.told_at <= time.time() + 0.1
    viewer.close()


@pytest.mark.parametrize("large", [True, False])
def test_there_are_pings_while_nothing_is_or_may_be_sent(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """A large change takes a viewer's share of many seconds. A silent page would take the connection for dead."""
    monkeypatch.setattr(stream_module, "_PING_EVERY_S", 0.01)
    answer = {"text": ""}

    async def look(topic: str) -> tuple[dict[str, Any], float]:
        return dict(answer), 0.0

    async def scene() -> None:
        hub = Hub(look)
        messages = _Viewer(hub, ("run",), 0, None, Access.READ, lambda: True, "").messages()
        assert b"event: ping" in await anext(messages) and b"snapshot" in await anext(messages)
        if large:
            for text in ("x" * 1_000_000, "y"):  # the second waits for minutes
                answer["text"] = text
                await hub._refresh("run")
                if text != "y":
                    assert b"event: change" in await anext(messages)
        for _ in range(3):
            async with asyncio.timeout(10):
                assert (await anext(messages)).startswith(b"event: ping\n")
        await messages.aclose()  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_who_comes_back_gets_what_was_missed(shown: Dashboard, home: Path) -> None:
    viewer = Stream(shown, "topics=run")
    viewer.read()
    viewer.close()
    _pause(home, "missed")
    shown.wait("/api/v1/run", lambda run: run["state"]["reason"] == "missed")
    for known in ({"Last-Event-ID": viewer.last_id}, {}):
        query = "topics=run" if known else f"topics=run&last_id={viewer.last_id}"
        again = Stream(shown, query, **known)
        event, message = again.read()
        assert event == "change" and message["data"]["state"]["reason"] == "missed"
        assert "tokens" not in message["data"]
        again.close()
    for wrong in ("x", "00000000-1-0", viewer.last_id.replace("-", "-9"), viewer.last_id[:-1] + "1"):
        whole = Stream(shown, "topics=run", **{"Last-Event-ID": wrong})
        assert whole.read()[0] == "snapshot", wrong
        whole.close()


def test_a_viewer_costs_at_most_2_kB_a_second(shown: Dashboard, home: Path) -> None:
    viewer = Stream(shown, "topics=run,peers,pipeline", packed=False)
    for _ in range(3):
        viewer.read()
    began, before = time.monotonic(), viewer.nbytes
    rows = home / "events.jsonl"
    actors = [peer["actor"] for peer in shown.get("/api/v1/peers")["peers"]]
    while time.monotonic() - began < 8:
        with rows.open("a") as file:
            for actor in actors:
                usage = {"cpu": time.time() % 7, "resident": time.time()}
                record = {"kind": "PeerWorked", "actor": actor, "stage": 0, "pass_id": "1:5", "seconds": {}}
                file.write(json.dumps({"at": time.time(), **record, "usage": usage}) + "\n")
        _pause(home, str(time.time()))
        time.sleep(0.2)
    viewer.raw.settimeout(0.5)
    try:
        while True:
            viewer.read(0.5)
    except TimeoutError:
        pass
    seconds = time.monotonic() - began
    assert 0 < viewer.nbytes - before <= 2_000 * seconds + 10_000, "10 kB: one message more than its share"
    viewer.close()


def test_only_the_newest_samples_are_streamed(shown: Dashboard, home: Path) -> None:
    def sample(version: int) -> None:
        record = {"kind": "Sampled", "version": version, "prompt": "The city of", "text": f" number {version}"}
        with (home / "events.jsonl").open("a") as file:
            file.write(json.dumps({"at": time.time(), **record}) + "\n")

    for version in range(100, 120):
        sample(version)
    shown.wait("/api/v1/samples", lambda answer: [each["version"] for each in answer["samples"][:1]] == [119])
    viewer = Stream(shown, "topics=samples")
    found = [viewer.read()[1]["data"]["samples"]]
    sample(120)
    found.append(viewer.read()[1]["data"]["samples"])
    assert [[each["version"] for each in samples] for samples in found] == [[119, 118, 117], [120, 119, 118]]
    assert found[1] == shown.get("/api/v1/samples")["samples"][:STREAMED_SAMPLES]
    viewer.close()


def test_topics_that_are_none(shown: Dashboard) -> None:
    for query in ("topics=", "topics=nothing", "topics=run,x"):
        assert shown.ask(f"/events?{query}").status == 400


def test_a_control_that_this_viewer_cannot_give_is_not_offered(shown: Dashboard) -> None:
    viewer = Stream(shown, "topics=run")
    assert viewer.read()[1]["data"]["control"] is False
    viewer.close()


def test_streams_are_counted(shown: Dashboard) -> None:
    """Beyond the most nobody is let in, and who leaves makes room."""
    viewers = [Stream(shown, "topics=timeline", packed=False) for _ in range(MOST_STREAMS)]
    assert all(viewer.status == 200 for viewer in viewers)
    answer = shown.ask("/events?topics=timeline")
    assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
    assert shown.get("/api/v1/run"), "the rest is served"
    for viewer in viewers:
        viewer.close()
    deadline = time.monotonic() + 10
    while (again := Stream(shown, "topics=timeline", packed=False)).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    again.close()
    assert "swarm_peer_dashboard_viewers" in shown.ask("/metrics").body.decode()


def test_a_viewer_that_does_not_read_holds_nobody_up(shown: Dashboard, home: Path) -> None:
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    deaf.connect(("127.0.0.1", shown.port))
    deaf.sendall(b"GET /events?topics=run,peers,links,pipeline HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    viewer = Stream(shown, "topics=run")
    viewer.read()
    for number in range(3):
        _pause(home, f"pause {number}")
        message = viewer.read()[1]
        assert message["data"]["state"]["reason"] == f"pause {number}"
    viewer.close()
    deaf.close()


def test_one_expensive_look_does_not_delay_the_next_one() -> None:
    costs = iter((0.002, 1.0, 0.002, 1.0, 1.0))

    async def look(topic: str) -> tuple[dict[str, object], float]:
        return {}, next(costs)

    async def pauses() -> list[float]:
        hub, found = Hub(look, lambda: 0.0), []
        for _ in range(5):
            await hub._refresh("run")
            found.append(hub._topics["run"].next_look)
        return found

    assert asyncio.run(pauses()) == pytest.approx([1.0, 1.0, 1.0, 1.0, 500.0])


def test_a_viewer_that_leaves_during_a_look_takes_no_news_along() -> None:
    """The news that it would have got comes to the next viewer."""
    answer = {"step": 1}
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def look(topic: str) -> tuple[dict[str, object], float]:
        looking.set()
        await go_on.wait()
        return dict(answer), 0.0

    def viewer() -> _Viewer:
        return _Viewer(hub, ("run",), 0, None, Access.READ, lambda: True, "")

    async def first_message(messages: AsyncIterator[bytes]) -> bytes:
        await anext(messages)  # how long to wait before dialling again
        return await anext(messages)

    hub = Hub(look)

    async def scene() -> tuple[bytes, bytes]:
        go_on.set()
        before = await first_message(viewer().messages())
        answer["step"] = 2
        hub.invalidate()
        go_on.clear()
        looking.clear()
        leaving = asyncio.create_task(first_message(viewer().messages()))
        await looking.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        go_on.set()
        return before, await first_message(viewer().messages())

    before, after = asyncio.run(scene())
    assert b'"step":1' in before and b'"step":2' in after


def test_viewers_that_come_at_once_share_a_look() -> None:
    looks: list[str] = []

    async def look(topic: str) -> tuple[dict[str, object], float]:
        looks.append(topic)
        await asyncio.sleep(0)
        return {"step": 1}, 0.0

    async def first_message(hub: Hub) -> bytes:
        messages = _Viewer(hub, ("run", "faults"), 0, None, Access.READ, lambda: True, "").messages()
        await anext(messages)  # how long to wait before dialling again
        return await anext(messages)

    async def scene() -> list[bytes]:
        hub = Hub(look)
        return await asyncio.gather(*(first_message(hub) for _ in range(MOST_STREAMS)))

    for message in asyncio.run(scene()):
        assert b'"topic":"run","data":{"step":1}' in message and b'"topic":"faults"' in message
    assert looks == ["run", "faults"]


def test_one_host_cannot_take_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MOST_STREAMS", 4)

    async def look(name: str) -> tuple[dict[str, Any], float]:
        return {"a": 1}, 0.0

    def asks(host: str) -> Request:
        return Request({"type": "http", "headers": [], "client": (host, 1)})

    async def scene() -> None:
        hub = Hub(look)

        async def viewer(host: str) -> AsyncIterator[bytes]:
            response = hub.response(asks(host), ["run"], "", Access.READ, lambda: True)
            messages = response.body_iterator  # type: ignore[attr-defined]
            assert b"retry" in await anext(messages) and b"snapshot" in await anext(messages)
            return messages  # type: ignore[no-any-return]

        greedy = [await viewer("192.0.2.1") for _ in range(4)]
        waiting = [asyncio.ensure_future(anext(each, None)) for each in greedy]
        await asyncio.sleep(0)
        with pytest.raises(Denied, match="too many viewers"):
            await viewer("192.0.2.1")
        others = [await viewer("192.0.2.2") for _ in range(2)]
        assert await waiting[3] is await waiting[2] is None, "the newest of them have ended"
        assert hub.streams == 4 and not waiting[0].done() and not waiting[1].done()
        for host in ("192.0.2.1", "192.0.2.2"):
            with pytest.raises(Denied):
                await viewer(host)
        for each in waiting[:2]:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for messages in (*others, *greedy):
            await messages.aclose()  # type: ignore[attr-defined]
        assert hub.streams == 0

    asyncio.run(scene())
