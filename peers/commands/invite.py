"""`swarm-peer invite`: makes a pass for a person, and prints the line with which that person joins."""

from __future__ import annotations

import enum
import json
import re
from typing import Annotated

import typer

from peers.options import Home, Json
from peers.run.home import COORDINATOR_HOME

_DEFAULT_S = 30 * 86_400
_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


class PassRole(enum.StrEnum):
    PEER = "peer"
    OBSERVE = "observe"


def parse_duration(text: str) -> int:
    """Seconds of `12h`, `30d` or `8w`. Raises typer.BadParameter."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration: write 12h, 30d or 8w")
    return int(match[1]) * _UNITS[match[2]]


def command(
    name: Annotated[
        str, typer.Option("--name", help="Name of the person who gets the pass; `revoke` takes this name.")
    ],
    devices: Annotated[int, typer.Option("--devices", min=1, max=100_000, help="How many devices may join.")] = 1,
    expires: Annotated[
        int | None,
        typer.Option(
            "--expires",
            parser=parse_duration,
            metavar="TIME",
            help="How long the pass is valid: 12h, 30d, 8w. Its devices cannot connect afterwards. Default: 30d.",
        ),
    ] = None,
    role: Annotated[
        PassRole,
        typer.Option(
            "--role",
            help="peer: its devices join and compute. observe: they only see the run, with `swarm-peer dashboard`.",
        ),
    ] = PassRole.PEER,
    home: Home = COORDINATOR_HOME,
    as_json: Json = False,
) -> None:
    """Make a pass, and print the line that its owner uses. The coordinator need not be running, and need not be told.

    A device is a home of `swarm-peer join` or of an observer. Each further seat of a machine counts as a device too.
    """
    import time

    from peers.coordinator.invites import invite_of, line_of, role_of

    observes = role is PassRole.OBSERVE
    token, given = invite_of(home, name, devices, int(time.time()) + (expires or _DEFAULT_S), observes=observes)
    if as_json:
        facts = {"name": given.name, "role": role_of(given), "devices": given.devices, "expires_at": given.expires_at}
        print(json.dumps({"invite": token, "line": line_of(token, given), **facts}))
        return
    print(line_of(token, given))
