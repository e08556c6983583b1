"""`swarm-peer status`: shows the state of a peer or coordinator from its home, or each person's contributions to the
run.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from peers.dashboard.history.logs import Logs
from peers.dashboard.history.tail import record_of
from peers.fold import RunFacts, RunState, apply_record
from peers.fold.apply import NOISE
from peers.fold.facts import facts_in
from peers.fold.views import people_view, status_view
from peers.options import AnyHome, Json
from peers.report.whole_table import print_whole
from peers.run.home import logged_home
from swarm.events import LogTail
from swarm.events.wording import amount, printable, rate, replicas

_MARKS = tuple(f'"kind":"{kind}"'.encode() for kind in NOISE)
_MOST_SHOWN = 200
_CLOCK_SET_BACK_S = 60.0
"""An event this number of seconds in the future was logged before the clock was set back."""


def command(
    invite: Annotated[
        str | None,
        typer.Argument(
            metavar="INVITE",
            help="An observer's invite, from `swarm-peer invite --role observe`: ask the coordinator that leads for "
            "the run's state. Its text, @FILE, or - for standard input.",
        ),
    ] = None,
    home: AnyHome = None,
    contributions: Annotated[
        bool,
        typer.Option(
            "--contributions",
            help="Show each peer's contributions instead: tokens × share of the layers, hours, bytes.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the state of a peer or coordinator, from its home: last step, loss, peers per stage, last trouble.

    With an observer's invite, show the state of the run as its coordinator reports it.
    """
    if invite is not None:
        if contributions:
            raise typer.BadParameter(
                "it needs a home, not an invite: `swarm-peer dashboard INVITE` shows contributions"
            )
        _show_state_of_run(invite, home, as_json)
        return
    folder = logged_home(home)
    if contributions:
        _show_contributions(_whole_run(folder.path), facts_in(folder.path), as_json)
        return
    process = folder.occupant()
    status = status_view(folded(folder.events))
    if process is None and status["last_event"] is None:
        status["doing"] = f"nothing has run in {folder.path} yet"
    elif process is None and not status["stopped"]:
        status["doing"] = f"not running: it died without a last log line (last: {status['doing']})"
    if as_json:
        print(json.dumps({"running": process is not None, "process": process, **status}))
    else:
        _show(status, process)


def _show_state_of_run(text: str, home: Path | None, as_json: bool) -> None:
    from peers.observer.errands import run, state_of_run
    from peers.observer.visit import home_of
    from peers.run.home import Home
    from peers.run.invite_text import read_invite

    invite = read_invite(text)
    state = run(state_of_run(invite, Home(home_of(invite, home))))
    print(json.dumps(state) if as_json else printable(str(state.get("text", ""))))


def folded(log: Path) -> RunState:
    """The state after the last event of `log`. Records of other releases and a torn last line are skipped."""
    state, source = RunState(), ""
    for line in LogTail(log).lines():
        if any(mark in line[:100] for mark in _MARKS):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict):
            continue
        if record.get("kind") in ("ProcessStarted", "LogContinued"):
            source = "coordinator" if record.get("role") == "coordinator" else str(record.get("actor"))
        apply_record(state, record, record.get("at", 0.0), source)
    return state


def _whole_run(home: Path) -> RunState:
    """The state of the whole run. In a group of coordinators, a home also has copies of the others' logs."""
    state, logs = RunState(), Logs([home])
    logs.look()
    for line in logs.take():
        record = record_of(line.raw, line.kind)
        if record is not None:
            apply_record(state, record, line.at, line.tail.source)
    return state


def _show(status: dict[str, Any], process: int | None) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in _rows(status, process):
        table.add_row(Text(name, "bold"), Text(printable(value)))
    print_whole(table, Console(highlight=False))


def _rows(status: dict[str, Any], process: int | None) -> list[tuple[str, str]]:
    rows = [("doing", status["doing"])]
    if status["role"] is not None:
        rows.append(("who", f"{status['role']} {status['actor']}" + (f", process {process}" if process else "")))
        rows.append(("run", str(status["run"])))
    if status["leader"] is not None:
        rows.append(("leader", "this coordinator" if status["leader"] == status["actor"] else status["leader"]))
    if status["max_rate"] is not None:
        rows.append(("upload limit", rate(status["max_rate"])))
    if status["machine"] is not None:
        rows.append(("machine", status["machine"].removeprefix("this machine, ")))
    if status["step"] is not None:
        rows.append(("last step", str(status["step"] + 1)))
    if status["loss"] is not None:
        norm = "" if status["gradient_norm"] is None else f", gradient norm {status['gradient_norm']:.3g}"
        rows.append(("loss", f"{status['loss']:.4f}{norm}"))
    if status["heldout_loss"] is not None:
        rows.append(("held-out loss", f"{status['heldout_loss']:.4f}"))
    if status["tokens_per_second"] is not None:
        efficiency = "" if status["efficiency"] is None else f", efficiency {status['efficiency']:.2f}"
        rows.append(("speed", f"{status['tokens_per_second']:,.0f} tokens/s{efficiency}"))
    if status["replicas"] is not None:
        rows.append(("peers per stage", replicas(status["replicas"])))
    if status["archived"] is not None:
        rows.append(("checkpoint", f"version {status['archived']} complete in the archive"))
    if status["trouble"] is not None:
        rows.append(("last trouble", f"{status['trouble']['text']} ({_ago(status['trouble']['at'])})"))
    if status["last_event"] is not None:
        rows.append(("last event", _ago(status["last_event"])))
    return rows


def _show_contributions(state: RunState, facts: RunFacts | None, as_json: bool) -> None:
    everybody: list[dict[str, Any]] = []
    while True:
        view = people_view(state, facts, offset=len(everybody), limit=_MOST_SHOWN)
        everybody += view["people"]
        if not view["people"] or len(everybody) >= view["total"]:
            break
    if as_json:
        print(json.dumps({"people": everybody, "formula": view["formula"]}))
        return
    table = Table("peer", "tokens × layers", "share", "hours", "sent", "received", "devices", box=box.SIMPLE)
    for each in everybody:
        known = each["tokens_layers"] is not None
        table.add_row(
            Text(printable(each["name"])),
            f"{each['tokens_layers']:,.0f}" if known else "not told",
            f"{100 * each['share']:.1f} %" if each["share"] is not None else "–",
            f"{each['hours']:.2f}",
            amount(each["bytes_sent"]),
            amount(each["bytes_received"]),
            Text(printable(", ".join(each["devices"]))),
        )
    console = Console(highlight=False, soft_wrap=True)
    print_whole(table, console)
    console.print(view["formula"])


def _ago(at: float) -> str:
    seconds = time.time() - at
    if seconds < -_CLOCK_SET_BACK_S:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        return f"at {clock}, which is yet to come: this machine's clock was set back"
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
