"""A search for the peers that computed a step wrongly. It begins when the step gave another result without some of its
peers.

The search computes the step repeatedly, each time with one change. First, one half of a stage's replicas is left out,
then the other half: this shows which stages are at fault. Then each replica of such a stage computes all of the stage
alone. The result of most people is believed (`People`). A replica whose result differs is tried again with one half of
the other stages' replicas, and then with the other half, so that no peer is accused of another peer's fault. Each time,
two believed people must get the same result, so that no person is the only witness.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import Answer, Answers
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import StageTable

Tables = tuple[StageTable, ...]


@dataclass(frozen=True, slots=True)
class CulpritSearch:
    """The result of a step, with the tables and weights that it was computed with."""

    tables: Tables
    answers: Answers
    weights: Mapping[Actor, float]
    served: frozenset[str]
    """Peers that had a part in the step at any time."""

    @property
    def adds_up(self) -> bool:
        """True if the contributions that the peers report add up to the result in every stage."""
        return all(answer.adds_up for answer in self.answers)

    @property
    def assigned(self) -> set[str]:
        """Peers that had work, also those that were alone in their stage."""
        return {table.roster[place].peer for table in self.tables for place in table.assignment}

    @property
    def workers(self) -> set[str]:
        """Peers that computed microbatches and have a sibling that could have computed them."""
        return {table.roster[place].peer for table in self._several for place in table.assignment}

    @property
    def idle(self) -> set[str]:
        """Peers that had no work although they have siblings."""
        return {actor.peer for table in self._several for actor in table.roster} - self.workers

    @property
    def _several(self) -> list[StageTable]:
        return [table for table in self.tables if len(table.roster) > 1]


@dataclass(frozen=True, slots=True)
class Accused:
    actor: Actor
    stage: StageIndex
    reason: str


Search = Generator[Tables, Answers, tuple[Accused, ...]]
"""A generator: it yields the tables of the next trial, receives the trial's result, and returns the accused peers."""


def same(one: Answers, two: Answers, tolerance: float) -> bool:
    return all(a.is_like(b, tolerance) for a, b in zip(one, two, strict=True))


def search(
    first: CulpritSearch, again: Answers, arrivals: Mapping[Actor, int], people: People, tolerance: float
) -> Search:
    """Search for the culprits. `first`: the result of all peers; `again`: the result without some of them.

    `arrivals`: the order in which peers joined. If both results are the same, the search looks for peers that make the
    result non-finite, or report sketches that do not add up.
    """
    tables = first.tables
    several = [stage for stage, table in enumerate(tables) if len(table.roster) > 1]
    if same(first.answers, again, tolerance):
        suspected = [stage for stage in several if not _sound(first.answers[stage])]
    elif len(several) == 1:
        suspected = several
    else:
        suspected = []
        for stage in several:
            for which in (0, 1):
                answers = yield _with(tables, stage, _half(first, which, people)[stage])
                if not same(answers, first.answers, tolerance):
                    suspected.append(stage)
                    break
    accused: list[Accused] = []
    for stage in suspected:
        # peers found in one stage are left out of the next stage's trials, where their lies would accuse others
        accused += yield from _among(_without(first, accused), stage, arrivals, people, tolerance)
    return tuple(accused)


def _among(
    first: CulpritSearch, stage: int, arrivals: Mapping[Actor, int], people: People, tolerance: float
) -> Generator[Tables, Answers, list[Accused]]:
    """Find the peers whose numbers differ from those of most people with replicas of `stage`."""
    tables = first.tables
    groups: list[tuple[Answers, list[Actor]]] = []
    roster = sorted(tables[stage].roster, key=lambda actor: arrivals.get(actor, len(arrivals)))
    for actor in roster:
        answers = _of(stage, (yield _with(tables, stage, _alone(tables[stage], actor))))
        for known, actors in groups:
            if same(known, answers, tolerance):
                actors.append(actor)
                break
        else:
            groups.append((answers, [actor]))
    votes = people.votes(actor.peer for actor in roster)

    def count(group: tuple[Answers, list[Actor]]) -> Fraction:
        return sum((votes[actor.peer] for actor in group[1]), Fraction(0))

    groups.sort(
        key=lambda group: (-count(group), not all(map(_sound, group[0])))
    )  # of equal groups, the one whose members joined first
    if len(groups) == 1 or (count(groups[0]) == count(groups[1]) and len(roster) > 2):
        return []
    believed = groups[0][1]
    witnesses = [devices[0] for devices in people.together(actor.peer for actor in believed)]
    one, *others = [actor for actor in believed if actor.peer in witnesses]
    other = others[0] if others else one
    if len(roster) == 2:
        reason = f"its numbers differ from those of {believed[0]}, which joined earlier; it is unknown which are right"
    else:
        reason = f"its numbers differ from those of {len(believed)} other replicas of stage {stage}"
    accused = []
    for actor in roster:
        if actor not in believed and (yield from _confirmed(first, stage, actor, (one, other), people, tolerance)):
            accused.append(Accused(actor, StageIndex(stage), reason))
    return accused


def _confirmed(
    first: CulpritSearch,
    stage: int,
    suspect: Actor,
    witnesses: tuple[Actor, Actor],
    people: People,
    tolerance: float,
) -> Generator[Tables, Answers, bool]:
    """Return True if the suspect's result differs from the witnesses', and the witnesses agree, with either half of the
    other stages' replicas.

    `witnesses`: actors of two people, or the same actor twice if no other is believed.
    """
    for which in (0, 1):
        half, found = _half(first, which, people), []
        for actor in (suspect, *witnesses):
            found.append(_of(stage, (yield _with(half, stage, _alone(half[stage], actor)))))
        if same(found[0], found[1], tolerance) or not same(found[1], found[2], tolerance):
            return False
    return True


def _of(stage: int, answers: Answers) -> Answers:
    """`answers`, in which only `stage` can have contributions that do not add up: replicas of `stage` cannot cause this
    in other stages.
    """
    return tuple(each if here == stage else replace(each, adds_up=True) for here, each in enumerate(answers))


def _without(first: CulpritSearch, accused: Sequence[Accused]) -> CulpritSearch:
    """The same step without the accused. A stage in which no peer would be left keeps its roster."""
    if not accused:
        return first
    gone = {each.actor for each in accused}
    rosters = [tuple(actor for actor in table.roster if actor not in gone) or table.roster for table in first.tables]
    return replace(first, tables=wire(rosters, first.weights, len(first.tables[0].assignment)))


def _half(first: CulpritSearch, which: int, people: People) -> Tables:
    """The tables of the step with one half of the people only. A stage without replicas of that half keeps all its
    replicas.

    A person is in the same half in all stages. `which`: the half, 0 or 1.
    """
    rosters, side_of = [], dict[str, int]()
    for table in first.tables:
        groups = people.together(actor.peer for actor in table.roster)
        taken = [side_of[person] for group in groups if (person := people.of(group[0])) in side_of]
        for person in (people.of(group[0]) for group in groups):
            if person not in side_of:
                side_of[person] = int(taken.count(0) > taken.count(1))
                taken.append(side_of[person])
        rosters.append(
            tuple(actor for actor in table.roster if side_of[people.of(actor.peer)] == which) or table.roster
        )
    return wire(rosters, first.weights, len(first.tables[0].assignment))


def _sound(answer: Answer) -> bool:
    return answer.finite and answer.adds_up


def _alone(table: StageTable, actor: Actor) -> StageTable:
    """The table in which `actor` computes all microbatches."""
    return StageTable(0, (actor,), (0,) * len(table.assignment))


def _with(tables: Tables, stage: int, table: StageTable) -> Tables:
    """These tables with another table for one stage. All numbers are 0, because a search uses tables that never
    change.
    """
    fresh = [replace(other, number=0) for other in tables]
    fresh[stage] = table
    return tuple(fresh)
