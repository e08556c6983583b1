"""`swarm-peer report`: writes a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peers.options import check_replaced


def command(
    homes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="HOME...",
            envvar="SWARM_PEER_HOME",
            help="Homes of one run. Default: your home that was used last.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("run.html"),
    public: Annotated[bool, typer.Option("--public", help="Leave the addresses of machines out.")] = False,
) -> None:
    """Write the whole dashboard of a run as one HTML file that needs no server and no network."""
    from peers.dashboard.report import report
    from peers.run.home import logged_home
    from peers.runtime.signals import treat_all_as_ctrl_c
    from swarm.atomic import atomic_file, write_whole
    from swarm.events.wording import amount

    check_replaced(out, b"<!doctype html", "report", "--out")
    treat_all_as_ctrl_c()  # so that an unfinished file is removed
    found = [logged_home(home).path for home in homes] if homes else [logged_home(None).path]
    text = report(found, public=public).encode()
    with atomic_file(out) as file:
        write_whole(file, text)
    print(f"wrote {out}: {amount(len(text))}")
