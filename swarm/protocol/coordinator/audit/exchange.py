"""An audit that leaves no peer out: each replica's part of the step is computed again by a sibling.

It takes as long as a step, because all replicas take part. Leaving out half of them takes at least twice as long. Each
replica sends a sketch of its own sums, whose signs follow from the digest of the reduced bytes. So if a step gives the
same bytes again, both sketches of a part use the same signs, and they are equal if the part is equal. A replica that
adds the same wrong numbers in both attempts changes the sketches of two parts, although it does not change the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from swarm.protocol.coordinator.audit.culprit_search import CulpritSearch, Tables
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import OwnSums
from swarm.protocol.ids import Actor, Pair
from swarm.protocol.messages import StageTable

LONGEST = 2.0
"""An exchange may take a stage at most this many times as long as before. Otherwise leaving out half of the replicas is
faster.
"""
_TRIES = 16
"""Number of random orders that are tried for each stage; the fastest is used. Also the number of rotations compared."""

Doers = tuple[tuple[Actor, ...], ...]
"""For each stage and each microbatch, the actor that computes it."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The peers whose parts a sibling has computed again, with the same or a different result."""

    right: frozenset[str]
    wrong: frozenset[str]


def exchange(
    first: CulpritSearch,
    rosters: Sequence[Sequence[Actor]],
    weights: Mapping[Actor, float],
    blocked: frozenset[Pair],
    probed: frozenset[Actor],
    people: People,
    draw: Callable[[str], int],
) -> Doers:
    """Assign the work of `first` so that each part of a stage with siblings is computed by a peer of another person.

    * `rosters`: for each stage, the actors that can take part now.
    * `weights`: relative speeds, > 0.
    * `blocked`: pairs of actors that cannot reach each other.
    * `probed`: actors that get at most one microbatch.
    * `draw`: returns a secret number for a text.

    The result is empty if there is no such assignment, or if the step would take too long with it.
    """
    doers: list[tuple[Actor, ...]] = []
    for stage, (table, roster) in enumerate(zip(first.tables, rosters, strict=True)):
        parts = {actor: len(part) for actor, part in table.shares().items() if part}
        if not parts.keys() <= set(roster):
            return ()
        if len(roster) == 1:
            doers.append(tuple(map(table.assignee, range(len(table.assignment)))))
            continue
        usual = max(count / weights[actor] for actor, count in parts.items())
        best: tuple[float, dict[Actor, Actor]] | None = None
        for number in range(_TRIES):
            new = _turned(roster, lambda actor: draw(f"exchange {stage} {number} {actor}"))  # noqa: B023
            if any(people.of(one.peer) == people.of(new[one].peer) for one in parts):
                continue
            if any(count > 1 and new[one] in probed for one, count in parts.items()):
                continue
            seconds = max(count / weights[new[one]] for one, count in parts.items())
            if best is None or seconds < best[0]:
                best = seconds, new
        if best is None or best[0] > LONGEST * usual:
            return ()
        doers.append(tuple(best[1][table.assignee(m)] for m in range(len(table.assignment))))
    pairs = (pair for one, two in pairwise(doers) for pair in zip(one, two, strict=True))
    return () if any(Pair(pair) in blocked for pair in pairs) else tuple(doers)


def _turned(roster: Sequence[Actor], order: Callable[[Actor], int]) -> dict[Actor, Actor]:
    """Map each actor to the next one in the given order, and the last one to the first."""
    turn = sorted(roster, key=order)
    return dict(zip(turn, [*turn[1:], turn[0]], strict=True))


def dealt(wired: Tables, doers: Doers) -> Tables:
    """The tables `wired` with another assignment: `doers` says which actor computes each microbatch."""
    return tuple(_dealt(table, those) for table, those in zip(wired, doers, strict=True))


def _dealt(table: StageTable, doers: Sequence[Actor]) -> StageTable:
    place = {actor: number for number, actor in enumerate(table.roster)}
    return replace(table, assignment=tuple(place[actor] for actor in doers))


def dealt_otherwise(wired: Tables, first: Tables) -> Tables:
    """The tables `wired`, changed so that peers get as few as possible of the microbatches that they had in `first`.

    A peer that computes other microbatches cannot repeat a lie about its old ones. The assignments of all stages are
    shifted by the same number of microbatches, so the same pairs of peers are neighbours as in `wired`.
    """
    count = len(wired[0].assignment)

    def again(turn: int) -> int:
        """Number of microbatches that would be computed by the same peers as before."""
        pairs = zip(wired, first, strict=True)
        return sum(new.assignee((m + turn) % count) == old.assignee(m) for new, old in pairs for m in range(count))

    turn = min(range(min(count, _TRIES)), key=again)
    return tuple(replace(each, assignment=each.assignment[turn:] + each.assignment[:turn]) for each in wired)


def compare(
    first: Tables,
    again: Tables,
    first_sums: Sequence[Sequence[OwnSums]],
    sums_again: Sequence[Sequence[OwnSums]],
) -> Compared:
    """Compare the parts of two attempts that gave the same total. A part that was divided differently in the second
    attempt is in neither set.
    """
    right, wrong = set[str](), set[str]()
    for one, two, ours, theirs in zip(first, again, first_sums, sums_again, strict=True):
        told, told_again = ({each.actor: each.told for each in sums} for sums in (ours, theirs))
        parts, parts_again = one.shares(), two.shares()
        for actor, part in parts.items():
            if not part:
                continue
            doer = two.assignee(part[0])
            known = told.get(actor, b""), told_again.get(doer, b"")
            if doer == actor or parts_again[doer] != part or not all(known):
                continue
            (right if known[0] == known[1] else wrong).add(actor.peer)
    return Compared(frozenset(right), frozenset(wrong))
