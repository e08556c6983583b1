"""The report as text for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peers.chaos.report import Report
from swarm.events.wording import amount, replicas

_SLOW = 1.5
_LIVES = 4
"""Number of processes whose growth is shown: those that lived longest."""


def show(report: Report, console: Console) -> None:
    _steps(report, console)
    for episode in report.episodes:
        console.print(f"\n[bold]{episode.at_s:7.2f} s  [/bold]", end="")
        console.print(f"{episode.fault}: {episode.what}", markup=False, soft_wrap=True)
        for answer in episode.answers:
            console.print(f"  {answer.after_s:+7.2f} s  {answer.text}", markup=False, soft_wrap=True)
        if episode.more:
            console.print(f"             and {episode.more} more")
        if not episode.answers:
            slowest = (
                "" if episode.slowest is None else f": the slowest step took {episode.slowest:.2f} × the usual one"
            )
            console.print(f"             nothing had to be done{slowest}", soft_wrap=True)
    console.print()
    table = Table.grid(padding=(0, 2))
    for name, value, style in _rows(report):
        table.add_row(Text(name, "bold"), Text(value, style))
    console.print(table)


def _steps(report: Report, console: Console) -> None:
    """One line for each step that was slow or had a fault. All others are usual steps."""
    shown = [s for s in report.steps if s.faults or s.step == 0 or (s.ratio is not None and s.ratio > _SLOW)]
    console.print("\n[bold]steps that were slow, or had a fault[/bold] (from decision to decision)")
    for step in shown:
        ratio = "" if step.ratio is None else f"{step.ratio:6.2f} ×"
        line = f"  step {step.step + 1:<4} {step.seconds:7.2f} s {ratio:>9}  {replicas(step.replicas):8}"
        console.print(f"{line} {', '.join(step.faults)}".rstrip(), markup=False, soft_wrap=True)


def _rows(report: Report) -> list[tuple[str, str, str]]:
    usual = "not measured" if report.usual_step_s is None else f"{report.usual_step_s:.2f} s"
    rows = [("steps", f"{report.decided} decided in {report.seconds:.1f} s; a usual step takes {usual}", "")]
    if report.goodput is not None:
        told = f"{report.goodput:.2f} of the goodput before the first fault"
        if report.survivors:
            survived = f"{report.goodput / report.survivors:.2f} of what these peers can do"
            told += f"; on average {report.survivors:.2f} of the peers were alive: {survived}"
        rows.append(("goodput", told, ""))
    if report.slowest is not None:
        rows.append(("slowest step", f"{report.slowest:.2f} × the usual one", ""))
    rows.append(("longest gap", f"{report.longest_gap_s:.2f} s between decisions", ""))
    for growth in report.growth[:_LIVES]:
        counts = f"{growth.descriptors:+} descriptors, {growth.threads:+} threads, {growth.tasks:+} tasks"
        more = f"grew by {amount(growth.resident_bytes)}, {counts} in {growth.seconds:.0f} s"
        rows.append((growth.host, more, ""))
    for finding in report.findings:
        verdict = "holds" if not finding.broken else "BROKEN"
        style = "" if not finding.broken else "bold red"
        rows.append((verdict, f"{finding.invariant} ({finding.checked} checked)", style))
    if report.equal is not None:
        text = "EQUAL: the digests of one process" if report.equal else "DIFFERENT from one process"
        rows.append(("answer", text, "bold green" if report.equal else "bold red"))
    rows += [("FAILED", failure, "bold red") for failure in report.failures]
    if report.good:
        rows.append(("scenario", f"{report.scenario}: as expected", "bold green"))
    return rows
