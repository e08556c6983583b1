"""Finds commands of the decision record that no event log reports.

A command takes effect when it is in the record. The log is written later, so a coordinator that is killed in between
has not logged the command, and logs it when it starts again. Otherwise a reader of the log alone (the dashboard, a
replay) would see the effect of the command without its reason.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

from swarm.events import ControlGiven
from swarm.protocol.messages import Command

_MARK = f'"kind":"{ControlGiven.__name__}"'.encode()
"""The form of the kind in a log. In a text from a peer, the quotes would be escaped."""


def untold(commands: Sequence[Command], logs: Iterable[Path]) -> list[Command]:
    """The commands that no log contains, in order. Reads raw logs, including torn lines. Raises OSError."""
    if not commands:
        return []
    told = {number for path in logs for number in _numbers(path)}
    return [command for command in commands if command.number not in told]


def _numbers(path: Path) -> set[int]:
    """The numbers of the commands that a log reports. A log may have gigabytes, so it is searched without copying
    lines.
    """
    found: set[int] = set()
    if not path.exists() or not path.stat().st_size:
        return found
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        at = log.find(_MARK)
        while at >= 0:
            start, end = log.rfind(b"\n", 0, at) + 1, log.find(b"\n", at)
            try:
                record = json.loads(log[start : end if end >= 0 else len(log)])
                found.add(int(record["number"]))
            except (ValueError, TypeError, KeyError):
                pass  # an incomplete line, or no event
            at = log.find(_MARK, at + 1)
    return found
