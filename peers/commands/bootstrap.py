"""`swarm-peer bootstrap`: a DHT node through which other nodes join the network."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from peers.options import Announce, Home, Json
from peers.run.home import BOOTSTRAP_HOME

if TYPE_CHECKING:
    from swarm.net.callers import Flood


def command(
    home: Home = BOOTSTRAP_HOME,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="TCP port to listen on. 0: the port of the last start.")
    ] = 0,
    announce: Announce = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="INVITE",
            help="Serve the members of this run only, and check their records. INVITE may be @FILE or -. "
            "Default: serve everybody.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a bare DHT node with a lasting address, by which coordinators and peers enter (--bootstrap)."""
    from peers.run.home import Home as HomeFolder
    from peers.run.invite_text import read_invite
    from peers.runtime.bootstrap import serve
    from peers.runtime.core_loop import exit_code
    from swarm.events import FloodNoticed
    from swarm.net.listening import listen_on

    invite = None if run is None else read_invite(run)
    if invite is not None and invite.key is None:
        raise typer.BadParameter("an address is not an invite: give the line that `coordinate` or `invite` printed")
    console = Console(highlight=False)

    def show(addresses: list[str]) -> None:
        if as_json:
            print(json.dumps({"addresses": addresses}), flush=True)
            return
        console.print("others join through this node with\n", soft_wrap=True)
        for address in addresses:
            console.print(f"--bootstrap {address}", style="bold", soft_wrap=True)

    def warn(flood: Flood, blocked_s: float, why_not: str) -> None:
        noticed = FloodNoticed(str(flood.block), flood.connections, flood.seconds, blocked_s, why_not)
        print(noticed.sentence(), file=sys.stderr, flush=True)

    with HomeFolder.open(home) as opened:
        key = None if invite is None else invite.key
        raise typer.Exit(exit_code(serve(opened, listen_on(port), tuple(announce or ()), key, show, warn)))
