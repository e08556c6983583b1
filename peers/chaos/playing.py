"""Plays scenarios one after the other and reports each, even if one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from peers.chaos.director import Director, ScenarioFailed
from peers.chaos.internet import Internet, InternetError, Namespaces, Relays, refuse_without_packets
from peers.chaos.namespace import own_mounts
from peers.chaos.report import Report, failed, report_of
from peers.chaos.scenario import Scenario
from peers.chaos.summary import show
from peers.chaos.table import ScenarioError
from peers.launching.nursery import Nursery


def play_all(
    scenarios: Sequence[Scenario], folder: Path, internet: type[Internet], console: Console
) -> Iterator[Report]:
    """Play the scenarios. Returns the report of each, which is also shown. Homes and logs go to `folder`/NAME. Raises
    ScenarioError, OSError.
    """
    for scenario in scenarios:
        if internet is Relays:
            try:
                refuse_without_packets(scenario)
            except ScenarioError as error:
                raise ScenarioError(f"{scenario.name}: {error}") from None
        place = folder / scenario.name
        if place.exists() and any(place.iterdir()):
            raise ScenarioError(f"{place} is not empty: name another --dir")
        place.mkdir(parents=True, exist_ok=True)
    if internet is Namespaces and any(plan.disk is not None for s in scenarios for plan in s.hosts.values()):
        own_mounts()  # before the nursery, whose children must see the disks
    with Nursery() as nursery:
        for scenario in scenarios:
            console.print(f"\n[bold]── {scenario.name}[/bold]  {scenario.about}", soft_wrap=True)
            yield _play(scenario, folder / scenario.name, nursery, internet(scenario.network), console)


def _play(scenario: Scenario, folder: Path, nursery: Nursery, internet: Internet, console: Console) -> Report:
    director = Director(scenario, folder, nursery, internet, _teller(console))
    try:
        report = report_of(director.play())
    except (ScenarioFailed, InternetError) as error:
        report = failed(scenario, str(error))
    show(report, console)
    return report


def _teller(console: Console) -> Callable[[str, float | None], None]:
    def say(line: str, seconds: float | None) -> None:
        clock = " " * 9 if seconds is None else f"{seconds:7.2f} s"
        console.print(f"[dim]{clock}[/dim]  ", end="")
        console.print(line, markup=False, soft_wrap=True)

    return say
