"""Commands that were written down, and not told of, before a coordinator died."""

from __future__ import annotations

import json
from pathlib import Path

from peers.coordinator.untold import untold
from swarm.events import ControlGiven, EventLog, PeerRefused
from swarm.protocol.messages import Command

COMMANDS = [Command(number, "rate", f"0.{number}", "Ann", "", f"r{number}") for number in range(1, 5)]


def _told(path: Path, *numbers: int) -> Path:
    log = EventLog(path, lambda: 1.0)
    for number in numbers:
        log.append(PeerRefused("x", 'no "kind":"ControlGiven","number":3', 1))
        log.append(ControlGiven(number, "rate", f"0.{number}", "Ann", ""))
    log.close()
    return path


def test_those_are_missing_that_no_log_tells_of(tmp_path: Path) -> None:
    own, other = _told(tmp_path / "events.jsonl", 1), _told(tmp_path / "mirror.jsonl", 2)
    assert untold(COMMANDS, (own, other)) == COMMANDS[2:]
    assert untold(COMMANDS, (own,)) == COMMANDS[1:]
    assert untold(COMMANDS, (_told(own, 2, 3, 4), other)) == []
    assert untold([], (own,)) == []


def test_logs_may_be_missing_empty_or_torn(tmp_path: Path) -> None:
    empty, torn = tmp_path / "empty.jsonl", _told(tmp_path / "torn.jsonl", 1)
    empty.touch()
    whole = torn.read_bytes()
    line = json.dumps({"at": 2.0, "kind": "ControlGiven", "number": 2}, separators=(",", ":"))
    torn.write_bytes(whole + line[:-1].encode())
    assert untold(COMMANDS, (empty, torn, tmp_path / "none.jsonl")) == COMMANDS[1:]
    torn.write_bytes(whole + b'{"at":2.0,"kind":"ControlGiven","number":[]}\n' + line.encode() + b"\n")
    assert untold(COMMANDS, (torn,)) == COMMANDS[2:]
