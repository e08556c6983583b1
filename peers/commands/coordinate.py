"""`swarm-peer coordinate`: host a run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from peers.options import Announce, Bootstrap, Dashboard, Json, MaxRate, Set, TensorBoard, check_replaced, parse_line
from peers.options import Home as HomeOption
from peers.run.forecast import Line
from peers.run.home import COORDINATOR_HOME
from swarm.manifest import RunManifest
from swarm.net.passes import Pass


def command(
    path: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run to host.")] = Path("RUN.toml"),
    home: HomeOption = COORDINATOR_HOME,
    overrides: Set = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="TCP port to listen on. 0: the port of the last start.")
    ] = 0,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", help="Multiaddress to listen on, instead of --port.")
    ] = None,
    announce: Announce = None,
    bootstrap: Bootstrap = None,
    max_rate: MaxRate = None,
    invite: Annotated[
        str | None,
        typer.Option(
            "--invite", help="Invite of another coordinator of the group, at the first start: docs/hosting.md."
        ),
    ] = None,
    devices: Annotated[
        int,
        typer.Option(
            "--devices",
            min=1,
            max=100_000,
            help="Number of devices that may join with the printed invite. `swarm-peer invite` makes further invites.",
        ),
    ] = 8,
    opened: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Let everybody in, instead of --devices. The printed invite never expires. Each device gets its own "
            "pass; the number of new passes per hour is limited. docs/trust.md describes the risks.",
        ),
    ] = False,
    invite_file: Annotated[
        Path | None, typer.Option("--invite-file", help="Also write the invite to this file, for programs.")
    ] = None,
    dashboard: Dashboard = None,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Serve no dashboard.")] = False,
    tensorboard: TensorBoard = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="For rehearsals: kill@EVENT:COUNT, see docs.", hidden=True)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved manifest, its hash and its cost; start nothing.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="CARD:COUNT,…",
            help="With --dry-run: estimate a step on these cards, such as rtx4090:4,rtx3060:8. `mine` is this "
            "processor.",
        ),
    ] = None,
    line: Annotated[
        Line | None,
        typer.Option(
            "--line",
            parser=parse_line,
            metavar="DOWN[/UP],DELAY",
            help="With --gpu: the internet line of each card, such as 80Mbit/20Mbit,50ms. Default: links cost no time.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Host a run: bootstrap node, feeder, decisions, event log and archive. Prints the line that peers join with.

    Start it again to resume. Exit codes: 0 finished, 2 something you can fix, 4 the run cannot continue, 130 Ctrl-C.
    """
    from peers.dashboard.place import Place
    from peers.run.resolved_run import resolve_run

    if no_dashboard and (dashboard or tensorboard):
        raise typer.BadParameter(
            "--dashboard and --tensorboard need the dashboard: leave this out", param_hint="--no-dashboard"
        )
    if gpu is not None and not dry_run:
        raise typer.BadParameter("it has an effect only with --dry-run", param_hint="--gpu")
    if line is not None and gpu is None:
        raise typer.BadParameter("also name the cards, with --gpu", param_hint="--line")
    if invite_file is not None:
        check_replaced(invite_file, b"swarm", "invite", "--invite-file")
    place = None if dashboard is None else Place.parse(dashboard)
    run = resolve_run(path, overrides or ())
    console = Console(highlight=False)
    if dry_run:
        _dry_run(run.manifest, console, as_json, gpu, line)
        return

    from peers.coordinator.options import CoordinateOptions
    from peers.coordinator.process import coordinate
    from peers.dashboard.companion import companion
    from peers.report.progress import Progress, print_json
    from peers.run.home import Home
    from peers.run.invite_text import read_invite
    from peers.runtime.core_loop import exit_code
    from peers.runtime.fault import Fault
    from swarm.atomic import atomic_file, write_whole
    from swarm.net.listening import listen_on

    def show_invite(invite: str, given: Pass, fingerprint: str) -> None:
        for path in (Home(home).join_token, *([invite_file] if invite_file is not None else [])):
            with atomic_file(path, private=True) as file:  # everybody who can read it can join
                write_whole(file, f"{invite}\n".encode())
        if not as_json:
            console.print(f"run {run.manifest.run.name} ({run.manifest.hash[:16]}…); peers join with\n", soft_wrap=True)
            console.print(f"swarm-peer join {invite}\n", soft_wrap=True, style="bold")
            who = "everybody" if given.open else f"{given.devices} devices"
            console.print(f"It lets {who} in. The run is signed by organiser {fingerprint}\n", soft_wrap=True)

    show = print_json if as_json else Progress(console, steps=run.manifest.run.steps, data=run.manifest.data)
    if not as_json and run.manifest.audit.every and (why := run.manifest.prevents_audits):
        console.print(
            f"Steps are not audited: with {why}, two peers may get different results for the same step. Instead, the "
            "coordinator compares the contributions of a stage's replicas with each other (docs/trust.md).",
            soft_wrap=True,
        )
    options = CoordinateOptions(
        corpus=run.corpus,
        initial=run.initial,
        listen=tuple(listen or listen_on(port)),
        announce=tuple(announce or ()),
        bootstrap=tuple(bootstrap or ()),
        max_rate=max_rate,
        invite=None if invite is None else read_invite(invite),
        listeners=(show,),
        faults=tuple(Fault.parse(text, computes=False) for text in fault or ()),
        devices=devices,
        open=opened,
        on_invite=show_invite,
    )
    if invite_file is not None:
        invite_file.parent.mkdir(parents=True, exist_ok=True)  # report errors about the file before the run begins
    shown = None if no_dashboard else companion(home, place, tensorboard, Console(highlight=False, stderr=as_json))
    with Home.open(home) as own, shown or nullcontext():
        raise typer.Exit(exit_code(coordinate(run.manifest, own, options)))


def _dry_run(manifest: RunManifest, console: Console, as_json: bool, gpu: str | None, line: Line | None) -> None:
    import json

    from peers.run import dry_run, outlook, outlook_text
    from peers.run.cards import UnknownCard

    plan = dry_run.dry_run(manifest)
    try:
        found = None if gpu is None else outlook.outlook(manifest, gpu, line)
    except UnknownCard as error:
        raise typer.BadParameter(str(error), param_hint="--gpu") from None
    if as_json:
        told = dry_run.to_json(plan)
        print(json.dumps(told if found is None else {**told, "outlook": outlook.to_json(found)}))
        return
    dry_run.show(plan, console)
    if found is not None:
        outlook_text.show(found, console)
