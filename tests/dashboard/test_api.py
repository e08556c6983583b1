"""The API of a real process: every answer is what the schema says, and the edges of what may be asked."""

from __future__ import annotations

import fcntl
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from served_dashboard import Dashboard, dashboard, generated_home
from watched_log import WatchedLog

from peers.dashboard.openapi import OPERATIONS


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    home = generated_home(tmp_path_factory.mktemp("home"))
    with dashboard(home) as running:
        running.wait("/api/v1/run", lambda run: not run["warnings"])
        yield running


def _some_path(shown: Dashboard, path: str) -> str:
    if "{actor}" in path:
        return path.replace("{actor}", shown.get("/api/v1/peers")["peers"][0]["actor"])
    return path + ("?name=loss&points=50" if path.endswith("series") else "")


ANSWERS = [
    (each.path, each.answer) for each in OPERATIONS if each.method == "get" and each.answer and not each.organiser
]


@pytest.mark.parametrize(("path", "model"), ANSWERS, ids=[path for path, _ in ANSWERS])
def test_every_answer_is_as_the_schema_says(shown: Dashboard, path: str, model: type[BaseModel]) -> None:
    full = _some_path(shown, path)
    model.model_validate(shown.get(full), strict=False)
    if "at" in next(each.parameters for each in OPERATIONS if each.path == path):
        span = shown.get("/api/v1/marks")
        middle = (span["first"] + span["last"]) / 2
        model.model_validate(shown.get(f"{full}{'&' if '?' in full else '?'}at={middle}"))


def test_the_document_names_every_route(shown: Dashboard) -> None:
    document = shown.get("/openapi.json")
    assert set(document["paths"]) == {each.path for each in OPERATIONS}
    references = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {text.partition('"')[0] for text in references} <= set(document["components"]["schemas"])


def test_a_moment_of_the_past_is_of_then(shown: Dashboard) -> None:
    span = shown.get("/api/v1/marks")
    now, then = shown.get("/api/v1/run"), shown.get(f"/api/v1/run?at={span['first'] + 300}")
    assert 0 < then["step"] < now["step"] and then["at"] <= span["first"] + 300
    assert shown.get(f"/api/v1/faults?at={span['first']}")["total"] == 0


@pytest.mark.parametrize(
    "query", ["at=abc", "at=nan", "at=1e400", "limit=-1", "offset=1.5", "offset=x", "q=" + "x" * 200, "at=1&limit=a"]
)
def test_what_cannot_be_meant_is_refused_by_name(shown: Dashboard, query: str) -> None:
    answer = shown.ask(f"/api/v1/peers?{query}")
    assert answer.status == 400 and answer.json["error"]


def test_lists_come_in_pages_of_at_most_200(shown: Dashboard) -> None:
    whole = shown.get("/api/v1/peers?limit=100000")
    assert len(whole["peers"]) == min(200, whole["total"])
    second = shown.get("/api/v1/peers?limit=3&offset=3")
    assert second["peers"] == whole["peers"][3:6] and second["total"] == whole["total"]
    assert shown.get("/api/v1/peers?offset=9999999")["peers"] == []


def test_an_answer_is_packed_once_and_not_sent_again(shown: Dashboard) -> None:
    plain = shown.ask("/api/v1/peers")
    packed = shown.ask("/api/v1/peers", Accept_Encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 3
    again = shown.ask("/api/v1/peers", If_None_Match=packed.headers["etag"])
    assert again.status == 304 and again.body == b""


def test_a_trace_has_the_spans_of_the_timeline(shown: Dashboard) -> None:
    timeline = shown.get("/api/v1/timeline?first=3&last=4")
    answer = shown.ask("/api/v1/trace?first=3&last=4")
    assert "attachment" in answer.headers["content-disposition"]
    slices = [event for event in answer.json["traceEvents"] if event["ph"] == "X"]
    spans = sum(len(step["spans"]) for row in timeline["rows"] for step in row["steps"])
    assert spans > 10 and len(slices) == spans + 2
    opened = [event for event in slices if event["cat"] == "step"]
    assert [event["name"] for event in opened] == ["step 4", "step 5"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in slices)


def test_metrics_are_few_and_by_stage(shown: Dashboard) -> None:
    text = shown.ask("/metrics").body.decode()
    run = shown.get("/api/v1/run")
    assert f"swarm_peer_step {run['step'] + 1}.0" in text
    assert 'swarm_peer_stage_peers{stage="1"} 4.0' in text
    assert len(text.splitlines()) < 200
    assert all(peer["peer"] not in text for peer in shown.get("/api/v1/peers")["peers"])


def goodput(shown: Dashboard, at: float | None = None) -> dict[str, float | None]:
    found: dict[str, float | None] = shown.get("/api/v1/run" + (f"?at={at}" if at else ""))["goodput"]
    return found


@pytest.mark.parametrize("lives", [True, False])
def test_the_goodput_is_that_until_now_if_the_run_lives(tmp_path: Path, lives: bool) -> None:
    """The log ends in an open step, two hours ago."""
    WatchedLog(tmp_path).grow_older(7200)
    with (tmp_path / "lock").open("w") as lock:
        if lives:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as the coordinator of a run that lives holds it
        with dashboard(tmp_path) as shown:
            run = shown.wait("/api/v1/run", lambda run: not run["warnings"] and run["live"] == lives)
            first, last = (goodput(shown, run["last_at"] + later) for later in (0, 7000))
            told = shown.ask("/metrics").body.decode()
            assert first["60"] and first["60"] > 0.3
            if lives:
                assert goodput(shown)["60"] == last["60"] == 0 and 'swarm_peer_goodput{window="60"} 0.0' in told
            else:
                assert goodput(shown) == last == first and 'swarm_peer_goodput{window="60"} 0.0' not in told


def test_the_goodput_falls_though_nothing_is_logged(tmp_path: Path) -> None:
    WatchedLog(tmp_path)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with dashboard(tmp_path) as shown:
            before = shown.wait("/api/v1/run", lambda run: not run["warnings"] and run["live"])
            after = shown.wait("/api/v1/run", lambda run: run["goodput"]["60"] < before["goodput"]["60"] - 0.05)
            assert after["last_at"] == before["last_at"]


def test_nothing_else_is_served(shown: Dashboard) -> None:
    for path in ("/static/../process.py", "/static/%2e%2e/process.py", "/static//etc/passwd", "/api/v1/x", "/x.py"):
        assert shown.ask(path).status == 404
    assert shown.ask("/api/v1/run", "PUT").status == 405
