"""`swarm-peer revoke`: makes a pass invalid, and makes its devices leave the run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from peers.commands.control import user_name
from peers.options import Home, Json
from peers.run.home import COORDINATOR_HOME


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pass, as `swarm-peer invites` lists it.")],
    home: Home = COORDINATOR_HOME,
    why: Annotated[str, typer.Option("--why", help="Your reason; it is recorded and shown.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for an answer.")] = 45.0,
    as_json: Json = False,
) -> None:
    """Revoke a pass: nobody can join with it any more, and within seconds all peers disconnect the devices that have.

    The coordinator must be running. The decision record keeps the revocation, so it also holds after restarts.
    """
    from peers.coordinator.invites import book_of
    from peers.runtime.control_client import send
    from swarm.events.wording import printable

    serial = book_of(home).find(name).given.serial.hex()
    reply = send(home, "revoke", serial, user_name(), why, timeout)
    print(json.dumps({"ok": True, "number": reply.number, "text": reply.text}) if as_json else printable(reply.text))
