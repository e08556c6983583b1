"""Chooses the stage for a newcomer, and the peer that should move to another stage. Pure functions of measured speeds.

A stage's rate in microbatches/s is the sum of its replicas' rates; the swarm's rate is that of its slowest stage. A
newcomer gets the stage where it raises the swarm's rate most. A peer moves to the slowest stage if the gain, over the
expected life of the assignment, exceeds the loss while the peer downloads its new state. The coordinator alone decides,
one move at a time, so decisions cannot collide. In Petals they did (issue 389): many servers moved to the same gap, one
after the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from swarm.protocol.coordinator.membership.stage_costs import Lineup, Worker
from swarm.protocol.ids import Actor, StageIndex

LOOKAHEAD = 16
"""Number of moves planned ahead. If several stages are equally slow, a single move gains nothing."""
WORTH = 0.03
"""The moves must gain at least this fraction of the swarm's rate, because measured speeds fluctuate by about as
much.
"""
_EQUAL = 1e-9
"""Rates with a smaller relative difference count as equal: they may be sums of the same numbers in another order."""


@dataclass(frozen=True, slots=True)
class Claim:
    stage: StageIndex
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    actor: Actor
    source: StageIndex
    stage: StageIndex
    gain: float
    """Microbatches gained within the horizon once the peer has arrived. This includes the moves that follow."""
    cost: float
    """Microbatches lost while the peer moves."""
    reason: str


@dataclass(frozen=True, slots=True)
class Stay:
    reason: str


# ---------------------------------------------------------------- a newcomer


def claim(
    lineup: Lineup,
    speed: float,
    uplink: float = math.inf,
    barred: frozenset[int] = frozenset(),
    shunned: Collection[int] = (),
) -> Claim | None:
    """The stage for a newcomer with this speed and uplink. None if every stage that it could hold is full.

    The first of these criteria that makes a difference decides: a stage that lacks planned replicas; a stage that
    nobody holds (`Lineup.empty`); a stage that is not `shunned`; the stage where the swarm's rate rises most; the
    stage where the slowest, second slowest, … rate rises most; the lowest index. A peer on call does not count as one
    of the stage's replicas, because it leaves for the newcomer.
    """
    newcomer = Worker(Actor("", 0), speed, uplink=uplink)
    rates = lineup.rates()
    best: tuple[_Worth, int] | None = None
    held = [sum(not worker.on_call for worker in crew) for crew in lineup.crews]
    for stage, count in enumerate(held):
        if count >= lineup.most or stage in barred:
            continue
        after = sorted(rates[:stage] + rates[stage + 1 :] + [rates[stage] + lineup.rate(newcomer, stage)])
        worth = ((count < lineup.replicas, stage in lineup.empty, stage not in shunned), after)
        if best is None or _better(worth, best[0]):
            best = worth, stage
    if best is None:
        return None
    ((lacking, *_), after), stage = best
    if lacking:
        on_call = " (not counting a temporary seat)" if len(lineup.crews[stage]) > held[stage] else ""
        return Claim(StageIndex(stage), f"stage {stage} had {held[stage]} of {lineup.replicas} replicas{on_call}")
    before = min(rates)
    gains = f"where it raises the swarm from {before:.3g} to {after[0]:.3g} microbatches/s"
    reason = gains if after[0] > before * (1 + _EQUAL) else "which is one of the slowest stages"
    return Claim(StageIndex(stage), f"stage {stage}, with {held[stage]} peers, {reason}")


_Worth = tuple[tuple[bool, bool, bool], list[float]]


def _better(one: _Worth, other: _Worth) -> bool:
    """Return True if `one` is better. Rates are compared from the slowest stage on; nearly equal rates count as
    equal.
    """
    if one[0] != other[0]:
        return one[0] > other[0]
    for mine, theirs in zip(one[1], other[1], strict=True):
        if not math.isclose(mine, theirs, rel_tol=_EQUAL):
            return mine > theirs
    return False


# ---------------------------------------------------------------- a move


def plan_move(
    lineup: Lineup, download_s: float, horizon_s: float, barred: Collection[tuple[int, int]] = ()
) -> Move | Stay:
    """The move that should be made now, if any.

    The planner looks several moves ahead: it plans a sequence in which each move is the best one after the move before,
    and each takes `download_s`. Of all prefixes of that sequence, it chooses the one that completes most microbatches
    within `horizon_s`. If this prefix gains at least `WORTH` over staying, its first move is returned.

    * `download_s`: seconds from leaving a stage to working in the next one.
    * `horizon_s`: expected seconds until the assignment changes anyway.
    * `barred`: (from, to) of moves that must not be made.
    """
    if len(lineup.crews) < 2:
        return Stay("there is one stage")
    rates = lineup.rates()
    start = min(rates)
    crews, first = [list(crew) for crew in lineup.crews], None
    done, on_the_way, best, steps = 0.0, 0.0, 0.0, 0
    gain = cost = 0.0
    final = start
    for number in range(1, LOOKAHEAD + 1):
        found = _best_move(crews, lineup, rates, barred)
        if found is None or number * download_s > horizon_s:
            break
        worker, source, stage = found
        crews[source].remove(worker)
        rates[source] -= lineup.rate(worker, source)
        without = min(rates)  # the rate while the peer downloads
        crews[stage].append(_moved(worker))
        rates[stage] += lineup.rate(worker, stage)
        first = first or found
        done += without * download_s
        on_the_way += download_s
        net = done + min(rates) * (horizon_s - on_the_way) - start * horizon_s
        if net > best:
            best, steps, final = net, number, min(rates)
            cost = max(0.0, start * on_the_way - done)  # earlier moves may gain more than the last one costs
            gain = net + cost
    if first is None:
        return Stay("no move helps the slowest stage")
    if best <= WORTH * start * horizon_s:
        return Stay(f"moves would gain only {best:.3g} microbatches in {horizon_s:.0f} s")
    worker, source, stage = first
    reason = (
        f"stage {stage} is the slowest: {start:.3g} → {final:.3g} microbatches/s"
        f"{f' after {steps} moves' if steps > 1 else ''}; in {horizon_s:.0f} s the move gains {gain:.3g} "
        f"microbatches, and its download of {download_s:.0f} s costs {cost:.3g}"
    )
    return Move(worker.actor, StageIndex(source), StageIndex(stage), gain, cost, reason)


def _best_move(
    crews: Sequence[Sequence[Worker]], lineup: Lineup, rates: Sequence[float], barred: Collection[tuple[int, int]]
) -> tuple[Worker, int, int] | None:
    """The move (worker, from, to) after which the slower of the two stages is fastest. None if no move helps the
    slowest stage.
    """
    stage = min(range(len(rates)), key=lambda s: (rates[s], s))
    if len(crews[stage]) >= lineup.most:
        return None
    best: tuple[float, float, Actor] | None = None
    chosen: tuple[Worker, int, int] | None = None
    for source, crew in enumerate(crews):
        if source == stage or (source, stage) in barred or not _spares(crew, len(crews[stage]), lineup.replicas):
            continue
        for worker in crew:
            if not worker.movable or stage in worker.barred:
                continue
            left = rates[source] - lineup.rate(worker, source)
            slower = min(rates[stage] + lineup.rate(worker, stage), left)
            if slower <= rates[stage] * (1 + _EQUAL):
                continue
            worth = (-slower, worker.speed, worker.actor)
            if best is None or worth < best:
                best, chosen = worth, (worker, source, stage)
    return chosen


def _spares(crew: Sequence[Worker], there: int, replicas: int) -> bool:
    """Return True if a stage can give a peer away. It keeps at least one peer, and gives no planned peer to a stage
    with more peers.
    """
    ready = sum(worker.ready for worker in crew)
    return ready >= 2 and len(crew) - 1 >= min(replicas, there + 1)


def _moved(worker: Worker) -> Worker:
    """The worker after the move: it counts in its new stage, and it cannot move again."""
    return replace(worker, movable=False, ready=False)


# ---------------------------------------------------------------- an empty stage


def recruit(lineup: Lineup, stage: StageIndex) -> Move | None:
    """The peer that should take up a stage without peers when no peer stands by.

    A peer without the version is preferred, then the peer whose move costs the least. A recent move of the peer does
    not matter here, because the run cannot continue without the stage.
    """
    rates = lineup.rates()
    best: tuple[bool, float, float, Actor] | None = None
    move: Move | None = None
    for source, crew in enumerate(lineup.crews):
        if source == stage or len(crew) < 2:
            continue
        for worker in crew:
            if worker.ready and sum(w.ready for w in crew) < 2:
                continue  # it has the only copy of its stage
            if stage in worker.barred:
                continue
            left = rates[source] - lineup.rate(worker, source)
            worth = (worker.ready, -min(left, lineup.rate(worker, stage)), worker.speed, worker.actor)
            if best is None or worth < best:
                best = worth
                reason = f"moved from stage {source}, which has {len(crew)} replicas: stage {stage} has none"
                move = Move(worker.actor, StageIndex(source), stage, 0.0, 0.0, reason)
    return move
