"""`swarm-peer chaos`: runs a swarm on an emulated internet with faults at named moments, and reports the result."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from peers.options import Json
from peers.runtime.signals import leaving_signals


class EmulatedNetwork(StrEnum):
    auto = "auto"
    namespaces = "namespaces"
    relay = "relay"


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO.toml…", help="The scenarios to play: see docs/chaos.md.")
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Folder for homes, logs and results. Default: a temporary one, kept if something failed."
        ),
    ] = None,
    network: Annotated[
        EmulatedNetwork,
        typer.Option(
            "--network",
            help="namespaces: hosts with separate addresses, needs root. relay: a TCP relay between processes on "
            "the loopback interface; it cannot lose packets. auto: namespaces if possible, else relay.",
        ),
    ] = EmulatedNetwork.auto,
    as_json: Json = False,
) -> None:
    """Play scenarios: a swarm of processes on an emulated internet, with faults at named moments.

    Reports the cost of every step, the swarm's reaction to each fault, and whether its result equals that of one
    machine. Exit codes: 0 all is as expected, 2 something you can fix, 3 something is not as expected.
    """
    from peers.chaos.internet import Namespaces, Relays
    from peers.chaos.namespace import why_not
    from peers.chaos.playing import play_all
    from peers.chaos.scenario import load

    scenarios = [load(path) for path in paths]
    if len({scenario.name for scenario in scenarios}) < len(scenarios):
        raise typer.BadParameter(
            "two scenarios have the same name: give them different names, because each gets a folder of its name"
        )
    console = Console(highlight=False, stderr=as_json)
    missing = why_not() if network is not EmulatedNetwork.relay else None
    if missing is not None and network is EmulatedNetwork.namespaces:
        raise typer.BadParameter(f"{missing}; --network relay works without it", param_hint="--network")
    if missing is not None:
        console.print(f"{missing}: a relay is used instead", markup=False, soft_wrap=True)
    internet = Relays if missing is not None or network is EmulatedNetwork.relay else Namespaces
    folder = (Path(tempfile.mkdtemp(prefix="swarm-chaos-")) if directory is None else directory).resolve()
    for number in set(leaving_signals()) - {signal.SIGINT}:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    good = True
    try:
        for report in play_all(scenarios, folder, internet, console):
            good = good and report.good
            if as_json:
                print(report.to_json(), flush=True)
    except ValueError:  # if nothing was played, the message says it all
        if directory is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if directory is None and good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        console.print(f"\nhomes and logs are in {folder}", markup=False, soft_wrap=True)
    if not good:
        raise typer.Exit(3)
