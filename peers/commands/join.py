"""`swarm-peer join`: takes part in a run."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from peers.options import (
    Announce,
    Bootstrap,
    Compile,
    Dashboard,
    Json,
    MaxMemory,
    MaxRate,
    Precision,
    Schedule,
    Threads,
    parse_bytes,
    parse_pace,
)
from peers.options import Home as HomeOption
from peers.run.home import PEER_HOME
from peers.stage.patience import DEFAULT_PATIENCE_S, LONGEST_PATIENCE_S
from swarm.compute.least_pace import LeastPace


def command(
    invite: Annotated[
        str,
        typer.Argument(
            metavar="INVITE",
            help="The invite from the organiser: its text, @FILE for a file with it, or - for standard input.",
        ),
    ],
    home: HomeOption = PEER_HOME,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="cpu, cuda, cuda:1 …; auto takes a GPU if there is one. With commas, such as cuda:0,cuda:1: one peer "
            "on each, all in this process.",
        ),
    ] = "auto",
    precision: Precision = "auto",
    compiled: Compile = False,
    offload: Annotated[
        bool,
        typer.Option(
            "--offload",
            help="Keep the optimizer's state of a graphics card in the host's memory. The card then holds a larger "
            "stage, and a step takes longer. The result is the same.",
        ),
    ] = False,
    max_memory: MaxMemory = None,
    max_rate: MaxRate = None,
    threads: Threads = 1,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=1,
            help="Maximum number of microbatches in work at once. Default: what the pipeline's depth needs and the "
            "memory allows.",
        ),
    ] = None,
    graph_budget: Annotated[
        int | None,
        typer.Option(
            "--graph-budget",
            parser=parse_bytes,
            metavar="SIZE",
            help="Memory for work in progress; if it is full, forwards are computed again. Default: half of "
            "--max-memory.",
        ),
    ] = None,
    schedule: Annotated[
        Schedule | None,
        typer.Option(
            "--schedule",
            help="When to compute gradients of weights. zero-bubble: while no other stage waits, as far as "
            "--graph-budget allows. synchronous: in each backward. Both give the same result. Default: zero-bubble; "
            "with --compile: synchronous.",
        ),
    ] = None,
    delta_cache: Annotated[
        int | None,
        typer.Option(
            "--delta-cache",
            parser=parse_bytes,
            metavar="SIZE",
            help="With codecs delta, ef, ef21: memory for activations of earlier visits; what does not fit is "
            "sent in full. "
            "Default: an eighth of --max-memory.",
        ),
    ] = None,
    capacity: Annotated[
        float | None,
        typer.Option(
            "--capacity",
            min=1e-9,
            max=1e9,
            metavar="NUMBER",
            help="Do not measure this machine or its link: assume this many microbatches/s through the whole model.",
        ),
    ] = None,
    max_temp: Annotated[
        float | None,
        typer.Option(
            "--max-temp",
            min=20,
            max=120,
            metavar="CELSIUS",
            help="Pause while the device is this hot or hotter, until it is 5 °C cooler. A paused peer keeps its stage "
            "and its state current; others do its work.",
        ),
    ] = None,
    temp_file: Annotated[
        Path | None,
        typer.Option(
            "--temp-file",
            metavar="FILE",
            help="With --max-temp: a file with the temperature in thousandths of °C, as Linux has in "
            "/sys/class/hwmon. Default: the NVIDIA card's own sensor.",
        ),
    ] = None,
    when_busy: Annotated[
        bool,
        typer.Option(
            "--pause-when-busy", help="Pause while another program, such as a game, computes on the NVIDIA card."
        ),
    ] = False,
    seats: Annotated[
        int | None,
        typer.Option(
            "--seats",
            min=1,
            max=16,
            help="Number of peers in this process, each with a separate stage. They share its memory, rate and speed. "
            "They use --port and the ports after it. Default: one; the coordinator may ask for more while a stage has "
            "no peer and --max-memory has room.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="TCP port to listen on. 0: any.")] = 0,
    announce: Announce = None,
    bootstrap: Bootstrap = None,
    dashboard: Dashboard = None,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            min=1.0,
            max=LONGEST_PATIENCE_S,
            metavar="SECONDS",
            help="Seconds to wait for a coordinator that cannot be reached; then leave with exit code 4.",
        ),
    ] = DEFAULT_PATIENCE_S,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="For rehearsals: kill@EVENT:COUNT, see docs.", hidden=True)
    ] = None,
    pace: Annotated[
        LeastPace | None,
        typer.Option(
            "--pace",
            parser=parse_pace,
            help="For rehearsals: minimum seconds of a microbatch's forward and backward, such as 0.1,0.2.",
            hidden=True,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take part in a run: hold the stage that needs a peer most, or stand by until a peer is lost.

    Ctrl-C hands over the work that this peer has begun, and leaves within 10 seconds; a second Ctrl-C leaves at once.

    Exit codes: 0 the run is finished or this peer has left, 1 something broke, 2 something you can fix, 4 the run
    cannot continue, or the coordinator was unreachable for longer than --patience, 130 Ctrl-C before the peer had
    joined.
    """
    from peers.stage.heap import keep_freed_memory

    keep_freed_memory()  # must be called before torch is imported
    from peers.dashboard.companion import companion
    from peers.dashboard.place import Place
    from peers.report.progress import Progress, print_json
    from peers.run.home import Home
    from peers.run.invite_text import read_invite
    from peers.runtime.core_loop import exit_code
    from peers.runtime.device import check_offload, pick_devices, slower
    from peers.runtime.fault import Fault
    from peers.runtime.sensors import pick_sensor
    from peers.stage.budgets import budgets
    from peers.stage.machine import Machine
    from peers.stage.options import JoinOptions
    from peers.stage.pausing import Watched
    from peers.stage.seats import take_seats
    from swarm.compute.memory_table import Mode
    from swarm.net.listening import listen_on

    console = Console(highlight=False, stderr=as_json)
    where = read_invite(invite)
    if where.observes:
        raise typer.BadParameter(
            "it is for observing the run, not for taking part: use `swarm-peer dashboard INVITE`", param_hint="INVITE"
        )
    place = None if dashboard is None else Place.parse(dashboard)
    if compiled and schedule is Schedule.ZERO_BUBBLE:
        raise typer.BadParameter(
            "compiled layers give all gradients at once: leave out --compile or --schedule zero-bubble"
        )
    devices = pick_devices(device, precision, compiled)
    if len(devices) > 1 and seats not in (None, len(devices)):
        raise typer.BadParameter(
            f"each of the {len(devices)} devices has one seat: leave out --seats, or name one device"
        )
    seats = len(devices) if len(devices) > 1 else seats
    for picked in devices:
        if picked.why:
            console.print(f"this peer computes on the CPU: {picked.why}", markup=False)
    for said in dict.fromkeys(map(slower, devices)):
        if said:
            console.print(said, markup=False, soft_wrap=True)
    if offload:
        check_offload(devices)
    watches = max_temp is not None or when_busy
    if temp_file is not None and max_temp is None:
        raise typer.BadParameter("that temperature has no effect: also give --max-temp", param_hint="--temp-file")
    machines: list[Machine] = []
    watched: list[Watched | None] = []
    for picked in devices:
        room = budgets(picked.name, [each.name for each in devices], max_memory, graph_budget, delta_cache)
        machines.append(Machine(room, max_rate, beside=machines[0] if machines else None))
        sensor = watches and pick_sensor(
            picked.name, temperature=max_temp is not None, others=when_busy, file=temp_file
        )
        watched.append(Watched(sensor, max_temp, when_busy) if sensor else None)
    options = JoinOptions(
        machines[0],
        device=devices[0].name,
        precision=devices[0].precision,
        watched=watched[0],
        compiled=compiled,
        offload=offload and Mode(devices[0].name).own_memory,
        threads=threads,
        capacity=capacity,
        means_file=Home(home).means,
        slots=slots or 0,
        listen=listen_on(port),
        announce=tuple(announce or ()),
        bootstrap=tuple(bootstrap or ()),
        patience_s=patience,
        listeners=(print_json if as_json else Progress(console),),
        faults=tuple(Fault.parse(text) for text in fault or ()),
        pace=pace,
        splits=schedule is not Schedule.SYNCHRONOUS and not compiled,
    )

    def of_seat(number: int) -> JoinOptions:
        mine = options
        if len(devices) > 1:
            picked = devices[number]
            mine = replace(
                options,
                machine=machines[number],
                device=picked.name,
                precision=picked.precision,
                offload=offload and Mode(picked.name).own_memory,
                watched=watched[number],
            )
        if as_json or (number == 0 and (seats or 1) == 1):
            return mine
        return replace(mine, listeners=(Progress(console, label=f"seat {number + 1}  "),))

    shown = None if place is None else companion(home, place, None, Console(highlight=False, stderr=as_json))
    with shown or nullcontext():
        raise typer.Exit(exit_code(take_seats(where, home, seats, of_seat)))
