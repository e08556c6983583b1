"""The event stream: sends changes to every open page.

An answer is compared key by key with the previous one, once for all viewers. For each viewer, only the number of the
last change that was sent is stored, so a slow viewer costs nothing and gets the newest state when it is ready. A viewer
that does not read at all is dropped. A stream is compressed as a whole, so text that resembles the previous message
takes few bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from peers.dashboard.access import Denied
from peers.dashboard.body import takes_gzip, to_json, without_addresses
from peers.dashboard.connections import host_of
from peers.dashboard.tokens import Access

TOPICS = ("run", "pipeline", "peers", "faults", "links", "timeline", "samples", "checkpoints", "log")
MOST_STREAMS = 200

BYTES_PER_S = 2_000.0
"""Bytes per second that one viewer may get, after the first snapshots."""
_LOOK_EVERY_S = 1.0
_PING_EVERY_S = 15.0
_SEND_TIMEOUT_S = 20.0
_SHARE = 0.002
"""Fraction of a core that may be spent on computing one topic repeatedly."""

Look = Callable[[str], Awaitable[tuple[dict[str, Any], float]]]
"""Computes a topic: returns its current answer, and the seconds of CPU time that this took."""


@dataclass(slots=True)
class _Topic:
    keys: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """For each key: the number of the change that set its value, and `"key":value` as JSON."""
    changed: int = 0
    viewers: int = 0
    next_look: float = 0.0
    look_s: float = math.inf
    """Seconds of CPU time of the last look."""


class Hub:
    """The topics that viewers watch. They are computed whenever something is new. `run` runs until it is cancelled."""

    def __init__(self, look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._topics = {name: _Topic() for name in TOPICS}
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._stale = {*TOPICS}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()  # replaced after each change
        self._viewers: dict[_Viewer, None] = {}  # the newest comes last

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._viewers)

    def invalidate(self) -> None:
        """Note that the history has grown."""
        self._stale.update(TOPICS)

    async def run(self) -> None:
        while True:
            now = self._clock()
            due = [n for n, t in self._topics.items() if t.viewers and n in self._stale and t.next_look <= now]
            for name in due:
                await self._refresh(name)
            await asyncio.sleep(_LOOK_EVERY_S)

    def response(
        self, request: Request, topics: Sequence[str], last_id: str, access: Access, keeps: Callable[[], bool]
    ) -> Response:
        """The stream of some topics for one viewer. It ends when `keeps` returns False: the viewer has lost its access.
        Raises Denied for an unknown topic, or when there are too many viewers.
        """
        wanted = tuple(dict.fromkeys(topics))
        if not wanted or not set(wanted) <= set(TOPICS):
            raise Denied(400, f"topics must be some of {', '.join(TOPICS)}, separated by commas")
        host = host_of(request.client.host if request.client is not None else "")
        if self.streams >= MOST_STREAMS and not self._make_room(host):
            raise Denied(503, "too many viewers: this page is shown without live updates", 30.0)
        packer = zlib.compressobj(6, zlib.DEFLATED, 31, 6) if takes_gzip(request) else None
        viewer = _Viewer(self, wanted, self._known(last_id, wanted), packer, access, keeps, host)
        headers = {"content-encoding": "gzip"} if packer is not None else {}
        # the stream makes its own pings, because they must pass through the packer
        return _Stream(viewer.messages(), headers=headers, ping=0, send_timeout=_SEND_TIMEOUT_S)

    def _make_room(self, host: str) -> bool:
        """End the newest stream of the host that has the most. False: that would give `host` more than any other."""
        counts = Counter(viewer.host for viewer in self._viewers)
        greediest, most = counts.most_common(1)[0]
        if most <= counts[host] + 1:
            return False
        next(viewer for viewer in reversed(self._viewers) if viewer.host == greediest).end()
        return True

    async def _bring_up_to_date(self, names: Iterable[str]) -> None:
        """Compute the topics of a new viewer that are not up to date."""
        for name in names:
            if not self._topics[name].keys or name in self._stale or name in self._looking:
                await self._refresh(name)

    async def _refresh(self, name: str) -> None:
        """Compute a topic. All who need it at the same time share one look, which goes on if one of them leaves."""
        looking = self._looking.get(name)
        if looking is None:
            looking = self._looking[name] = asyncio.create_task(self._compute(name))
            looking.add_done_callback(lambda _: self._looking.pop(name, None))
        await asyncio.shield(looking)

    async def _compute(self, name: str) -> None:
        self._stale.discard(name)  # before the look: what comes during it makes the topic stale again
        topic = self._topics[name]
        try:
            answer, seconds = await self._look(name)
        except BaseException:  # also if it is cancelled
            self._stale.add(name)
            raise
        # Garbage collection in one look would otherwise delay the next one by minutes.
        topic.next_look = self._clock() + min(seconds, topic.look_s) / _SHARE
        topic.look_s = seconds
        number = self._number + 1
        for key, value in answer.items():
            text = to_json(key) + b":" + to_json(value)
            if key not in topic.keys or topic.keys[key][1] != text:
                topic.keys[key] = (number, text)
                topic.changed = self._number = number
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _id(self, number: int, topics: Iterable[str]) -> str:
        return f"{self._epoch}-{number}-{''.join(str(TOPICS.index(name)) for name in topics)}"

    def _known(self, last_id: str, topics: Iterable[str]) -> int:
        """The number of the last change that a returning viewer has seen; 0: none, or one of another process or of
        other topics.
        """
        number = last_id.split("-")[1] if last_id.count("-") == 2 else ""
        if not (number.isascii() and number.isdigit() and len(number) < 16) or int(number) > self._number:
            return 0
        return int(number) if last_id == self._id(int(number), topics) else 0


class _Viewer:
    def __init__(
        self,
        hub: Hub,
        topics: tuple[str, ...],
        known: int,
        packer: Any,
        access: Access,
        keeps: Callable[[], bool],
        host: str,
    ) -> None:
        self._hub = hub
        self._seen = dict.fromkeys(topics, known)  # by topic: number of the last change sent
        self._packer = packer
        self._access = access
        self._keeps = keeps
        self.host = host
        self._ended = False
        self._not_before = 0.0

    async def messages(self) -> AsyncIterator[bytes]:
        hub = self._hub
        hub._viewers[self] = None
        for name in self._seen:
            hub._topics[name].viewers += 1
        try:
            await hub._bring_up_to_date(self._seen)
            yield self._packed(b"retry: 3000\n\n" + _ping())
            while self._may_go_on():
                message, change = self._message()
                if not message:
                    await self._wait()
                    message = b"" if self._behind() and hub._clock() >= self._not_before else _ping()
                if message and self._may_go_on():
                    sent = self._packed(message)
                    if change:
                        self._not_before = hub._clock() + max(_LOOK_EVERY_S, len(sent) / BYTES_PER_S)
                    yield sent
        finally:
            hub._viewers.pop(self, None)
            for name in self._seen:
                hub._topics[name].viewers -= 1

    def end(self) -> None:
        """End the stream, and make room for another one at once."""
        self._ended = True
        self._hub._viewers.pop(self, None)
        self._hub._wake()

    def _may_go_on(self) -> bool:
        return not self._ended and self._keeps()

    async def _wait(self) -> None:
        """Wait until there is something to send and it may be sent, or until a ping is due."""
        pause = self._not_before - self._hub._clock()
        if pause > 0:
            await asyncio.sleep(min(pause, _PING_EVERY_S))
            if self._behind() or pause > _PING_EVERY_S:
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PING_EVERY_S):
                while not self._behind() and not self._ended:
                    await self._hub._news.wait()

    def _behind(self) -> bool:
        return any(self._hub._topics[name].changed > seen for name, seen in self._seen.items())

    def _message(self) -> tuple[bytes, bool]:
        """The changes that this viewer lacks, and whether they change what the viewer has. Empty: none, or not yet."""
        hub, parts, change = self._hub, [], False
        for name, seen in self._seen.items():
            topic = hub._topics[name]
            if topic.changed <= seen or (seen and hub._clock() < self._not_before):
                continue
            keys = b",".join(self._shown(key, text) for key, (number, text) in topic.keys.items() if number > seen)
            data = b'{"topic":"' + name.encode() + b'","data":{' + keys + b"}}"
            if self._access is Access.PUBLIC:
                data = without_addresses(data)
            parts.append(b"event: %s\ndata: %s\n\n" % (b"change" if seen else b"snapshot", data))
            change |= bool(seen)
            self._seen[name] = topic.changed
        if not parts:
            return b"", False
        # only with the last part: if the connection breaks earlier, the viewer has not received everything
        parts[-1] = b"id: %s\n" % self._id().encode() + parts[-1]
        return b"".join(parts), change

    def _shown(self, key: str, text: bytes) -> bytes:
        return text if key != "control" or self._access is Access.ORGANISER else b'"control":false'

    def _id(self) -> str:
        """The number of the change up to which this viewer has seen all changes of its topics."""
        behind = [seen for name, seen in self._seen.items() if self._hub._topics[name].changed > seen]
        return self._hub._id(min(behind, default=self._hub._number), self._seen)

    def _packed(self, message: bytes) -> bytes:
        if self._packer is None:
            return message
        packed: bytes = self._packer.compress(message) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return packed


def _ping() -> bytes:
    """An event that tells the page that the connection still works, and this server's time."""
    return b'event: ping\ndata: {"at":%.1f}\n\n' % time.time()


class _Stream(EventSourceResponse):
    """A stream whose viewer is dropped without a log entry if it does not read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(SendTimeoutError):
            await super().__call__(scope, receive, send)
            with contextlib.suppress(RuntimeError):  # raised if this server ended the response early, which is no error
                await send({"type": "http.response.body", "body": b"", "more_body": False})
