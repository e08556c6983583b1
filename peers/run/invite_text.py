"""The invite as a person gives it: the token itself, a file that contains it (`@FILE`), or standard input (`-`).

Every user of the machine can read a pass that is given on the command line, for example with `ps`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from swarm.net.invite import Invite, parse

_LONGEST = 64 << 10


def read_invite(text: str) -> Invite:
    """Read an invite. Raises InviteError, OSError."""
    if text == "-":
        return parse(sys.stdin.read(_LONGEST))
    if text.startswith("@"):
        path = Path(text[1:])
        with path.open(encoding="utf-8", errors="replace") as file:
            return parse(file.read(_LONGEST))
    return parse(text)
