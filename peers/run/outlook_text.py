"""The outlook in words and tables, for people."""

from __future__ import annotations

from rich.console import Console

from peers.report.whole_table import print_whole
from peers.run.cards import MINE
from peers.run.dry_run import table
from peers.run.forecast import GOOD_EFFICIENCY
from peers.run.losses import percent
from peers.run.outlook import Outlook, Way
from peers.run.placement import unfit
from swarm.events.wording import amount


def show(found: Outlook, console: Console) -> None:
    """Print the outlook for people."""
    cards = table("stage", "cards", "microbatch, s", "needs", "card has", "memory", "graphs")
    ways = table(
        "codec", "averaging", "step", "efficiency", f"microbatches for {GOOD_EFFICIENCY}", "loss", "kept", "hours"
    )
    for each in found.placements:
        fits = f"lacks {amount(each.lacks)}" if each.lacks else "fits, layers again" if each.again else "fits"
        if each.offload_host is not None:
            fits += ", fits with --offload"
        seconds = f"{each.forward_s:.3g} + {each.backward_s:.3g}"
        sizes = amount(each.needs), amount(each.has)
        cards.add_row(str(each.stage), f"{each.count} × {each.card}", seconds, *sizes, fits, str(each.graphs))
    print_whole(cards, console)
    if found.capacities:
        _show_capacities(found, console)
    own = found.own.forecast
    parts = {"compute": own.compute_s, "fill and drain": own.fill_s, "wire": own.wire_s, "reduce": own.reduce_s}
    told = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in parts.items())
    _say(console, f"a step takes {own.step_s:.3g} s: {told}; efficiency {own.efficiency:.2f}")
    for way in (found.own, *found.others):
        times = f"{way.forecast.step_s:.3g} s", f"{way.forecast.efficiency:.2f}"
        enough = "never" if way.enough is None else str(way.enough)
        ways.add_row(way.codec, way.averaging, *times, enough, *_cost(way, found.steps))
    print_whole(ways, console)
    if not unfit(found.placements):
        _say(console, _advice(found))
        _say(console, _soonest(found))
    _say(
        console,
        "loss: against the same model without codecs and with exact sums, measured with small models; kept: what is "
        f"left of a boundary's worth; hours: until the loss that this model has after {found.steps} steps. –: not "
        "measured. See docs/compression.md",
    )
    if not any(each.card == MINE for each in found.placements):
        _say(console, "the times of cards are computed from published figures, not measured: see docs/gpu.md")
    for warning in found.warnings:
        _say(console, f"warning: {warning}", "yellow")


def _show_capacities(found: Outlook, console: Console) -> None:
    """A row for each card and way to use its memory."""
    rows = table("card", "largest stage", "layers", "parameters", "host's memory")
    for each in found.capacities:
        way = ("--offload" if each.offload else "") + (", layers again" if each.again else ", whole graphs")
        sizes = str(each.layers), f"{each.parameters:,}", amount(each.host)
        rows.add_row(f"{each.gigabytes} GB", way.removeprefix(", "), *sizes)
    print_whole(rows, console)
    _say(console, "largest stage: of this run's layers, in the middle; it fits on a card of this size (docs/gpu.md)")


def _advice(found: Outlook) -> str:
    way = found.advice
    if way is None:
        return f"none of these reaches an efficiency of {GOOD_EFFICIENCY}: the line is too slow for this model"
    return (
        f"an efficiency of {GOOD_EFFICIENCY} is reached by {_named(found, way)}, with "
        f"batch.microbatches = {way.enough} or more"
    )


def _soonest(found: Outlook) -> str:
    way = found.soonest
    if way is None or way.loss is None:
        return "no loss of these ways was measured"
    hours = way.hours(found.steps)
    return (
        f"the same loss comes soonest with {_named(found, way)}: after {hours:.3g} hours, for {way.loss.tokens:.2f} "
        f"times the tokens (loss {percent(way.loss.gap)})"
    )


def _named(found: Outlook, way: Way) -> str:
    return "the run as it is" if way is found.own else f'codec "{way.codec}" both ways and averaging "{way.averaging}"'


def _cost(way: Way, steps: int) -> tuple[str, str, str]:
    hours = way.hours(steps)
    if way.loss is None or hours is None:
        return "–", "–", "–"
    return percent(way.loss.gap), "–" if way.loss.kept is None else f"{way.loss.kept:.2f}", f"{hours:.3g}"


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
