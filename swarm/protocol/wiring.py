"""Who does which microbatch: a pure function of the view.

Per stage, smooth weighted round-robin over the microbatches (the interleaved weighted round-robin of SWARM, made common
knowledge): shares follow the weights, and consecutive microbatches go to different replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from swarm.protocol.ids import Actor, Microbatch
from swarm.protocol.messages import StageTable

Pair = frozenset[Actor]


def wire(
    rosters: Sequence[Sequence[Actor]],
    weights: Mapping[Actor, float],
    microbatches: int,
    blocked: frozenset[Pair] = frozenset(),
    offset: int = 0,
) -> tuple[StageTable, ...]:
    """The table of every stage, number 0.

    `weights`: relative speed, > 0. `blocked`: pairs that cannot reach each other; they are not made neighbours for a
    microbatch unless there is no other choice. `offset` turns the rosters, so that a step which is run again after a
    non-finite gradient gives each microbatch to another replica.
    """
    tables: list[StageTable] = []
    before: list[Actor] | None = None
    for roster in rosters:
        turned = [roster[(i + offset) % len(roster)] for i in range(len(roster))]
        wheel = Wheel({actor: weights[actor] for actor in turned})
        chosen: list[Actor] = []
        for m in range(microbatches):
            avoid: set[Actor] = set()
            if blocked and before is not None:
                avoid = {a for a in turned if Pair((a, before[m])) in blocked}
            chosen.append(wheel.next(avoid if len(avoid) < len(turned) else set()))
        index = {actor: i for i, actor in enumerate(roster)}
        tables.append(StageTable(0, tuple(roster), tuple(index[actor] for actor in chosen)))
        before = chosen
    return tuple(tables)


def amend(
    table: StageTable,
    out: Iterable[Actor],
    moved: Iterable[Microbatch],
    weights: Mapping[Actor, float],
    leaving: Collection[Actor] = (),
    takers: Sequence[Actor] = (),
) -> StageTable:
    """The next table: `out` leave the roster, `moved` go to `takers`, or (if none are named) to all who remain.

    By weight and least load first. Members that gave microbatches up (they own `moved` and stay) get none of them back,
    and those that are `leaving` get none as long as somebody else is there.
    """
    gone = set(out)
    roster = tuple(actor for actor in table.roster if actor not in gone)
    assert roster, "a stage without replicas cannot be amended"
    moved = sorted(moved)
    givers = {table.assignee(m) for m in moved} - gone
    takers = takers or [actor for actor in roster if actor not in givers] or roster
    takers = [actor for actor in takers if actor not in leaving] or takers
    index = {actor: i for i, actor in enumerate(roster)}
    wheel = Wheel({actor: weights[actor] for actor in takers})
    assignment = list(table.assignment)
    moving = set(moved)
    for m in range(len(assignment)):
        assignment[m] = index[wheel.next(set()) if m in moving else table.assignee(m)]
    carried = tuple(before for actor, before in zip(table.roster, table.carried, strict=False) if actor not in gone)
    return StageTable(table.number + 1, roster, tuple(assignment), carried)


class Wheel:
    """Smooth weighted round-robin: each turn every weight is added, the fullest is taken and pays the total."""

    def __init__(self, weights: Mapping[Actor, float]) -> None:
        self._weights = dict(weights)
        self._current = dict.fromkeys(weights, 0.0)
        self._total = sum(weights.values())

    def next(self, avoid: set[Actor]) -> Actor:
        best: Actor | None = None
        for actor, weight in self._weights.items():
            self._current[actor] += weight
            if actor not in avoid and (best is None or self._current[actor] > self._current[best] + 1e-12):
                best = actor
        assert best is not None
        self._current[best] -= self._total
        return best
