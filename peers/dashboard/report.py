"""Writes a run as one HTML file that contains the pages of the dashboard and the final answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.dashboard.access import Denied
from peers.dashboard.assets import FOLDER
from peers.dashboard.body import to_json, without_addresses
from peers.dashboard.bundle import bundle
from peers.dashboard.history.history import History
from peers.dashboard.query import MOST_LISTED, Query
from peers.dashboard.topics import MOST_STEPS, Topics
from peers.run.home import HomeError
from swarm.private_folder import PrivateFolder

SERIES = (
    "loss",
    "heldout_loss",
    "gradient_norm",
    "tokens_per_second",
    "ideal_tokens_per_second",
    "goodput",
    "step_seconds",
    "efficiency",
    "peers",
    "bytes_per_s",
)
_API = "/api/v1/"
_POINTS = 1_000
_PEER_PAGES = 200
_LINES = 200


def report(homes: Sequence[Path], *, public: bool) -> str:
    """The HTML text. `public`: without addresses. Raises HomeError if no event can be read, and the errors of a
    History.
    """
    with PrivateFolder("swarm-report-") as folder:
        history = History(list(homes), folder.path / "history.sqlite")
        try:
            while history.follow():
                pass
            if not history.now.events:
                logs = " or ".join(str(home / "events.jsonl") for home in homes)
                raise HomeError(
                    f"no event in {logs} can be read: name the home of a coordinator or peer that has run, or restore "
                    "its log from a copy"
                )
            answers = _answers(history, Topics(homes))
        finally:
            history.close()
    if public:  # before `_API` precedes the names, because it would make paths of them
        answers = json.loads(without_addresses(to_json(answers)))
    return bundle(FOLDER, {f"{_API}{name}": answer for name, answer in answers.items()})


def _answers(history: History, topics: Topics) -> dict[str, Any]:
    """The answers by what the pages ask for, without `_API`."""
    whole = Query(limit=MOST_LISTED)
    named = topics.by_name()
    found = {name: named[name](history, whole) for name in _WHOLE}
    found["run"] |= {"live": False, "control": False}
    found["timeline"] = topics.timeline(history, _steps_of_interest(found["faults"]))
    found["log"] = topics.log(history, Query(limit=_LINES))
    found["session"] = {"access": "public", "token_needed": False, "public": True}
    for name in SERIES:
        found[f"series?name={name}"] = topics.series(history, Query(name=name, points=_POINTS))
    for peer in found["peers"]["peers"][:_PEER_PAGES]:
        try:
            found[f"peers/{peer['actor']}"] = topics.peer(history, Query(actor=peer["actor"]))
        except Denied:
            continue
    return found


_WHOLE = ("run", "pipeline", "peers", "links", "faults", "people", "checkpoints", "samples")


def _steps_of_interest(faults: dict[str, Any]) -> Query:
    """The steps around the most costly fault; if there was no fault, the last steps."""
    costly = [fault for fault in faults["faults"] if fault["step"] is not None and fault["seconds"]]
    if not costly:
        return Query(limit=MOST_LISTED)
    step = max(costly, key=lambda fault: fault["seconds"])["step"]
    first = max(0, step - MOST_STEPS // 4)
    return Query(limit=MOST_LISTED, first=first, last=first + MOST_STEPS - 1)
