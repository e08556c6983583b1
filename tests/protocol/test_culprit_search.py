"""The search for a liar accuses nobody honest, whatever the devices of one person do and whenever they do it."""

from __future__ import annotations

import dataclasses
from random import Random

from swarm.protocol.coordinator.audit.culprit_search import Accused, CulpritSearch, Tables, search
from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.coordinator.passes.answer import Answer, Answers
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.ids import Actor

ROSTERS = [[Actor(f"{stage}{place}", 1) for place in range(4)] for stage in range(2)]
EVERYBODY = [actor for roster in ROSTERS for actor in roster]
WEIGHTS = dict.fromkeys(EVERYBODY, 1.0)
RIGHT = Answer("right", 1.0)


class Owners(People):
    """The devices in `theirs` are one person's."""

    def __init__(self, theirs: set[str]) -> None:
        super().__init__()
        self._theirs = theirs

    def of(self, peer: str) -> str:
        return "owner" if peer in self._theirs else peer


class Trials:
    """Attempts at a step of two stages, in which the devices of a person lie now and then."""

    def __init__(self, liars: set[str], how: str, rng: Random) -> None:
        """`how`: what they lie about: their `sketch` or their `sums`."""
        self._liars, self._how, self._rng = liars, how, rng

    def answers(self, tables: Tables) -> Answers:
        found = []
        for table in tables:
            workers = {table.roster[place].peer for place in table.assignment}
            lied = any(self._rng.random() < 0.5 for _ in sorted(workers & self._liars))
            wrong = dataclasses.replace(RIGHT, **({"adds_up": False} if self._how == "sketch" else {"digest": "lie"}))
            found.append(wrong if lied else RIGHT)
        return tuple(found)

    def search(self, first: Tables, again: Answers) -> tuple[Accused, ...]:
        arrivals = {actor: number for number, actor in enumerate(EVERYBODY)}
        began = CulpritSearch(first, (RIGHT, RIGHT), WEIGHTS, frozenset())
        looking = search(began, again, arrivals, Owners(self._liars), 0.0)
        try:
            tables = next(looking)
            while True:
                tables = looking.send(self.answers(tables))
        except StopIteration as found:
            accused: tuple[Accused, ...] = found.value
            return accused


def accused_of(liars: set[str], how: str) -> set[str]:
    """Who is accused in any of many searches."""
    found: set[str] = set()
    wrong = dataclasses.replace(RIGHT, digest="lie")
    for seed in range(3000):
        trials = Trials(liars, how, Random(f"{how} {seed}"))
        accused = trials.search(wire(ROSTERS, WEIGHTS, 4), (wrong, wrong))
        found |= {each.actor.peer for each in accused}
    return found


def test_a_person_with_a_device_in_each_stage_has_nobody_else_accused() -> None:
    """One device lies while others are tried, and the other device is their witness."""
    for how in ("sketch", "sums"):
        liars = {"02", "11"}
        assert accused_of(liars, how) == liars, how


def test_who_misreports_its_contribution_in_one_stage_has_nobody_accused_in_the_other() -> None:
    assert accused_of({"12"}, "sketch") == {"12"}
