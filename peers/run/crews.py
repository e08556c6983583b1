"""Crews: which cards hold which stage, and which cards stand by. The coordinator's own functions decide, as for peers
that join one after another, and then move as far as that is worth it. Those join first that fit the fewest stages,
and of these the fastest: the order in which people come is not known.

Uplinks are not considered: the coordinator gives more peers to a stage whose peers send more than their lines carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from peers.run.fleet import Kind
from swarm.protocol.coordinator.membership.stage_costs import Lineup, Worker
from swarm.protocol.coordinator.placement.churn import PRIOR_PER_S, expected_quiet_s
from swarm.protocol.coordinator.placement.planner import Move, claim, plan_move
from swarm.protocol.coordinator.placement.rebalancing import DWELL_DOWNLOADS
from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits the number of peers in a stage, and how often they move."""

    replicas: int
    """Planned peers of a stage; it gets them before another stage gets more."""
    most: int
    """The largest number of peers of a stage."""
    arrival_s: float
    """Seconds from being assigned a stage to working in it."""


@dataclass(frozen=True, slots=True)
class Crews:
    stages: list[list[str]]
    """The names of the cards of each stage; at least one."""
    standbys: list[str]
    """The cards without a stage: every stage that they fit has as many peers as it may have."""


def placed(kinds: Mapping[str, Kind], names: Sequence[str], stages: int, bounds: Bounds) -> Crews:
    """Assign cards to stages. `names`: at least one for each stage.

    A card gets only stages that it fits, without --offload if any card fits the stage so. A stage that no card fits
    gets the card that lacks the fewest bytes, so that there is a time to compute.
    """
    entrance = _Entrance(kinds, names, stages, bounds)
    waiting = sorted(names, key=entrance.order)
    while True:
        waiting = entrance.admit(waiting)
        if not entrance.move():
            break
    return _without_gaps(kinds, entrance.crews, waiting)


class _Entrance:
    """Admits and moves cards. `crews`: by stage, each card with its name."""

    def __init__(self, kinds: Mapping[str, Kind], names: Sequence[str], stages: int, bounds: Bounds) -> None:
        self._bounds = bounds
        self._speeds = {
            name: 1 / sum(kind.taken(s, stages).both_s for s in range(stages)) for name, kind in kinds.items()
        }
        seconds = [[kinds[name].taken(s, stages).both_s * self._speeds[name] for name in names] for s in range(stages)]
        self._costs = tuple(median(each) for each in seconds)
        fitting = [any(not kind.lacks(s) for kind in kinds.values()) for s in range(stages)]
        self._barred = {name: _barred(kind, fitting) for name, kind in kinds.items()}
        around = expected_quiet_s(PRIOR_PER_S, max(2, round(2 * len(names) / stages)))
        self._horizon_s = max(DWELL_DOWNLOADS * bounds.arrival_s, around)
        self._names: dict[Actor, str] = {}
        self._crews: list[list[Worker]] = [[] for _ in range(stages)]

    @property
    def crews(self) -> list[list[str]]:
        return [[self._names[worker.actor] for worker in crew] for crew in self._crews]

    def order(self, name: str) -> tuple[int, float]:
        """A card with a lower number joins earlier."""
        return -len(self._barred[name]), -self._speeds[name]

    def admit(self, waiting: Sequence[str]) -> list[str]:
        """Give a stage to each card for which there is one. Return the others."""
        left: list[str] = []
        refused: set[str] = set()  # if there is no place for a card, there is none for the next one of its kind
        for name in waiting:
            barred = self._barred[name]
            found = None if name in refused else claim(self._lineup(), self._speeds[name], barred=barred)
            if found is None:
                left.append(name)
                refused.add(name)
                continue
            actor = Actor(f"card {len(self._names)}", 1)
            self._names[actor] = name
            self._crews[found.stage].append(Worker(actor, self._speeds[name], barred=barred))
        return left

    def move(self) -> bool:
        """Move a card to another stage, if that is worth it. Each card moves once at most."""
        found = plan_move(self._lineup(), self._bounds.arrival_s, self._horizon_s)
        if not isinstance(found, Move):
            return False
        [worker] = [worker for worker in self._crews[found.source] if worker.actor == found.actor]
        self._crews[found.source].remove(worker)
        self._crews[found.stage].append(replace(worker, movable=False))
        return True

    def _lineup(self) -> Lineup:
        empty = frozenset(stage for stage, crew in enumerate(self._crews) if not crew)
        crews = tuple(map(tuple, self._crews))
        return Lineup(crews, self._costs, self._bounds.replicas, self._bounds.most, empty=empty)


def _barred(kind: Kind, fitting: Sequence[bool]) -> frozenset[int]:
    """The stages that a card must not get. `fitting`: by stage, whether any card fits it without --offload."""
    lacking = [stage for stage in range(len(fitting)) if kind.lacks(stage)]
    never = frozenset(stage for stage in lacking if kind.short(stage))
    barred = never | {stage for stage in lacking if fitting[stage]}
    return barred if len(barred) < len(fitting) else never


def _without_gaps(kinds: Mapping[str, Kind], crews: list[list[str]], standbys: list[str]) -> Crews:
    """A stage without cards gets the card that lacks the fewest bytes: one that stands by, or one of several."""
    for stage, crew in enumerate(crews):
        if crew:
            continue
        spared = [other for other in (standbys, *(each for each in crews if len(each) > 1)) if other]
        _, source, name = min(
            ((kinds[name].short(stage), each, name) for each in spared for name in each), key=lambda found: found[0]
        )
        source.remove(name)
        crew.append(name)
    return Crews(crews, standbys)
