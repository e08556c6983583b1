"""What every peer did in some steps, according to its reports in the logs, and the critical path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from peers.dashboard.history.store import Store
from peers.dashboard.history.tail import line_at
from peers.fold.views.words import display_name
from peers.fold.work import KINDS

MOST_STEPS = 16
MOST_ROWS = 200
MOST_SPANS = 64
MOST_WALKED = 256
"""Largest number of peers for which the critical path is computed, and of pieces in it."""

MOST_PATHS = 64
"""Number of critical paths that are kept."""

Spans = list[tuple[str, int, float, float]]


class Report(NamedTuple):
    pass_id: str
    actor: str
    stage: int
    sums: dict[str, float]
    spans: Spans
    """Kind, microbatch, start and length of each span. Times are seconds since the peer received `Open`."""


Place = tuple[int, int, int, int, str]
"""Where a report is: number of the actor, stage, number of the log, offset in it, name of the actor."""


class Paths:
    """The critical paths that were computed last. A path is computed again if the step has more or other reports."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, list[Place], list[dict[str, Any]]]] = {}
        """By step: its pass, where its reports are, and the path. The least recently used comes first."""

    def get(self, step: int, pass_id: str, places: list[Place]) -> list[dict[str, Any]] | None:
        kept = self._kept.pop(step, None)
        if kept is None or kept[:2] != (pass_id, places):
            return None
        self._kept[step] = kept
        return kept[2]

    def keep(self, step: int, pass_id: str, places: list[Place], path: list[dict[str, Any]]) -> None:
        self._kept[step] = (pass_id, places, path)
        while len(self._kept) > MOST_PATHS:
            del self._kept[next(iter(self._kept))]


def timeline(store: Store, paths: Paths, first: int, last: int, offset: int, limit: int) -> dict[str, Any]:
    last = min(last, first + MOST_STEPS - 1)
    steps = store.rows(
        "SELECT step, pass_id, opened_at, seconds, decided_at FROM steps WHERE step BETWEEN ? AND ? ORDER BY step",
        (first, last),
    )
    actors = store.rows(
        "SELECT actor, min(stage), name FROM work JOIN names ON names.id = actor WHERE step BETWEEN ? AND ? "
        "GROUP BY actor ORDER BY min(stage), name",
        (first, last),
    )
    shown = actors[max(0, offset) : max(0, offset) + max(0, min(limit, MOST_ROWS))]
    numbers = {number for number, *_ in shown}
    reports, critical = {}, {}
    for step, pass_id, *_ in steps:
        places = _places(store, step)
        path = paths.get(step, pass_id, places) if len(actors) <= MOST_WALKED else []
        reports[step] = _reports(store, pass_id, [place for place in places if path is None or place[0] in numbers])
        if path is None:
            path = critical_path(list(reports[step].values()))
            paths.keep(step, pass_id, places, path)
        critical[step] = path
    rows = []
    for number, stage, name in shown:
        done = [
            {"step": step, "offset_s": 0.0, "sums": report.sums, "spans": [list(span) for span in report.spans]}
            for step, of_step in reports.items()
            if (report := of_step.get(number)) is not None
        ]
        rows.append({"actor": name, "stage": stage, "name": display_name(name), "steps": done})
    known = store.rows("SELECT min(step), max(step) FROM steps")[0]
    return {
        "steps": [
            {
                "step": step,
                "pass_id": pass_id,
                "opened_at": opened_at,
                "seconds": seconds,
                "decided_at": decided_at,
                "faults": [row[0] for row in store.rows("SELECT id FROM faults WHERE step = ? LIMIT 50", (step,))],
                "critical": critical[step],
            }
            for step, pass_id, opened_at, seconds, decided_at in steps
        ],
        "rows": rows,
        "total": len(actors),
        "first": first,
        "last": last,
        "steps_known": [number for number in known if number is not None],
    }


def steps_of(store: Store, actor: str, most: int) -> list[dict[str, Any]]:
    number = store.known(actor)
    if number is None:
        return []
    query = "SELECT step, stage, log, offset FROM work WHERE actor = ? AND step > ? ORDER BY step DESC LIMIT ?"
    newest = store.value("SELECT max(step) FROM work") or 0
    # the key begins with the step, so query the last steps only; otherwise all rows would be read
    found = []
    for step, stage, log, offset in store.rows(query, (number, newest - 4 * most, most)):
        report = _report(store, actor, stage, log, offset)
        if report is not None:
            found.append({"step": step, "seconds": report.sums})
    return found


def critical_path(reports: list[Report]) -> list[dict[str, Any]]:
    """The critical path of the step, oldest part first. It is followed from the end of the step back to its beginning:
    a waiting peer waits for the latest work that ended before.

    The result is a guess if transfers of frames took long, because only `Open` aligns the peers' clocks.
    """
    work = [
        [span for span in sorted(report.spans, key=lambda span: span[2]) if span[0] != "waiting" and span[3] > 0]
        for report in reports
    ]
    moment = max((span[2] + span[3] for spans in work for span in spans), default=0.0)
    path: list[dict[str, Any]] = []
    current: int | None = None
    while moment > 1e-6 and len(path) < MOST_WALKED:
        best: tuple[float, int, tuple[str, int, float, float]] | None = None
        for index, spans in enumerate(work):
            for span in reversed(spans):
                end = min(span[2] + span[3], moment)
                if span[2] < moment - 1e-9:
                    key = end + (1e-3 if index == current else 0.0)  # prefer a peer that was working just then
                    if best is None or key > best[0]:
                        best = key, index, span
                    break
        if best is None:
            break
        _, current, (kind, _, start, length) = best
        end = min(start + length, moment)
        path.append({"actor": reports[current].actor, "kind": kind, "start": start, "length": end - start})
        moment = start
    return list(reversed(path))


def _places(store: Store, step: int) -> list[Place]:
    query = "SELECT actor, stage, log, offset, name FROM work JOIN names ON names.id = actor WHERE step = ?"
    return store.rows(query, (step,))


def _reports(store: Store, pass_id: str, places: list[Place]) -> dict[int, Report]:
    """The reports about the pass that was decided. Those of an attempt that was aborted or rolled back are left out."""
    found = {}
    for number, stage, log, offset, name in places:
        report = _report(store, name, stage, log, offset)
        if report is not None and (not pass_id or report.pass_id == pass_id):
            found[number] = report
    return found


def _report(store: Store, actor: str, stage: int, log: int, offset: int) -> Report | None:
    """Read a report. None: the log has disappeared, or contains something else there."""
    try:
        record = json.loads(line_at(Path(store.name(log)), offset))
        if record["kind"] != "PeerWorked" or record["actor"] != actor:
            return None
        sums = {kind: float(record["seconds"][kind]) for kind in KINDS if kind in record["seconds"]}
        spans = [_span(span) for span in record.get("spans", [])[:MOST_SPANS]]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return Report(str(record.get("pass_id")), actor, stage, sums, spans)


def _span(raw: Any) -> tuple[str, int, float, float]:
    """Check a span. Raises ValueError or TypeError."""
    kind, microbatch, start, length = raw
    if kind not in KINDS:
        raise ValueError(kind)
    return kind, int(microbatch), max(0.0, float(start)) / 1000, max(0.0, float(length)) / 1000
