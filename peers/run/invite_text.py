"""The invite as a person gives it: the token itself, a file with it (`@FILE`), or standard input (`-`).

A pass on the command line can be read by every user of the machine, as by `ps`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from swarm.net.invite import Invite, parse

_LONGEST = 64 << 10


def read_invite(text: str) -> Invite:
    """Raises InviteError, OSError."""
    if text == "-":
        return parse(sys.stdin.read(_LONGEST))
    if text.startswith("@"):
        path = Path(text[1:])
        with path.open(encoding="utf-8", errors="replace") as file:
            return parse(file.read(_LONGEST))
    return parse(text)
