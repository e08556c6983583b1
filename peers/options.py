"""Options that several commands share, as typer annotations: one name, one meaning, one help text."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Annotated

import typer

from peers.run.forecast import Line
from swarm.compute.least_pace import MOST_S, LeastPace
from swarm.net.uplink import LEAST_RATE


def parse_bytes(text: str) -> int:
    """Read a number of bytes, such as `512MB`, `1.5 GiB`, `4G` or `1000000`. Raises typer.BadParameter."""
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size: write 512MB, 1.5GiB or a number of bytes")
    number, prefix, binary = match.groups()
    power = " kmgt".index(prefix.lower() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def is_invite(text: str) -> bool:
    """True if an argument is an invite, in a form that `read_invite` accepts, and not a home."""
    return text == "-" or text.startswith("@") or re.match(r"swarm\d+-", text) is not None


def check_written(path: Path, option: str) -> None:
    """Refuse to replace a link, whose target would keep its old content, and what is no file, such as a device. Raises
    typer.BadParameter.
    """
    if path.is_symlink():
        raise typer.BadParameter(f"{path} is a link to {path.readlink()}: name the file itself", param_hint=option)
    if path.exists() and not path.is_file():
        raise typer.BadParameter(f"{path} exists and is no file: name another one", param_hint=option)


def check_replaced(path: Path, start: bytes, what: str, option: str) -> None:
    """Refuse to replace what `check_written` refuses, or a file that does not begin with `start`, as an earlier `what`
    does. Raises typer.BadParameter, OSError.
    """
    check_written(path, option)
    if not path.exists():
        return
    with path.open("rb") as file:
        found = file.read(len(start))
    if found and found.lower() != start:
        raise typer.BadParameter(f"{path} exists and is no {what}: name another file", param_hint=option)


def parse_rate(text: str) -> int:
    """Read a rate in bytes/s, such as `20Mbit`, `2.5MB` or `800 kbit/s`. Raises typer.BadParameter."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([kKmMgG]?)(bit|bps|B)(?:/s)?\s*", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a rate: write for example 20Mbit or 2.5MB (megabits or megabytes a second), with k, M "
            "or G"
        )
    number, prefix, unit = match.groups()
    rate = int(float(number) * 1000 ** " kmg".index(prefix.lower() or " ") / (1 if unit == "B" else 8))
    if rate < LEAST_RATE:
        raise typer.BadParameter(f"{text!r} is less than {8 * LEAST_RATE // 1000}kbit: too little even for heartbeats")
    return rate


def parse_line(text: str) -> Line:
    """Parse `80Mbit,50ms` or `80Mbit/20Mbit,50ms`: download rate, upload rate if it is lower, one-way delay. Raises
    BadParameter.
    """
    rates, _, delay = text.partition(",")
    found = re.fullmatch(r"\s*([0-9]{1,5}(?:\.[0-9]{1,5})?)\s*ms\s*", delay)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not a line: write 80Mbit,50ms or 80Mbit/20Mbit,50ms, for download, upload and the delay to "
            "another peer"
        )
    down, slash, up = rates.partition("/")
    received = parse_rate(down)
    return Line(float(parse_rate(up) if slash else received), float(received), float(found[1]) / 1000)


def parse_pace(text: str) -> LeastPace:
    """Parse a pace such as `0.1,0.2`: seconds of a microbatch's forward and backward. Raises typer.BadParameter."""
    try:
        forward_s, backward_s = map(float, text.split(","))
        return LeastPace(forward_s, backward_s)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a pace: write the seconds of a microbatch's forward and backward, such as 0.1,0.2; at "
            f"most {MOST_S:g} each"
        ) from None


class Schedule(enum.StrEnum):
    """When a peer computes the gradients of its weights."""

    ZERO_BUBBLE = "zero-bubble"
    SYNCHRONOUS = "synchronous"


def parse_precision(text: str) -> str:
    """Parse a precision. Raises typer.BadParameter."""
    known = ("auto", "fp32", "bf16", "fp16")
    if text not in known:
        raise typer.BadParameter(f"{text!r} is not a precision: write one of {', '.join(known)}")
    return text


MOST_THREADS = 4096

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="SWARM_PEER_HOME",
        help="Folder in which this process keeps all its files. Each process needs its own.",
    ),
]
AnyHome = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="SWARM_PEER_HOME",
        help="Home of a peer or coordinator. Default: your home that was used last.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key of RUN.toml; may be repeated."),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 …; auto takes a GPU if there is one.")]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="auto|fp32|bf16|fp16",
        parser=parse_precision,
        help="Precision of matrix products. auto: fp32 on a CPU, bf16 on a GPU, fp16 on a GPU older than Ampere.",
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Let torch compile the layers before this peer begins. This takes a minute and makes a GPU faster.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        min=1,
        max=MOST_THREADS,
        help="Threads for computing. The last bit of results depends on it: use the organiser's number.",
    ),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        "--max-memory",
        parser=parse_bytes,
        metavar="SIZE",
        help="Memory to plan with, such as 8GB. The peer takes no stage that needs more. At most half is for work in "
        "progress, and at most a quarter for kept frames. Default: half of the free memory. On a GPU, it is the card's "
        "memory; default: all that is free.",
    ),
]
MaxRate = Annotated[
    int | None,
    typer.Option(
        "--max-rate",
        parser=parse_rate,
        metavar="RATE",
        help="Send at most this, such as 20Mbit (megabits) or 2.5MB (megabytes) a second. Default: no limit.",
    ),
]
Announce = Annotated[
    list[str] | None,
    typer.Option(
        "--announce",
        help="Address to announce when you are behind a router, like /ip4/203.0.113.7/tcp/4002; may be repeated.",
    ),
]
Bootstrap = Annotated[
    list[str] | None,
    typer.Option(
        "--bootstrap",
        help="Address of another node of the DHT, the peers' shared address book; ends in /p2p/ID; may be repeated.",
    ),
]
Archive = Annotated[Path | None, typer.Option("--archive", help="The archive's folder, if it is not in --home.")]
ObserverInvite = Annotated[
    str | None,
    typer.Option(
        "--invite",
        help="An observer's invite: fetch the checkpoint from the coordinator's archive first. Its text, @FILE, "
        "or - for standard input.",
    ),
]
Dashboard = Annotated[
    str | None,
    typer.Option(
        "--dashboard",
        metavar="ADDRESS:PORT",
        help="Serve the dashboard at this address. Without ADDRESS:PORT: at 127.0.0.1:7070, or the next free port.",
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Folder in which to write loss, speed and other figures of each step for TensorBoard.",
    ),
]
Version = Annotated[
    int | None, typer.Option("--version", min=0, help="Version of the checkpoint. Default: the newest complete one.")
]
