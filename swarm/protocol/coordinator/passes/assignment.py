"""Assigns microbatches to replicas. The functions are pure.

In each stage, the numbers of microbatches are chosen so that the slowest replica finishes as early as possible. The
microbatches of a replica are spread over the step in the order in which they arrive: consecutive microbatches go to
different replicas, and a replica that takes long for a microbatch begins early. This is SWARM's interleaved weighted
round-robin, except that all peers compute the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

from swarm.protocol.ids import Actor, Microbatch, Pair
from swarm.protocol.messages import StageTable


def wire(
    rosters: Sequence[Sequence[Actor]],
    weights: Mapping[Actor, float],
    microbatches: int,
    blocked: frozenset[Pair] = frozenset(),
    offset: int = 0,
    probed: frozenset[Actor] = frozenset(),
) -> tuple[StageTable, ...]:
    """The first table of every stage for a pass; its number is 0.

    `weights`: relative speeds, > 0. `blocked`: pairs that cannot reach each other. They become neighbours for a
    microbatch only if there is no other choice. `offset`: rotates the rosters, so that a repeated step gives each
    microbatch to another replica; from 2 on, the replica also gets its inputs from another one. `probed`: actors that
    get one microbatch at most, if their stage has other actors. Those of neighbouring stages get different ones: if one
    of them were late, both would be suspected again.
    """
    tables: list[StageTable] = []
    before: list[Actor] | None = None
    for stage, roster in enumerate(rosters):
        by = offset + offset // 2 * stage
        turned = [roster[(i + by) % len(roster)] for i in range(len(roster))]
        queue = _turns(turned, weights, microbatches, probed)
        if before is not None and not probed.isdisjoint(turned):
            queue = _apart(queue, before, probed)
        chosen: list[Actor] = []
        if before is None or not blocked:
            chosen, queue = queue, []
        for m in range(len(queue)):
            assert before is not None
            avoid = {a for a in turned if Pair((a, before[m])) in blocked}
            place = next((i for i, actor in enumerate(queue) if actor not in avoid), 0)
            actor = queue.pop(place)
            # the others have their full share: one of them gets an additional microbatch
            if actor in avoid and len(avoid) < len(turned):
                may = [a for a in turned if a not in avoid]
                actor = min(may, key=lambda a: (a in probed, (1 + chosen.count(a)) / weights[a]))
            chosen.append(actor)
        index = {actor: i for i, actor in enumerate(roster)}
        tables.append(StageTable(0, tuple(roster), tuple(index[actor] for actor in chosen)))
        before = chosen
    return tuple(tables)


def shares(weights: Sequence[float], microbatches: int) -> list[int]:
    """The number of microbatches of each replica, such that the last replica finishes as early as possible.

    Among equal replicas, earlier ones get the additional microbatches. Each microbatch goes to the replica that would
    finish it first, which is optimal for equal jobs on machines of different speed. Rounded shares in proportion to
    speed may take twice as long: 14 and 2 instead of 15 and 1, for speeds 10 and 1.
    """
    counts = [0] * len(weights)
    ends = [(1 / weight, i) for i, weight in enumerate(weights)]
    heapify(ends)
    for _ in range(microbatches):
        _, i = ends[0]
        counts[i] += 1
        heapreplace(ends, ((counts[i] + 1) / weights[i], i))
    return counts


def _turns(
    roster: Sequence[Actor], weights: Mapping[Actor, float], microbatches: int, probed: frozenset[Actor]
) -> list[Actor]:
    """The replica that computes each microbatch if all pairs can reach each other. Replicas appear in the order in
    which they become free.
    """
    trusted = [actor for actor in roster if actor not in probed] or list(roster)
    tried = [actor for actor in roster if actor not in trusted][: max(0, microbatches - 1)]
    counts = shares([weights[actor] for actor in trusted], microbatches - len(tried))
    starts = [
        (k / weights[actor], weights[actor], i, actor)
        for i, (actor, count) in enumerate(zip(trusted, counts, strict=True))
        for k in range(count)
    ]
    return tried + [actor for _, _, _, actor in sorted(starts)]


def _apart(queue: Sequence[Actor], before: Sequence[Actor], probed: frozenset[Actor]) -> list[Actor]:
    """The same queue, but probed actors get the first microbatches that no probed actor has in the stage before."""
    tried, rest = ([actor for actor in queue if (actor in probed) is those] for those in (True, False))
    if not rest:
        return tried
    free = sorted(range(len(queue)), key=lambda m: (before[m] in probed, m))
    turns, places = iter(rest), dict(zip(free, tried, strict=False))
    return [places[m] if m in places else next(turns) for m in range(len(queue))]


def amend(
    table: StageTable,
    out: Iterable[Actor],
    moved: Iterable[Microbatch],
    weights: Mapping[Actor, float],
    spared: Collection[Actor] = (),
    takers: Sequence[Actor] = (),
) -> StageTable:
    """The next table of a stage: the actors in `out` leave the roster, and the microbatches in `moved` go to `takers`.

    If `takers` is empty, they go to the remaining members that own none of these microbatches, or to all remaining
    members if there is no such member. `spared` members get nothing unless there are no other takers. The microbatches
    are divided by weight (`Wheel`).
    """
    gone = set(out)
    roster = tuple(actor for actor in table.roster if actor not in gone)
    assert roster, "a stage without replicas cannot be amended"
    moved = sorted(moved)
    givers = {table.assignee(m) for m in moved} - gone
    takers = takers or [actor for actor in roster if actor not in givers] or roster
    takers = [actor for actor in takers if actor not in spared] or takers
    index = {actor: i for i, actor in enumerate(roster)}
    wheel = Wheel({actor: weights[actor] for actor in takers})
    assignment = list(table.assignment)
    moving = set(moved)
    for m in range(len(assignment)):
        assignment[m] = index[wheel.next(set()) if m in moving else table.assignee(m)]
    carried = tuple(before for actor, before in zip(table.roster, table.carried, strict=False) if actor not in gone)
    lines = tuple(line for actor, line in zip(table.roster, table.lines, strict=False) if actor not in gone)
    return StageTable(table.number + 1, roster, tuple(assignment), carried, lines)


def enlarge(table: StageTable, actor: Actor) -> StageTable:
    """The same table with `actor` added to the roster, without microbatches or residuals. The caller then amends it.

    The actor gets the slowest link rate of the table, so it sums few buckets.
    """
    carried = (*table.carried, -1) if table.carried else ()
    lines = (*table.lines, min(table.lines)) if table.lines else ()
    return replace(table, roster=(*table.roster, actor), carried=carried, lines=lines)


class Wheel:
    """Smooth weighted round-robin: each turn adds every actor's weight to its total. The largest total wins and is
    reduced by the sum of weights.
    """

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
