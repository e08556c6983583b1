"""`swarm-peer status`: what a peer or coordinator is doing, from its home."""

from __future__ import annotations

import dataclasses
import json
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peers.event_text import printable, rate, replicas
from peers.home import logged_home
from peers.options import AnyHome, Json
from peers.run_status import RunStatus, summarise
from swarm.events import read_log


def command(home: AnyHome = None, as_json: Json = False) -> None:
    """What a peer or coordinator is doing, from its home: last step, loss, peers per stage, last trouble."""
    folder = logged_home(home)
    process = folder.occupant()
    status = summarise(read_log(folder.events))
    if process is None and status.last_event is None:
        status.doing = f"nothing has run in {folder.path} yet"
    elif process is None and not status.stopped:
        status.doing = f"not running: it died without saying goodbye (last: {status.doing})"
    if as_json:
        print(json.dumps({"running": process is not None, "process": process, **dataclasses.asdict(status)}))
    else:
        _show(status, process)


def _show(status: RunStatus, process: int | None) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(status, process):
        table.add_row(Text(name, "bold"), Text(printable(value)))
    Console(highlight=False, soft_wrap=True).print(table)


def _rows(status: RunStatus, process: int | None) -> list[tuple[str, str]]:
    rows = [("doing", status.doing)]
    if status.role is not None:
        rows.append(("who", f"{status.role} {status.actor}" + (f", process {process}" if process else "")))
        rows.append(("run", str(status.run)))
    if status.leader is not None:
        rows.append(("leader", "this coordinator" if status.leader == status.actor else status.leader))
    if status.max_rate is not None:
        rows.append(("upload limit", rate(status.max_rate)))
    if status.machine is not None:
        rows.append(("machine", status.machine.removeprefix("this machine, ")))
    if status.step is not None:
        rows.append(("last step", str(status.step + 1)))
    if status.loss is not None:
        rows.append(("loss", f"{status.loss:.4f}, gradient norm {status.gradient_norm:.3g}"))
    if status.heldout_loss is not None:
        rows.append(("held-out loss", f"{status.heldout_loss:.4f}"))
    if status.tokens_per_second is not None:
        rows.append(("speed", f"{status.tokens_per_second:,.0f} tokens/s, efficiency {status.efficiency:.2f}"))
    if status.replicas is not None:
        rows.append(("peers per stage", replicas(status.replicas)))
    if status.archived is not None:
        rows.append(("checkpoint", f"version {status.archived} complete in the archive"))
    if status.trouble is not None:
        rows.append(("last trouble", f"{status.trouble.text} ({_ago(status.trouble.at)})"))
    if status.last_event is not None:
        rows.append(("last event", _ago(status.last_event)))
    return rows


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
