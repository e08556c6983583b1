"""Every number of the views, worked out again from the log by a few lines of their own."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generated_log import Shape, write_log
from peers.dashboard.history.history import History
from peers.fold import RunFacts, RunState, views

FACTS = RunFacts("made up", 500, 12, 24_576, (2, 3, 1), ("int8", "int4"), 2 * 2048 * 64 * 4)
SHAPE = Shape(peers=9, stages=3, hours=0.1, step_seconds=10, kills_per_hour=120, spans=True, seed=11)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_log(home / "events.jsonl", SHAPE)
    return home / "events.jsonl"


@pytest.fixture(scope="module")
def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.open()]


@pytest.fixture(scope="module")
def history(log: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    history = History([log.parent], tmp_path_factory.mktemp("db") / "history.sqlite")
    while history.follow():
        pass
    return history


@pytest.fixture
def state(history: History) -> RunState:
    return history.now


def of(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def test_steps_tokens_and_loss(state: RunState, lines: list[dict[str, Any]]):
    run = views.run_view(state, FACTS)
    decided = of(lines, "StepDecided")
    assert run["step"] == decided[-1]["step"] == len(decided) - 1
    assert run["tokens"] == sum(line["tokens"] for line in decided)
    assert (run["loss"], run["gradient_norm"]) == (decided[-1]["loss"], decided[-1]["gradient_norm"])
    assert run["tokens_per_second"] == of(lines, "StepMeasured")[-1]["tokens_per_second"]
    assert run["heldout"]["loss"] == of(lines, "Evaluated")[-1]["loss"]
    assert run["archived"] == of(lines, "CheckpointArchived")[-1]["version"]
    assert (run["first_at"], run["last_at"]) == (lines[0]["at"], max(line["at"] for line in lines))
    gaps = sorted(b["at"] - a["at"] for a, b in zip(decided[-16:], decided[-15:], strict=False))
    median = gaps[len(gaps) // 2]
    assert run["eta_s"] == pytest.approx(median * (500 - len(decided)), rel=1e-9)


def test_members(state: RunState, lines: list[dict[str, Any]]):
    here: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "PeerJoined":
            here[line["actor"]] = line["stage"]
        elif line["kind"] == "PeerLost":
            del here[line["actor"]]
    run, table = views.run_view(state, FACTS), views.peers_view(state, FACTS)
    assert run["peers"] == len(here) and run["standby"] == 0
    assert {p["actor"]: p["stage"] for p in table["peers"] if p["left_at"] is None} == here
    pipeline = views.pipeline_view(state, FACTS)
    assert [{c["actor"] for c in s["cells"]} for s in pipeline["stages"]] == [
        {actor for actor, stage in here.items() if stage == index} for index in range(3)
    ]


def test_rates_ideal_and_goodput(state: RunState, lines: list[dict[str, Any]]):
    """Tokens done by the tokens that the slowest stage could have done, second by second. The log ends in a step."""
    rates: dict[int, list[float]] = {}
    possible = done = 0.0
    since: float | None = None
    mb_tokens = 2048
    progress: list[list[int]] = []
    for line in lines:
        if line["kind"] in ("TableChanged", "StepDecided", "StateChanged") and since is not None:
            possible += min(map(sum, rates.values())) * mb_tokens * (line["at"] - since)
            since = line["at"]
        if line["kind"] == "TableChanged":
            rates[line["stage"]] = line["rates"]
        if line["kind"] == "StepDecided":
            done += line["tokens"] if since is not None and possible > 0 else 0
            since = since or line["at"]
        if line["kind"] in ("PassProgress", "PassOpened", "StepDecided"):
            progress = line["stages"] if line["kind"] == "PassProgress" else []
    assert since is not None and progress
    possible += min(map(sum, rates.values())) * mb_tokens * (lines[-1]["at"] - since)
    done += sum((added + sent) * mb_tokens / 2 for added, sent, _ in progress) / len(progress)
    run = views.run_view(state, FACTS)
    assert run["ideal_tokens_per_second"] == pytest.approx(min(map(sum, rates.values())) * mb_tokens)
    assert run["goodput"]["all"] == pytest.approx(done / possible)
    assert 0 < run["goodput"]["60"] < 1.2 and 0 < run["goodput"]["3600"] < 1.2


def test_bytes(state: RunState, lines: list[dict[str, Any]]):
    by_kind: Counter[str] = Counter()
    pairs: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for line in of(lines, "PeerWorked"):
        for link in line["links"]:
            by_kind.update(link["sent"])
            pairs[line["actor"], link["other"]].update(link["sent"])
    told = views.run_view(state, FACTS)["bytes"]
    assert {kind: n for kind, n in told["by_kind"].items() if n} == dict(by_kind)
    assert told["sent"] == sum(by_kind.values())
    steps = len(of(lines, "StepDecided"))
    assert told["fp32"] == steps * 12 * 2 * 2 * 2048 * 64 * 4
    assert told["saved"] == pytest.approx(told["fp32"] / (by_kind["forward"] + by_kind["backward"]))
    shown = views.links_view(state)["pairs"]
    here = state.members.here
    expected = {pair: dict(sent) for pair, sent in pairs.items() if pair[0] in here and pair[1] in here}
    assert {(p["from"], p["to"]): p["bytes"] for p in shown if p["to"] in here} == expected


def test_who_has_left_is_marked_among_the_links(history: History, lines: list[dict[str, Any]]):
    marked = set()
    for lost in of(lines, "PeerLost"):
        named = views.links_view(history.at(lost["at"]))["actors"]
        told = (*of(lines, "PeerLost"), *of(lines, "PeerGone"))
        left = {line["actor"] for line in told if line["at"] <= lost["at"]}
        gone = {actor["actor"] for actor in named if actor["gone"]}
        assert gone == {actor["actor"] for actor in named} & left
        marked |= gone
    assert marked, "somebody who had links was killed"


def test_contributions(state: RunState, lines: list[dict[str, Any]]):
    rosters: dict[int, list[str]] = {}
    given: Counter[str] = Counter()
    since: dict[str, float] = {}
    hours: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    here: set[str] = set()
    for line in lines:
        match line["kind"]:
            case "TableChanged":
                rosters[line["stage"]] = line["roster"]
            case "StepDecided":
                for stage, assignment in enumerate(line["assignments"]):
                    for index in assignment:
                        peer = rosters[stage][index].split(".")[0]
                        given[peer] += line["tokens"] / len(assignment) * (2, 3, 1)[stage] / 6
            case "PeerSeen":
                since[line["actor"]] = line["at"]
                here.add(line["actor"])
            case "PeerLost":
                here.remove(line["actor"])
                hours[line["actor"].split(".")[0]] += line["at"] - since.pop(line["actor"])
            case "PeerWorked":
                for link in line["links"]:
                    if link["other"] in here:
                        received[link["other"].split(".")[0]] += sum(link["sent"].values())
                sent[line["actor"].split(".")[0]] += sum(sum(link["sent"].values()) for link in line["links"])
    for actor, at in since.items():
        hours[actor.split(".")[0]] += max(line["at"] for line in lines) - at
    people = views.people_view(state, FACTS)["people"]
    assert {p["peer"]: p["tokens_layers"] for p in people} == pytest.approx(dict(given))
    assert {p["peer"]: p["hours"] * 3600 for p in people} == pytest.approx(dict(hours))
    assert {p["peer"]: p["bytes_sent"] for p in people} == dict(sent)
    assert {p["peer"]: p["bytes_received"] for p in people if p["bytes_received"]} == dict(received)
    assert sum(p["share"] for p in people) == pytest.approx(1.0)
    assert sum(given.values()) == pytest.approx(sum(line["tokens"] for line in of(lines, "StepDecided")))


def test_faults_and_what_they_cost(state: RunState, lines: list[dict[str, Any]]):
    costed, fenced = of(lines, "FaultCosted"), of(lines, "PeerFenced")
    shown = views.faults_view(state)
    assert len(fenced) > 3
    assert shown["total"] == len(fenced) == views.run_view(state)["faults"]
    assert shown["lost"]["tokens"] == sum(line["tokens"] for line in costed)
    assert shown["lost"]["seconds"] == pytest.approx(sum(line["seconds"] for line in costed))
    decided = {line["step"]: line["at"] for line in of(lines, "StepDecided")}
    told = {f["actor"]: f for f in shown["faults"]}
    for cost, fence in zip(costed, fenced, strict=True):
        fault = told[fence["actor"]]
        assert (fault["step"], fault["seconds"], fault["tokens"]) == (cost["step"], cost["seconds"], cost["tokens"])
        assert (fault["microbatches"], fault["finished"]) == (cost["microbatches"], len(fence["finished"]))
        assert (fault["reason"], fault["recovered_at"]) == (fence["reason"], decided[cost["step"]])


def test_series_marks_and_the_timeline(history: History, lines: list[dict[str, Any]]):
    first, last = history.span
    decided, measured = of(lines, "StepDecided"), of(lines, "StepMeasured")
    loss = history.series("loss", first, last, 4000)
    assert loss["t"] == [line["at"] for line in decided] and loss["last"] == [line["loss"] for line in decided]
    few = history.series("step_seconds", first, last, 3)
    thirds: list[list[float]] = [[], [], []]
    for line in measured:
        thirds[min(2, int(3 * (line["at"] - first) / (last - first)))].append(line["seconds"])
    assert few["min"] == [min(third) for third in thirds] and few["max"] == [max(third) for third in thirds]
    assert few["last"] == [third[-1] for third in thirds]
    heldout = history.series("heldout_loss", first, last, 100)
    assert heldout["last"] == [line["loss"] for line in of(lines, "Evaluated")]
    marks = Counter(mark["kind"] for mark in history.marks(first, last, 400))
    assert marks["fault"] == len(of(lines, "PeerFenced")) and marks["evaluation"] == len(of(lines, "Evaluated"))
    step = decided[-1]["step"]
    told = {w["actor"]: w for w in of(lines, "PeerWorked") if w["pass_id"] == f"1:{step}"}
    rows = history.timeline(step, step)["rows"]
    assert {row["actor"] for row in rows} == set(told)
    for row in rows:
        assert row["steps"][0]["sums"] == told[row["actor"]]["seconds"]
        drawn = [[kind, m, round(1000 * s), round(1000 * n)] for kind, m, s, n in row["steps"][0]["spans"]]
        assert drawn == told[row["actor"]]["spans"]


def test_log_lines(history: History, lines: list[dict[str, Any]]):
    shown = history.lines(kinds=["PeerLost"], limit=200)["lines"]
    assert [line["at"] for line in shown] == [line["at"] for line in reversed(of(lines, "PeerLost"))]
    assert all(line["severity"] == "warning" and "its connection broke" in line["text"] for line in shown)
    actor = shown[0]["actor"]
    mine = [line for line in lines if line.get("actor") == actor and line["kind"] != "PeerWorked"]
    assert len(history.lines(actor=actor.split(".")[0], limit=200)["lines"]) >= len(mine) > 0
    first = history.lines(limit=5)
    second = history.lines(limit=5, before=first["next"])
    assert max(line["at"] for line in second["lines"]) < min(line["at"] for line in first["lines"])
