"""Outlook: how long a step takes with given cards and links, where the time goes, and what would make it efficient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from peers.run.cards import CARDS, MINE, UnknownCard, parse_cards
from peers.run.dry_run import DryRun, dry_run, table
from peers.run.fleet import Kind, Times, mode_of, placed, row_of, times_on, usable
from peers.run.forecast import GOOD_EFFICIENCY, Forecast, Line, Load, forecast, smallest_step
from swarm.compute.memory_table import StageCounts
from swarm.events.wording import amount
from swarm.manifest import RunManifest

CODECS = ("none", "bf16", "int8", "int4")
AVERAGING = ("none", "int8", "int4", "powersgd:4")
"""The ways of averaging that are compared, those with the least loss first."""
_EXACT_NS, _COMPRESSED_NS = 7.7, 35.0
"""Nanoseconds per parameter to reduce and apply: exact sums on a card, all else on the host (docs/gpu.md)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The cards of one kind that serve one stage."""

    stage: int
    card: str
    count: int
    forward_s: float
    backward_s: float
    """Seconds per microbatch, including a recomputed forward if its graph does not fit."""
    needs: int
    """Bytes needed on the card."""
    has: int
    lacks: int
    """Bytes that are missing on the card; 0: it fits."""
    graphs: int
    """The number of graphs that fit at once."""
    again: bool
    """True if it recomputes layer by layer, since a whole graph does not fit."""


@dataclass(frozen=True, slots=True)
class Way:
    """The run with one codec for both directions, and one way of averaging."""

    codec: str
    averaging: str
    forecast: Forecast
    enough: int | None
    """The smallest batch.microbatches with which the run is efficient. None: no step is large enough."""


@dataclass(frozen=True, slots=True)
class Outlook:
    line: Line | None
    rows: int
    """The number of replicas of the stage that has the fewest."""
    placements: tuple[Placement, ...]
    own: Way
    """The way that the run file sets."""
    others: tuple[Way, ...]

    @property
    def advice(self) -> Way | None:
        """The way with the least loss that is efficient with some size of step. None: no way is."""
        return next((way for way in (self.own, *self.others) if way.enough is not None), None)


def outlook(manifest: RunManifest, cards: str, line: Line | None) -> Outlook:
    """Compute the outlook. Imports torch, and measures this machine if it is among the cards. Raises UnknownCard,
    ManifestError.
    """
    names, stages = parse_cards(cards), manifest.model.stages
    if len(names) < stages:
        raise UnknownCard(
            f"{len(names)} cards cannot hold {stages} stages, one each: name more, or cut the model into fewer stages "
            "(model.cuts)"
        )
    counts: dict[str, list[StageCounts]] = {}
    kinds = {name: _kind(manifest, name, counts) for name in dict.fromkeys(names)}
    crews = placed(kinds, names, stages)
    row, rows = row_of(kinds, crews)
    most = max(map(len, crews))
    slowest = counts[names[0]]

    def way(codec: str | None, averaging: str) -> Way:
        changed = _changed(manifest, codec, averaging, most)
        load = _load(dry_run(changed, mode_of(names[0]), slowest), row, MINE in kinds)
        microbatches = -(-manifest.batch.microbatches // rows)
        found = smallest_step(load, most, line)
        named = codec or f"{manifest.codec.forward}, {manifest.codec.backward}"
        enough = None if found is None else found.microbatches * rows
        return Way(named, averaging, forecast(load, microbatches, most, line), enough)

    averaging = AVERAGING if most > 1 else (manifest.sums.averaging,)
    others = tuple(way(codec, how) for how in averaging for codec in CODECS) if stages > 1 or most > 1 else ()
    placements = tuple(
        _placement(kinds[name], stage, stages, crew.count(name))
        for stage, crew in enumerate(crews)
        for name in dict.fromkeys(crew)
    )
    return Outlook(line, rows, placements, way(None, manifest.sums.averaging), others)


def _kind(manifest: RunManifest, name: str, counts: dict[str, list[StageCounts]]) -> Kind:
    from peers.runtime.device import memory_budget
    from swarm.compute.graph import count_stages
    from swarm.compute.work import count_work

    mode = mode_of(name)
    counts[name] = count_stages(manifest, mode)
    needs = dry_run(manifest, mode, counts[name]).stages
    if name == MINE:
        return Kind(name, memory_budget(None, "cpu"), needs, _measured(manifest))
    return Kind(name, usable(CARDS[name]), needs, times_on(CARDS[name], count_work(manifest, mode)))


def _measured(manifest: RunManifest) -> list[Times]:
    """Measure each stage on this machine, in one thread, which is the default of a peer."""
    from swarm.compute.arithmetic import Arithmetic
    from swarm.compute.speed import measure_speed
    from swarm.models.cuts import flop_costs, stage_costs

    speed = measure_speed(manifest, Arithmetic.of("cpu", 1))
    costs = flop_costs(manifest.model, manifest.batch.sequence_length)
    layers = [cost / costs.layer for cost in stage_costs(manifest.model, costs)]
    return [Times(speed.forward_s * each, speed.backward_s * each) for each in layers]


def _changed(manifest: RunManifest, codec: str | None, averaging: str, replicas: int) -> RunManifest:
    """The run with this codec, averaging and number of replicas. `codec` None: the run's own."""
    codecs = {} if codec is None else {"forward": codec, "backward": codec}
    most = max(replicas, manifest.swarm.max_replicas)
    return manifest.model_copy(
        update={
            "codec": manifest.codec.model_copy(update=codecs),
            "sums": manifest.sums.model_copy(update={"averaging": averaging}),
            "swarm": manifest.swarm.model_copy(update={"replicas": replicas, "max_replicas": most}),
        }
    )


def _load(plan: DryRun, row: Sequence[Times], on_host: bool) -> Load:
    count, sums = plan.manifest.batch.microbatches, plan.manifest.sums
    boundary = max(plan.boundaries, key=lambda each: each.forward + each.backward, default=None)
    ns = _COMPRESSED_NS if on_host or sums.compresses or sums.mode != "exact" else _EXACT_NS
    return Load(
        forward_s=[times.forward_s for times in row],
        backward_s=[times.backward_s for times in row],
        forward_frame=0.0 if boundary is None else boundary.forward / count,
        backward_frame=0.0 if boundary is None else boundary.backward / count,
        reduce_bytes=max(need.reduce_packed for need in plan.stages),
        reduce_s=ns * 1e-9 * max(need.parameters for need in plan.stages),
    )


def _placement(kind: Kind, stage: int, stages: int, count: int) -> Placement:
    times, needs = kind.taken(stage, stages), kind.taken_up(stage).device
    lacks, graphs, again = kind.lacks(stage), kind.graphs(stage), kind.recomputes_layers(stage)
    return Placement(
        stage, kind.name, count, times.forward_s, times.backward_s, needs, kind.memory, lacks, graphs, again
    )


def to_json(found: Outlook) -> dict[str, Any]:
    """The output of `--json` under `outlook`."""
    advice = found.advice
    return {
        "line": None if found.line is None else dataclasses.asdict(found.line),
        "replicas": found.rows,
        "placements": [dataclasses.asdict(each) for each in found.placements],
        "own": _way_as_json(found.own),
        "others": [_way_as_json(way) for way in found.others],
        "advice": None if advice is None else _way_as_json(advice),
    }


def _way_as_json(way: Way) -> dict[str, Any]:
    times = dataclasses.asdict(way.forecast)
    return {
        "codec": way.codec,
        "averaging": way.averaging,
        **times,
        "step_s": way.forecast.step_s,
        "efficiency": way.forecast.efficiency,
        "enough_microbatches": way.enough,
    }


def show(found: Outlook, console: Console) -> None:
    """Print the outlook for people."""
    cards = table("stage", "cards", "microbatch, s", "needs", "card has", "memory", "graphs")
    ways = table("codec", "averaging", "step", "efficiency", f"microbatches for {GOOD_EFFICIENCY}")
    for each in found.placements:
        fits = f"lacks {amount(each.lacks)}" if each.lacks else "fits, layers again" if each.again else "fits"
        seconds = f"{each.forward_s:.3g} + {each.backward_s:.3g}"
        sizes = amount(each.needs), amount(each.has)
        cards.add_row(str(each.stage), f"{each.count} × {each.card}", seconds, *sizes, fits, str(each.graphs))
    console.print(cards)
    own = found.own.forecast
    parts = {"compute": own.compute_s, "fill and drain": own.fill_s, "wire": own.wire_s, "reduce": own.reduce_s}
    told = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in parts.items())
    _say(console, f"a step takes {own.step_s:.3g} s: {told}; efficiency {own.efficiency:.2f}")
    for way in (found.own, *found.others):
        times = f"{way.forecast.step_s:.3g} s", f"{way.forecast.efficiency:.2f}"
        ways.add_row(way.codec, way.averaging, *times, "never" if way.enough is None else str(way.enough))
    console.print(ways)
    _say(console, _advice(found))
    if not any(each.card == MINE for each in found.placements):
        _say(console, "the times of cards are computed from published figures, not measured: see docs/gpu.md")


def _advice(found: Outlook) -> str:
    way = found.advice
    if way is None:
        return f"none of these reaches an efficiency of {GOOD_EFFICIENCY}: the line is too slow for this model"
    how = "the run as it is" if way is found.own else f'codec "{way.codec}" both ways and averaging "{way.averaging}"'
    return f"an efficiency of {GOOD_EFFICIENCY} is reached by {how}, with batch.microbatches = {way.enough} or more"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
