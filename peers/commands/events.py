"""`swarm-peer events`: shows an event log, whole or as it grows."""

from __future__ import annotations

import difflib
import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from peers.options import Json
from peers.run.home import logged_home
from swarm.events import Event, LogTail, from_record, parts_of

_POLL_S = 0.1


def command(
    log: Annotated[
        Path | None,
        typer.Argument(
            metavar="LOG|HOME",
            envvar="SWARM_PEER_HOME",
            help="An event log, or the home that contains it. Default: the home of this user with the latest activity.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they come, until Ctrl-C.")
    ] = False,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", "-k", help="Show this kind of event only; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read or follow an event log: one line for each event, with its time and reason."""
    path = logged_home(log).events if log is None or log.is_dir() else log
    kinds = frozenset(kind or ())
    _check_kinds(kinds)
    lines = events = 0
    for line in _lines(path, follow):
        record = _record(line)
        lines += 1
        events += record is not None and "kind" in record
        if record is None or (kinds and record.get("kind") not in kinds):
            continue
        if as_json:
            sys.stdout.write(line.decode("utf-8", errors="replace"))
            sys.stdout.flush()
        elif (sentence := _sentence(record)) is not None:
            print(sentence, flush=True)
    if lines and not events:
        raise typer.BadParameter(f"{path} is not an event log: name an events.jsonl, or the home that contains it")


def _check_kinds(kinds: frozenset[str]) -> None:
    known = {cls.__name__ for cls in Event.__subclasses__()}
    for name in kinds - known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise typer.BadParameter(f"--kind {name}: no such kind of event; the nearest one is {near}")


def _lines(path: Path, follow: bool) -> Iterator[bytes]:
    """The whole lines of all parts of the log. A torn last line is read again each time, because a restarted writer
    replaces it.
    """
    if not path.exists() and not parts_of(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    tail = LogTail(path)
    while True:
        yield from tail.lines()
        if not follow:
            return
        time.sleep(_POLL_S)


def _sentence(record: dict[str, Any]) -> str | None:
    """The line to print. None: the record is damaged or of another release. A copied log is not trusted."""
    event = from_record(record)
    if event is None:
        return None
    try:
        at = float(record.get("at", 0.0))
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        return f"{clock}.{int(at % 1 * 1000):03d}  {event.kind:<21} {event.describe()}"
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, OSError):
        return None


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
