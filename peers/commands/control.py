"""`swarm-peer control`: give commands to a run that is coordinated on this machine."""

from __future__ import annotations

import getpass
import json
import os
from typing import Annotated

import typer

from peers.options import Home, Json
from peers.run.home import COORDINATOR_HOME


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND",
            help="pause, resume, expel PEER, dismiss PEER (it leaves cleanly), checkpoint, stop_after STEP, steps N, "
            "rate X, or status.",
        ),
    ],
    value: Annotated[
        str, typer.Argument(metavar="[VALUE]", help="The value of the command: a peer, a number of steps, or a rate.")
    ] = "",
    home: Home = COORDINATOR_HOME,
    why: Annotated[str, typer.Option("--why", help="Your reason; it is recorded and shown.")] = "",
    by: Annotated[str, typer.Option("--by", help="Your name; default: your user name.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for an answer.")] = 45.0,
    as_json: Json = False,
) -> None:
    """Control a run: pause it, send a peer away, save it now, move its end, change its learning rate.

    Each command is in the decision record, with its author and reason, before it takes effect. `steps` and `stop_after`
    leave the learning rate's schedule unchanged; `rate` multiplies it, from the next step that opens. Exit code 2: the
    command is not in force, and the line says why.
    """
    from peers.runtime.control_client import send
    from swarm.events.wording import printable

    reply = send(home, name.replace("-", "_"), value, by or user_name(), why, timeout)
    if as_json:
        shown = {"ok": True, "number": reply.number, "text": reply.text}
        print(json.dumps(shown | ({"state": reply.state} if reply.state else {})))
    elif reply.number:
        print(printable(f"command {reply.number}: {reply.text}"))
    else:
        print(printable(reply.text))


def user_name() -> str:
    """The default author of a command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"
