"""`swarm-peer demo`: runs a whole swarm on this machine, kills one peer, and checks the result."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from peers.options import Dashboard, Json


def command(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for text, homes and results. Default: a temporary one.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Optimizer steps.")] = 256,
    stages: Annotated[int, typer.Option("--stages", min=2, max=8, help="Number of stages.")] = 4,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Number of peers in each stage.")] = 2,
    codec: Annotated[
        str, typer.Option("--codec", help="Codec of the links: none, bf16, int8, int4, int2, log4 or auto.")
    ] = "int8",
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill a peer in the middle of a step.")] = True,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Train the run in one process too, and compare digests.")
    ] = True,
    dashboard: Dashboard = "",
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Serve no dashboard.")] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep serving the dashboard after the end, until Ctrl-C.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder: homes, logs, model.")] = False,
    as_json: Json = False,
) -> None:
    """Show a whole swarm on this machine: it trains, one peer is killed, and the result equals that of one machine.

    A coordinator and eight peers start as separate processes, with separate homes; they share nothing but libp2p. Takes
    a few minutes on two cores. Exit codes: 0 everything was shown, 1 something was not, 3 the swarm's result differs
    from the reference's.
    """
    if kill and replicas < 2:
        raise typer.BadParameter(
            "no other peer could take over the work of a killed peer: use --replicas 2 or --no-kill"
        )
    if stay and no_dashboard:
        raise typer.BadParameter("it needs the dashboard: leave out --no-dashboard", param_hint="--stay")

    from peers.dashboard.place import Place
    from peers.demo.children import ChildDied
    from peers.demo.story import DemoFailed, DemoOptions, run_demo
    from peers.demo.summary import show
    from peers.launching.process import LaunchFailed
    from peers.runtime.signals import leaving_signals
    from swarm import codecs
    from swarm.manifest.tables import AUTO

    if codec != AUTO:
        codecs.pair(codec, codec)
    place = None if no_dashboard else Place.parse(dashboard or "")
    console = Console(highlight=False, stderr=as_json)
    temporary = directory is None
    folder = Path(tempfile.mkdtemp(prefix="swarm-demo-")) if directory is None else directory
    options = DemoOptions(folder.resolve(), steps, stages, replicas, kill, check, codec, place)
    ending = ExitStack()
    for asked in set(leaving_signals()) - {signal.SIGINT}:
        signal.signal(asked, lambda number, frame: sys.exit(128 + number))
    try:
        with ending:
            report = run_demo(options, console, ending)
            show(report, console)
            if as_json:
                print(report.to_json(), flush=True)
            if stay:
                _stay(console)
    except (DemoFailed, ChildDied, LaunchFailed, TimeoutError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False, soft_wrap=True)
        console.print(f"its homes and logs are in {folder}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except BaseException:
        if temporary and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    good = report.equal is not False and report.learned
    if temporary and not keep and good:
        shutil.rmtree(folder, ignore_errors=True)
        console.print("\nThe temporary folder is removed; keep it with --keep, or name one with --dir.")
    else:
        console.print(f"\nEverything is in {report.folder}. Try\n", markup=False, soft_wrap=True)
        home, program = report.folder / "homes" / "coordinator", Path(sys.executable).with_name("swarm-peer")
        console.print(f'{program} generate "In 1900" --home {home}', markup=False, soft_wrap=True)
        console.print(f"{program} events {home}", markup=False, soft_wrap=True)
    if report.equal is False:
        raise typer.Exit(3)
    if not report.learned:
        console.print(f"the held-out loss {report.heldout_loss} is not below the unigram entropy", style="red")
        raise typer.Exit(1)


def _stay(console: Console) -> None:
    """Wait for Ctrl-C, which is not a failure here."""
    console.print("\nThe dashboard stays: Ctrl-C ends it.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        console.print()
