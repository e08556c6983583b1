"""The names in a home, by kind: one that is a folder instead of a file, or a file instead of a folder, would fail only
when it is needed, perhaps days after the start.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDERS = ("archive", "checkpoints", "exports", "incoming", "lent", "mirrors", "passes", "retention", "seats")
FILES = (
    "bans.json",
    "certificate",
    "control.path",
    "dashboard.sqlite",
    "dashboard.token",
    "decisions.sqlite",
    "events.jsonl",
    "identity.key",
    "incarnation",
    "invite",
    "join-token",
    "lock",
    "manifest.signed",
    "means.json",
    "metrics.jsonl",
    "neighbours.json",
    "observing",
    "organiser.key",
    "peers.json",
    "port",
    "superseded",
)


def wrong_kind(home: Path) -> str:
    """Name the first entry of `home` of the wrong kind, and say what to do; empty if there is none.

    A link counts as what it leads to; a folder must exist there.
    """
    for name in FOLDERS:
        path = home / name
        if os.path.lexists(path) and not path.is_dir():
            what = "a broken link" if path.is_symlink() and not path.exists() else "a file"
            return f"{path} is {what}, but must be a folder: move it away, and it is made anew"
    for name in FILES:
        path = home / name
        if path.is_dir():
            return f"{path} is a folder, but must be a file: move it away, or restore the file from a backup"
    return ""
