"""The invite as a person gives it: the token itself, a file that contains it (`@FILE`), or standard input (`-`).

Every user of the machine can read a pass that is given on the command line, for example with `ps`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from swarm.net.invite import Invite, InviteError, parse

_LONGEST = 64 << 10


def read_invite(text: str) -> Invite:
    """Read an invite. Raises InviteError, also for a file that is missing or a folder, and OSError."""
    if text == "-":
        return parse(sys.stdin.read(_LONGEST))
    if text.startswith("@"):
        path = Path(text[1:])
        if not text[1:] or path.is_dir():
            raise InviteError(f"{text!r} names no file: write @ and the path of the file that contains the invite")
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                return parse(file.read(_LONGEST))
        except FileNotFoundError:
            raise InviteError(f"no invite file {path}: save the invite there, or give its text without @") from None
    return parse(text)
