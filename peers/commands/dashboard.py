"""`swarm-peer dashboard`: a run in the browser, live or afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from peers.options import Json


def command(
    homes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="HOME...",
            envvar="SWARM_PEER_HOME",
            help="Homes of one run, running, finished or copied; the first is the organiser's. Default: the home of "
            "this user with the latest activity.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS:PORT",
            help="Where to serve it. Default: 127.0.0.1:7070, or the next free port. Beyond loopback "
            "reading needs a token too.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name of this server, for example of a proxy; repeatable."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Let everyone read it, without addresses. Control needs the token.")
    ] = False,
    database: Annotated[
        Path | None,
        typer.Option("--database", help="File for its history; it can be deleted. Default: dashboard.sqlite in HOME."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the organiser's token. Default: in HOME.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="Write the figures of steps for TensorBoard.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    companion: Annotated[bool, typer.Option("--companion", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Show a run in the browser: live, replayed, or after its end. Ends with Ctrl-C, without effect on the run."""
    from peers.dashboard.place import Place
    from peers.dashboard.process import Addresses, DashboardOptions, serve
    from peers.run.home import logged_home

    if companion:
        os.nice(10)
    found = tuple(homes) if homes else (logged_home(None).path,)
    for home in found:
        if not home.is_dir():
            raise typer.BadParameter(
                f"{home} is not a folder: name the home of a coordinator or peer", param_hint="HOME"
            )

    def ready(addresses: Addresses) -> None:
        if as_json:
            print(
                json.dumps({"address": addresses.plain, "organiser": addresses.organiser, "reader": addresses.reader}),
                flush=True,
            )
            return
        print(f"dashboard: {addresses.organiser}", flush=True)
        if addresses.reader is not None:
            print(f"to read only: {addresses.reader}", flush=True)
        if public:
            print(f"for everybody: {addresses.plain}", flush=True)
        if open_browser:
            import webbrowser

            webbrowser.open(addresses.organiser)

    serve(
        DashboardOptions(
            homes=found,
            place=Place() if address is None else Place.parse(address),
            database=database,
            token_file=token_file,
            public=public,
            hosts=tuple(host or ()),
            tensorboard=tensorboard,
            ends_with_parent=companion,
        ),
        ready,
    )
