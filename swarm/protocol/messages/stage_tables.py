"""Who serves which stage in a pass, and which peers are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, StageIndex


@dataclass(frozen=True, slots=True)
class StageTable:
    """Who serves a stage in a pass: numbered; a higher number replaces a lower one whole.

    `assignment[m]` is an index into `roster`. A roster member without microbatches still takes part in the reduce.
    """

    number: int
    roster: tuple[Actor, ...]
    assignment: tuple[int, ...]
    carried: tuple[int, ...] = ()
    """By member, in a run that averages compressed gradients: its place in the roster that decided the step before.

    −1: it has none there, so its residuals are empty (swarm/protocol/residuals.py).
    """
    lines: tuple[int, ...] = ()
    """By member, how fast its line is, kB a second: who has a slow one sums less (swarm/protocol/bucket_owners.py).

    Empty: all sum as much.
    """

    def assignee(self, microbatch: int) -> Actor:
        return self.roster[self.assignment[microbatch]]

    def assigned_to(self, actor: Actor) -> frozenset[Microbatch]:
        if actor not in self.roster:
            return frozenset()
        index = self.roster.index(actor)
        return frozenset(Microbatch(m) for m, who in enumerate(self.assignment) if who == index)

    def set_of(self, actor: Actor) -> int:
        """What is assigned to an actor, as a bit set."""
        return sum(1 << m for m in self.assigned_to(actor))

    def shares(self) -> dict[Actor, tuple[Microbatch, ...]]:
        """What is assigned to each member of the roster, in order: of all of them at once."""
        mine: list[list[Microbatch]] = [[] for _ in self.roster]
        for m, who in enumerate(self.assignment):
            mine[who].append(Microbatch(m))
        return {actor: tuple(those) for actor, those in zip(self.roster, mine, strict=True)}

    def contributions(self) -> tuple[Contribution, ...]:
        """By member. Empty where sums are exact: then it does not matter who has added what."""
        sets = [0] * len(self.carried)
        for m, who in enumerate(self.assignment if sets else ()):
            sets[who] |= 1 << m
        return tuple(Contribution(bits, before) for bits, before in zip(sets, self.carried, strict=True))


NEAR = 2
"""How many stages away from its own a peer is told the tables: those beside it send to it and reduce, those behind them
may pass on what two neighbours cannot send each other. With the whole view everything would grow with all peers."""
UNTOLD = StageTable(0, (), ())
"""In place of the table of a stage that is farther away."""


def is_near(one: int, other: int) -> bool:
    """Return True if peers of a stage are told the table of another, unless for what both hold (`Settings.partner`)."""
    return abs(one - other) <= NEAR


def attempt_under(
    tables: Sequence[StageTable], pass_id: PassId, stage: StageIndex, partner: StageIndex | None
) -> Attempt:
    """What `stage` reduces under these tables. `partner`: the stage that shares parameters with it."""
    return Attempt(pass_id, stage, tables[stage].number, -1 if partner is None else tables[partner].number)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one member of a roster has put into a step whose gradients were averaged compressed."""

    microbatches: int
    """Bit set."""
    carried: int
    """As in StageTable."""
