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
        try:
            return _parsed(sys.stdin.read(_LONGEST), "standard input")
        except UnicodeDecodeError:
            raise InviteError("standard input is not text: it must be the invite alone") from None
    if text.startswith("@"):
        path = Path(text[1:])
        if not text[1:] or path.is_dir():
            raise InviteError(f"{text!r} names no file: write @ and the path of the file that contains the invite")
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                return _parsed(file.read(_LONGEST), str(path))
        except FileNotFoundError:
            raise InviteError(f"no invite file {path}: save the invite there, or give its text without @") from None
    return parse(text)


def _parsed(text: str, source: str) -> Invite:
    try:
        return parse(text)
    except InviteError as error:
        raise InviteError(
            f"{source}: {error}" if text.strip() else f"{source} is empty: it must contain the invite"
        ) from None
