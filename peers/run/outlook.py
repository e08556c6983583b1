"""Outlook: how long a step takes with given cards and links, where the time goes, and what would make it efficient."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peers.run.capacity import Capacity, capacities, usable
from peers.run.cards import CARDS, MINE, UnknownCard, free_on, parse_cards
from peers.run.coding import ENTROPY, coding, name_of
from peers.run.crews import Bounds, placed
from peers.run.dry_run import DryRun, dry_run
from peers.run.fleet import (
    CARD_NS,
    Kind,
    Times,
    mode_of,
    muon_flop_per_s,
    offload_ns,
    reduce_s,
    row_of,
    times_on,
)
from peers.run.forecast import Forecast, Line, Load, forecast, reduction_s, smallest_step
from peers.run.losses import Loss, loss_of
from peers.run.placement import Placement, Standby, unfit, warnings
from swarm.compute.memory_table import Mode, StageCounts
from swarm.manifest import RunManifest
from swarm.protocol.coordinator.placement.churn import PRIOR_PER_S, replica_cap

if TYPE_CHECKING:
    from swarm.compute.speed import Speed

CODECS = ("none", "bf16", "int8", "int4")
EXACT = ("none", "dither:1")
"""The ways of averaging with which a run equals its reference whoever computed what."""
AVERAGING = (*EXACT, "int8", "int4", "powersgd:4")
"""The ways of averaging that are compared, those with the most bits first."""


@dataclass(frozen=True, slots=True)
class Way:
    """The run with one codec for both directions, and one way of averaging."""

    codec: str
    averaging: str
    forecast: Forecast
    loss: Loss | None
    """None: what it costs was not measured."""
    enough: int | None = None
    """The smallest batch.microbatches with which the run is efficient. None: no step is large enough."""

    def hours(self, steps: int) -> float | None:
        """Hours until the loss that the control has after `steps` steps of this size; None: the loss is not known."""
        return None if self.loss is None else steps * self.loss.tokens * self.forecast.step_s / 3600


@dataclass(frozen=True, slots=True)
class Outlook:
    line: Line | None
    steps: int
    rows: int
    """The number of replicas of the stage that has the fewest."""
    placements: tuple[Placement, ...]
    own: Way
    """The way that the run file sets."""
    others: tuple[Way, ...]
    standbys: tuple[Standby, ...]
    warnings: tuple[str, ...]
    """What people must know of the cards, in sentences without a full stop."""
    capacities: tuple[Capacity, ...] = ()
    """The largest stages of this run's layers for common cards."""

    @property
    def advice(self) -> Way | None:
        """The first way that is efficient with some size of step: the run's, or one of the others. None: no way is, or
        no card can hold a stage.
        """
        if unfit(self.placements):
            return None
        return next((way for way in (self.own, *self.others) if way.enough is not None), None)

    @property
    def soonest(self) -> Way | None:
        """The way that takes the fewest hours to the same loss, with the run's size of step. None: no loss is known, or
        no card can hold a stage.
        """
        return None if unfit(self.placements) else soonest((self.own, *self.others))


def soonest(ways: Iterable[Way]) -> Way | None:
    """The way that takes the least time to the same loss; of several, the one that loses least. None: none is known."""
    known = ((way.forecast.step_s * way.loss.tokens, way.loss.gap, way) for way in ways if way.loss is not None)
    return min(known, key=lambda each: each[:2], default=(0.0, 0.0, None))[2]


def outlook(manifest: RunManifest, cards: str, line: Line | None) -> Outlook:
    """Compute the outlook. Imports torch, and measures this machine if it is among the cards. Raises UnknownCard,
    ManifestError.
    """
    fleet = Fleet(manifest, cards, line)
    own = fleet.way(None, manifest.sums.averaging, sized=True)
    others: tuple[Way, ...] = ()
    if manifest.model.stages > 1 or fleet.most > 1:
        averaging: tuple[str, ...] = AVERAGING if fleet.most > 1 else (manifest.sums.averaging,)
        if manifest.model.shares_embedding or manifest.model.token_means:
            averaging = tuple(how for how in averaging if how in (*EXACT, manifest.sums.averaging))
        if manifest.sums.mode != "exact":
            averaging = tuple(how for how in averaging if how != "dither:1")
        # a codec for token means is of no use without them, and other codecs would leave the means unused
        codecs = (ENTROPY,) if manifest.model.token_means else CODECS
        others = tuple(fleet.way(codec, how, sized=True) for how in averaging for codec in codecs)
    largest = capacities(manifest, fleet.mode)
    placements, standbys = fleet.placements, fleet.standbys
    return Outlook(line, manifest.run.steps, fleet.rows, placements, own, others, standbys, fleet.warnings, largest)


class Fleet:
    """The cards of a run, each assigned to a stage."""

    def __init__(self, manifest: RunManifest, cards: str, line: Line | None, speed: Speed | None = None) -> None:
        """As `outlook`. `speed`: that of this machine with a layer of the model; None: it is measured if needed."""
        names, stages = parse_cards(cards), manifest.model.stages
        if len(names) < stages:
            raise UnknownCard(
                f"{len(names)} cards cannot hold {stages} stages, one each: name more, or cut the model into fewer "
                "stages (model.cuts)"
            )
        counts: dict[str, list[StageCounts]] = {}
        self.manifest, self._line = manifest, line
        self._kinds = {name: _kind(manifest, name, counts, speed) for name in dict.fromkeys(names)}
        self._first, self._counts = names[0], counts[names[0]]
        bounds = Bounds(manifest.swarm.replicas, self._most(len(names)), manifest.timing.step_budget_s)
        crews = placed(self._kinds, names, stages, bounds)
        self._crews, self._standbys = crews.stages, crews.standbys
        self._row, self.rows = row_of(self._kinds, self._crews, manifest.batch.microbatches)
        self._row_at_length, _ = row_of(self._kinds, self._crews, None)
        self.most = max(map(len, self._crews))
        """The most replicas of a stage."""

    def _most(self, cards: int) -> int:
        """The largest number of peers in a stage, as the coordinator limits it after it has measured reductions."""
        swarm, count = self.manifest.swarm, self.manifest.batch.microbatches
        if swarm.max_replicas:
            return swarm.max_replicas
        stages = range(self.manifest.model.stages)
        replicas = max(swarm.replicas, -(-cards // len(stages)))
        plan = dry_run(_changed(self.manifest, None, self.manifest.sums.averaging, replicas), counts=self._counts)
        sent = max(need.reduce_packed for need in plan.stages)
        slowest = reduce_s(self._kinds, [list(self._kinds)] * len(stages), on_host=self._on_host(self.manifest))
        return replica_cap(PRIOR_PER_S, reduction_s(slowest, sent, replicas, self._line), count, swarm.replicas)

    @staticmethod
    def _on_host(manifest: RunManifest) -> bool:
        """True if the run's sums are of a kind that only hosts reduce."""
        return manifest.sums.averaging != "none" or manifest.sums.mode != "exact"

    def unlimited(self) -> float:
        """Seconds of a step without codecs, with exact sums and links that take no time."""
        load = self._load(_changed(self.manifest, "none", "none", self.most))
        return forecast(load, self._microbatches, self.most, None).step_s

    def way(self, codec: str | None, averaging: str, *, sized: bool = False) -> Way:
        """The run with a codec (None: its own) and a way of averaging. `sized`: also find how large a step must be."""
        changed = _changed(self.manifest, codec, averaging, self.most)
        load = self._load(changed)
        row = self._row_at_length
        long = dataclasses.replace(load, forward_s=[t.forward_s for t in row], backward_s=[t.backward_s for t in row])
        found = smallest_step(long, self.most, self._line) if sized else None
        own = self.manifest.codec, self.manifest.model
        return Way(
            codec or name_of(*own) or f"{own[0].forward}, {own[0].backward}",
            averaging,
            forecast(load, self._microbatches, self.most, self._line),
            loss_of(changed, self.most),
            None if found is None else found.microbatches * self.rows,
        )

    @property
    def mode(self) -> Mode:
        """How the first card computes; if the first is this machine, the next card."""
        return mode_of(next((name for name in self._kinds if name != MINE), MINE))

    @property
    def _microbatches(self) -> int:
        """Microbatches of a row in a step."""
        return -(-self.manifest.batch.microbatches // self.rows)

    def _load(self, manifest: RunManifest) -> Load:
        slowest = reduce_s(self._kinds, self._crews, on_host=self._on_host(manifest))
        return _load(dry_run(manifest, mode_of(self._first), self._counts), self._row, slowest)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The cards of each stage, by kind."""
        stages = len(self._crews)
        return tuple(
            Placement.of(self._kinds[name], stage, stages, crew.count(name))
            for stage, crew in enumerate(self._crews)
            for name in dict.fromkeys(crew)
        )

    @property
    def standbys(self) -> tuple[Standby, ...]:
        """The cards without a stage, by kind."""
        stages = range(len(self._crews))
        return tuple(
            Standby(name, self._standbys.count(name), min(self._kinds[name].short(stage) for stage in stages))
            for name in dict.fromkeys(self._standbys)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """As `Outlook.warnings`."""
        return tuple(warnings(self.placements, self.standbys, self.manifest))


def _kind(manifest: RunManifest, name: str, counts: dict[str, list[StageCounts]], speed: Speed | None) -> Kind:
    from peers.runtime.device import memory_budget
    from swarm.compute.graph import count_stages
    from swarm.compute.work import count_work

    mode = mode_of(name)
    counts[name] = count_stages(manifest, mode)
    needs = dry_run(manifest, mode, counts[name]).stages
    if name == MINE:
        return Kind(name, memory_budget(None, "cpu"), needs, _times(manifest, speed or own_speed(manifest)))
    offloaded = dry_run(manifest, dataclasses.replace(mode, offload=True), counts[name]).stages
    card = CARDS[name]
    times = times_on(card, count_work(manifest, mode))
    return Kind(name, usable(free_on(name)), needs, times, offloaded, CARD_NS, offload_ns(card), muon_flop_per_s(card))


def own_speed(manifest: RunManifest) -> Speed:
    """Measure a layer on this machine, in one thread, which is the default of a peer."""
    from swarm.compute.arithmetic import Arithmetic
    from swarm.compute.speed import measure_speed

    return measure_speed(manifest, Arithmetic.of("cpu", 1))


def _times(manifest: RunManifest, speed: Speed) -> list[Times]:
    """The time of a microbatch on a machine with this speed, by stage."""
    from swarm.models.cuts import flop_costs, stage_costs

    costs = flop_costs(manifest.model, manifest.batch.sequence_length)
    layers = [cost / costs.layer for cost in stage_costs(manifest.model, costs)]
    return [Times(speed.forward_s * each, speed.backward_s * each) for each in layers]


def _changed(manifest: RunManifest, codec: str | None, averaging: str, replicas: int) -> RunManifest:
    """The run with this codec, averaging and number of replicas. `codec` None: the run's own."""
    codecs = manifest.codec if codec is None else coding(codec).section
    return manifest.model_copy(
        update={
            "codec": codecs,
            "sums": manifest.sums.model_copy(update={"averaging": averaging}),
            "swarm": manifest.swarm.model_copy(update={"replicas": replicas}),
        }
    )


def _load(plan: DryRun, row: Sequence[Times], reduction_s: float) -> Load:
    count = plan.manifest.batch.microbatches
    boundary = max(plan.boundaries, key=lambda each: each.forward + each.backward, default=None)
    return Load(
        forward_s=[times.forward_s for times in row],
        backward_s=[times.backward_s for times in row],
        forward_frame=0.0 if boundary is None else boundary.forward / count,
        backward_frame=0.0 if boundary is None else boundary.backward / count,
        reduce_bytes=max(need.reduce_packed for need in plan.stages),
        reduce_s=reduction_s,
    )


def to_json(found: Outlook) -> dict[str, Any]:
    """The output of `--json` under `outlook`."""
    advice, soonest = found.advice, found.soonest
    return {
        "line": None if found.line is None else dataclasses.asdict(found.line),
        "replicas": found.rows,
        "placements": [dataclasses.asdict(each) for each in found.placements],
        "standbys": [dataclasses.asdict(each) for each in found.standbys],
        "warnings": list(found.warnings),
        "capacities": [dataclasses.asdict(each) for each in found.capacities],
        "own": _way_as_json(found.own, found.steps),
        "others": [_way_as_json(way, found.steps) for way in found.others],
        "advice": None if advice is None else _way_as_json(advice, found.steps),
        "soonest": None if soonest is None else _way_as_json(soonest, found.steps),
    }


def _way_as_json(way: Way, steps: int) -> dict[str, Any]:
    times, loss = dataclasses.asdict(way.forecast), way.loss
    return {
        "codec": way.codec,
        "averaging": way.averaging,
        **times,
        "step_s": way.forecast.step_s,
        "efficiency": way.forecast.efficiency,
        "enough_microbatches": way.enough,
        "loss_percent": None if loss is None else loss.gap,
        "kept": None if loss is None else loss.kept,
        "tokens": None if loss is None else loss.tokens,
        "hours": way.hours(steps),
    }
