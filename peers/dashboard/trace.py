"""Writes a part of the timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

A stage is a process, a peer a thread in it, a span of work a slice; a separate flow marks the critical path of a step.
Times are microseconds since the opening of the first step shown.
"""

from __future__ import annotations

from typing import Any

_COORDINATOR = 0  # process id of the row of steps; stage s has the id s + 1


def chrome_trace(timeline: dict[str, Any]) -> dict[str, Any]:
    """The trace of a timeline. `timeline`: an answer of /api/v1/timeline."""
    steps = {step["step"]: step for step in timeline["steps"] if step["opened_at"] is not None}
    start = min((step["opened_at"] for step in steps.values()), default=0.0)
    events = [_named("process_name", _COORDINATOR, 0, "coordinator")]
    for step in steps.values():
        label, begins = f"step {step['step'] + 1}", step["opened_at"] - start
        events.append(_slice(label, "step", _COORDINATOR, 0, begins, step["seconds"]))
    for number, row in enumerate(timeline["rows"]):
        process, thread = (row["stage"] + 1 if row["stage"] is not None else 1 << 16), number + 1
        events.append(_named("process_name", process, 0, f"stage {row['stage']}"))
        events.append(_named("thread_name", process, thread, row["name"]))
        for of_step in row["steps"]:
            step = steps.get(of_step["step"])
            if step is None:
                continue
            opened = step["opened_at"] - start + (of_step["offset_s"] or 0.0)
            for kind, microbatch, begins, length in of_step["spans"]:
                label = kind if microbatch < 0 else f"{kind} {microbatch}"
                events.append(_slice(label, kind, process, thread, opened + begins, length))
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"unix_seconds_of_0": start}}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, kind: str, process: int, thread: int, start: float, length: float | None) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": process,
        "tid": thread,
        "ts": round(start * 1e6),
        "dur": round((length or 0.0) * 1e6),
    }
