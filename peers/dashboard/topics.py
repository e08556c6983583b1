"""Computes the answer to each page's request from history and query, in the reader's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.dashboard.access import Denied
from peers.dashboard.answers import Topic
from peers.dashboard.downloads import listed
from peers.dashboard.history.history import History
from peers.dashboard.query import Query
from peers.dashboard.trace import chrome_trace
from peers.fold import RunFacts, RunState, views
from peers.fold.facts import facts_apart
from peers.run.home import Home

NAMES = (
    "run",
    "pipeline",
    "peers",
    "peer",
    "timeline",
    "links",
    "faults",
    "people",
    "checkpoints",
    "samples",
    "series",
    "marks",
    "log",
    "trace",
)
SHOWN_STEPS, MOST_STEPS = 4, 16
LOOK_S = 2.0
"""Seconds between two attempts to read a manifest that is missing or unreadable."""


class Topics:
    """The topics of one dashboard. `homes`: the manifest and the archive are read from the first coordinator's home.
    `goes_on`: returns True while a process writes the logs and all of them have been read, so that what they lack has
    not happened.
    """

    def __init__(self, homes: Sequence[Path], goes_on: Callable[[], bool] = lambda: False) -> None:
        self._homes = homes
        self._goes_on = goes_on
        self._facts: RunFacts | None = None
        self._look_at = 0.0
        """Monotonic seconds at which the manifest is looked for again."""

    def by_name(self) -> Mapping[str, Topic]:
        return {name: getattr(self, name) for name in NAMES}

    @property
    def facts(self) -> RunFacts | None:
        if self._facts is None and (now := time.monotonic()) >= self._look_at:
            self._look_at = now + LOOK_S  # a coordinator writes its manifest when it starts
            self._facts = next((facts for home in self._homes if (facts := facts_apart(home)) is not None), None)
        return self._facts

    def run(self, history: History, query: Query) -> dict[str, Any]:
        now = max(time.time(), history.span[1]) if self._goes_on() else history.span[1]
        at = now if query.at is None else min(now, query.at)
        return views.run_view(_state(history, query), self.facts, at, warnings=history.warnings)

    def pipeline(self, history: History, query: Query) -> dict[str, Any]:
        return views.pipeline_view(_state(history, query), self.facts, offset=query.offset, limit=query.limit)

    def peers(self, history: History, query: Query) -> dict[str, Any]:
        return views.peers_view(
            _state(history, query),
            self.facts,
            offset=query.offset,
            limit=query.limit,
            sort=query.sort or "stage",
            query=query.q,
        )

    def peer(self, history: History, query: Query) -> dict[str, Any]:
        answer = views.peer_view(_state(history, query), self.facts, query.actor, query.at or time.time())
        if answer is None:
            raise Denied(404, "this run has no such peer")
        return answer | {"steps": history.steps_of(answer["actor"])}

    def links(self, history: History, query: Query) -> dict[str, Any]:
        return views.links_view(_state(history, query), offset=query.offset, limit=query.limit)

    def faults(self, history: History, query: Query) -> dict[str, Any]:
        """All faults. The state holds the newest ones; older ones come from the history."""
        answer = views.faults_view(_state(history, query), offset=query.offset, limit=query.limit)
        if query.at is None and answer["ever"] > answer["total"]:
            answer |= {"total": answer["ever"], "faults": history.faults(query.offset, query.limit)}
        return answer

    def people(self, history: History, query: Query) -> dict[str, Any]:
        return views.people_view(_state(history, query), self.facts, offset=query.offset, limit=query.limit)

    def checkpoints(self, history: History, query: Query) -> dict[str, Any]:
        """All checkpoints. `here`: True if the files can be downloaded, which is possible from the first home only."""
        answer = views.checkpoints_view(_state(history, query))
        here = set(listed(Home(self._homes[0]).archive))
        rows = [{**row, "here": row["version"] in here} for row in answer["checkpoints"]]
        return {**answer, "checkpoints": rows}

    def samples(self, history: History, query: Query) -> dict[str, Any]:
        return views.samples_view(_state(history, query))

    def timeline(self, history: History, query: Query) -> dict[str, Any]:
        first, last = query.steps
        newest = _state(history, query).run.step
        last = newest if last is None else min(last, newest)
        first = max(0, last - SHOWN_STEPS + 1) if first is None else max(0, first)
        return history.timeline(first, min(last, first + MOST_STEPS - 1), offset=query.offset, limit=query.limit)

    def trace(self, history: History, query: Query) -> dict[str, Any]:
        return chrome_trace(self.timeline(history, query))

    def series(self, history: History, query: Query) -> dict[str, Any]:
        start, end = _span(history, query)
        try:
            return history.series(query.name, start, end, max(1, query.points))
        except KeyError:
            raise Denied(404, "there is no such series") from None

    def marks(self, history: History, query: Query) -> dict[str, Any]:
        start, end = _span(history, query)
        return {"first": start, "last": end, "marks": history.marks(start, end, 400)}

    def log(self, history: History, query: Query) -> dict[str, Any]:
        before = query.before if query.before is not None else query.at
        kinds = frozenset(kind for kind in query.kind.split(",") if kind)
        return history.lines(actor=query.actor, kinds=kinds, before=before, limit=query.limit)


def _state(history: History, query: Query) -> RunState:
    return history.now if query.at is None else history.at(query.at)


def _span(history: History, query: Query) -> tuple[float, float]:
    first, last = history.span
    end = query.last if query.last is not None else query.at
    return query.first if query.first is not None else first, last if end is None else min(end, last)
