"""Each answer of the API is made once for all viewers that ask the same question about the same moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from peers.dashboard.body import Body, to_json, without_addresses
from peers.dashboard.history.history import History
from peers.dashboard.query import Query
from peers.dashboard.reader import Reader
from peers.dashboard.tokens import Access

Topic = Callable[[History, Query], dict[str, Any]]
"""Computes the answer of a topic. Raises Denied for unknown things."""

_MOST_BYTES = 16 << 20
MOST_KEPT = 2_000
"""Answers that are kept. A small answer takes a kilobyte or two beyond its bytes, for its question above all."""
_SETTLED_S = 120.0
"""Seconds after which an answer about the past no longer changes, unless a log is added or all are read again. Until
then, the logs of other machines, which are merged into it, may add to it.
"""

_Key = tuple[str, Query, Access, str]


class Answers:
    """The answers of one dashboard. `additions`: for each topic, facts that are not in the logs, such as whether the
    run is alive. They are called in the event loop.
    """

    def __init__(
        self,
        reader: Reader,
        topics: Mapping[str, Topic],
        additions: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]],
    ) -> None:
        self._reader = reader
        self._topics = topics
        self._additions = additions
        self._kept: dict[_Key, Body] = {}  # the least recently used comes first
        self._kept_bytes = 0
        self._making: dict[_Key, asyncio.Task[Body]] = {}

    async def body(self, topic: str, query: Query, access: Access) -> Body:
        """The answer as bytes. Raises Denied."""
        key = (topic, query, access, self._tag(topic, query))
        if (kept := self._kept.pop(key, None)) is not None:
            self._kept[key] = kept
            return kept
        making = self._making.get(key)
        if making is None:
            making = asyncio.create_task(self._make(key))
            self._making[key] = making
            making.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(making)

    async def data(self, topic: str, query: Query, *, own: bool = False) -> tuple[dict[str, Any], float]:
        """The answer as the organiser sees it, and the seconds of CPU time that it took. `own`: as for `Reader.ask`.
        Raises Denied.
        """

        def timed(history: History) -> tuple[dict[str, Any], float]:
            began = time.thread_time()
            answer = self._topics[topic](history, query)
            return answer, time.thread_time() - began

        answer, seconds = await self._reader.ask(timed, own=own)
        added = self._additions.get(topic)
        return answer if added is None else answer | added(answer), seconds

    async def _make(self, key: _Key) -> Body:
        topic, query, access, _ = key
        answer, _ = await self.data(topic, query)
        if access < Access.ORGANISER and "control" in answer:
            answer = {**answer, "control": False}
        raw = to_json(answer)
        body = Body.of(without_addresses(raw) if access is Access.PUBLIC else raw)
        self._keep(key, body)
        return body

    def _keep(self, key: _Key, body: Body) -> None:
        self._kept[key] = body
        self._kept_bytes += body.size
        while self._kept_bytes > _MOST_BYTES or len(self._kept) > MOST_KEPT:
            oldest = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(oldest).size

    def _tag(self, topic: str, query: Query) -> str:
        at = query.at
        logged = topic not in self._additions  # the other facts may change, whatever moment is asked about
        settled = logged and at is not None and self._reader.caught_up and at < self._reader.last_at - _SETTLED_S
        return f"settled {self._reader.edition}" if settled else self._reader.position
