"""`swarm-peer dashboard`: shows a run in the browser, live or afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from peers.options import Json, is_invite


def command(
    homes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="HOME...|INVITE",
            envvar="SWARM_PEER_HOME",
            help="Homes of one run: of running or ended processes, or copies. Name the organiser's first. Or an "
            "observer's "
            "invite, from `swarm-peer invite --role observe`: its text, @FILE, or - for standard input. Default: the "
            "home of this user with the latest activity.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS:PORT",
            help="Where to serve it. Default: 127.0.0.1:7070, or the next free port. At any address "
            "but loopback, reading needs a token too.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="Another host name of this server, such as a proxy's; may be repeated."
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Everyone may read, but sees no addresses. Control needs the token.")
    ] = False,
    database: Annotated[
        Path | None,
        typer.Option("--database", help="File for its history; it can be deleted. Default: dashboard.sqlite in HOME."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the organiser's token. Default: in HOME.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            metavar="DIR",
            help="Folder in which to write loss, speed and other figures of each step for TensorBoard.",
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    keep_in: Annotated[
        Path | None,
        typer.Option(
            "--home", help="With an invite: where this machine's key and copies are kept. Default: a folder per run."
        ),
    ] = None,
    companion: Annotated[bool, typer.Option("--companion", hidden=True)] = False,
    observed: Annotated[bool, typer.Option("--observed", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Show a run in the browser: live, replayed, or after its end. Ends with Ctrl-C, without effect on the run."""
    from peers.dashboard.place import Place, server_name
    from peers.dashboard.process import Addresses, DashboardOptions, serve
    from peers.run.home import logged_home

    if companion:
        os.nice(10)
    names = [server_name(name) for name in host or ()]
    if homes and is_invite(str(homes[0])):
        if len(homes) > 1:
            raise typer.BadParameter("give one invite, without homes", param_hint="INVITE")
        words = _words(address, names, public, database, token_file, tensorboard)
        _observe(str(homes[0]), keep_in, words, open_browser, as_json)
    if keep_in is not None:
        raise typer.BadParameter(
            "it has an effect only with an invite: leave it out when you name homes", param_hint="--home"
        )
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
        print(f"dashboard: {addresses.organiser or addresses.reader or addresses.plain}", flush=True)
        if addresses.reader is not None:
            print(f"for reading only: {addresses.reader}", flush=True)
        if public:
            print(f"for everybody: {addresses.plain}", flush=True)
        if open_browser:
            import webbrowser

            webbrowser.open(addresses.organiser or addresses.reader or addresses.plain)

    serve(
        DashboardOptions(
            homes=found,
            place=Place() if address is None else Place.parse(address),
            database=database,
            token_file=token_file,
            public=public,
            hosts=tuple(names),
            tensorboard=tensorboard,
            observed=observed,
            ends_with_parent=companion,
        ),
        ready,
    )


def _words(
    address: str | None,
    names: list[str],
    public: bool,
    database: Path | None,
    token_file: Path | None,
    tensorboard: Path | None,
) -> list[str]:
    """The options for the dashboard process that shows the copies."""
    valued: list[tuple[str, object]] = [("--address", address), *(("--host", name) for name in names)]
    valued += [("--database", database), ("--token-file", token_file), ("--tensorboard", tensorboard)]
    given = [word for name, value in valued if value is not None for word in (name, str(value))]
    return [*given, *(["--public"] if public else []), "--observed"]


def _observe(text: str, keep_in: Path | None, words: list[str], open_browser: bool, as_json: bool) -> NoReturn:
    """Copy the coordinators' logs as they grow, while a second process shows them."""
    from peers.dashboard.companion import Companion
    from peers.observer.errands import run
    from peers.observer.process import observe
    from peers.observer.visit import home_of
    from peers.run.home import Home
    from peers.run.invite_text import read_invite

    invite = read_invite(text)

    def tell(text: str) -> None:
        shown = text.removeprefix("dashboard: ")
        print(json.dumps({"address": shown}) if as_json else text, flush=True)
        if open_browser and shown != text:
            import webbrowser

            webbrowser.open(shown)

    with Home.open(home_of(invite, keep_in)) as home, Companion([str(home.path), *words], tell):
        run(observe(invite, home))
    raise typer.Exit
