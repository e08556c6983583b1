"""A process with several seats is one dashboard: the logs of all its seats are read, also of those taken later."""

from __future__ import annotations

import json
from pathlib import Path

from served_dashboard import dashboard


def _log(home: Path, actor: str) -> None:
    home.mkdir(parents=True)
    started = {"at": 1_790_000_000.0, "kind": "ProcessStarted", "role": "peer", "actor": actor, "run": "r" * 64}
    joined = {"at": 1_790_000_001.0, "kind": "PeerJoined", "actor": actor, "stage": 0, "reason": "asked"}
    lines = (started | {"version": "0.1.0"}, joined)
    (home / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_all_seats_are_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    _log(home, "first.1")
    with dashboard(home) as shown:
        shown.wait("/api/v1/log", lambda log: any("first.1" in line["source"] for line in log["lines"]))
        _log(home / "seats" / "2", "second.1")
        shown.wait("/api/v1/log", lambda log: any("second.1" in line["source"] for line in log["lines"]))
        assert shown.get("/api/v1/run")["actor"] == "first.1"
