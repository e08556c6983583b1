"""The results of the demo, as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peers.demo.killing import Recovery
from peers.demo.story import Report
from swarm.events.wording import amount


def show(report: Report, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value, style in _rows(report):
        table.add_row(Text(name, "bold"), Text(value, style))
    console.print("\n[bold]── what you have seen[/bold]")
    console.print(table)


def _rows(report: Report) -> list[tuple[str, str, str]]:
    rows = [("run", f"{report.run[:16]}…, {report.peers} peers, {report.steps} steps, {report.tokens:,} tokens", "")]
    if report.losses:
        rows.append(("training loss", f"{report.losses[0]:.4f} → {report.losses[-1]:.4f}", ""))
    if report.heldout_loss is not None:
        below = report.heldout_loss < report.unigram_entropy
        verdict = "below" if below else "NOT below"
        text = f"{report.heldout_loss:.4f}, {verdict} the corpus's unigram entropy of {report.unigram_entropy:.4f}"
        rows.append(("held-out loss", text, "" if below else "red"))
    if report.recovery is not None:
        rows += _recovery_rows(report.recovery, report.usual_step_seconds)
    if report.equal is not None:
        text = "EQUAL: the digests of one process" if report.equal else "DIFFERENT from one process"
        rows.append(("check", text, "bold green" if report.equal else "bold red"))
    if report.archived is not None:
        rows.append(("checkpoint", f"version {report.archived}, verified, in the coordinator's archive", ""))
    by_channel = ", ".join(f"{channel} {amount(size)}" for channel, size in sorted(report.sent.items()) if size)
    rows.append(("bytes moved", f"{amount(sum(report.sent.values()))} ({by_channel})", ""))
    if report.boundaries:
        rows.append(
            (
                "a boundary",
                f"{report.forward_bytes:.0f} bytes forward and {report.backward_bytes:.0f} backward for each token, "
                "headers included",
                "",
            )
        )
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items())
    rows.append(("time", f"{sum(report.seconds.values()):.0f} s: {phases}", ""))
    return rows


def _recovery_rows(recovery: Recovery, usual: float | None) -> list[tuple[str, str, str]]:
    void = f"{recovery.finished} finished and {recovery.unfinished} unfinished microbatches"
    rows = [("kill -9", f"in step {recovery.step + 1}: {void} moved to another peer", "")]
    if recovery.first_frame is not None and recovery.fenced is not None:
        frames = f"first of {recovery.frames} recovered frames after {recovery.first_frame * 1000:.0f} ms"
        rows.append(("recovery", f"fenced after {recovery.fenced * 1000:.0f} ms, {frames}", ""))
    if recovery.step_seconds is not None and usual:
        ratio = recovery.step_seconds / usual
        text = f"{recovery.step_seconds:.2f} s; the steps before it {usual:.2f} s (median): {ratio:.2f} ×"
        rows.append(("that step took", text, ""))
    return rows
