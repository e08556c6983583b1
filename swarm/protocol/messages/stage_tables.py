"""The tables of a pass: the peers that serve each stage, and the microbatches assigned to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.protocol.ids import Actor, Attempt, Microbatch, PassId, StageIndex


@dataclass(frozen=True, slots=True)
class StageTable:
    """The peers that serve one stage in a pass, and their microbatches. A table with a higher `number` replaces a lower
    one completely.

    `assignment[m]` is the index in `roster` of the peer that computes microbatch `m`. A member of the roster without
    microbatches still takes part in the reduction.
    """

    number: int
    roster: tuple[Actor, ...]
    assignment: tuple[int, ...]
    carried: tuple[int, ...] = ()
    """For each member, in a run that averages compressed gradients: its index in the roster that decided the step
    before.

    −1: it was not in that roster, so its residuals are empty (swarm/protocol/residuals.py).
    """
    lines: tuple[int, ...] = ()
    """For each member, the rate of its link in kB/s. Members with slow links sum fewer buckets
    (swarm/protocol/bucket_owners.py).

    Empty: all members sum equally many.
    """

    def assignee(self, microbatch: int) -> Actor:
        return self.roster[self.assignment[microbatch]]

    def assigned_to(self, actor: Actor) -> frozenset[Microbatch]:
        if actor not in self.roster:
            return frozenset()
        index = self.roster.index(actor)
        return frozenset(Microbatch(m) for m, who in enumerate(self.assignment) if who == index)

    def set_of(self, actor: Actor) -> int:
        """The microbatches assigned to an actor, as a bit set."""
        return sum(1 << m for m in self.assigned_to(actor))

    def shares(self) -> dict[Actor, tuple[Microbatch, ...]]:
        """The microbatches assigned to each member of the roster, in increasing order."""
        mine: list[list[Microbatch]] = [[] for _ in self.roster]
        for m, who in enumerate(self.assignment):
            mine[who].append(Microbatch(m))
        return {actor: tuple(those) for actor, those in zip(self.roster, mine, strict=True)}

    def contributions(self) -> tuple[Contribution, ...]:
        """The members' contributions, in the order of the roster. Empty if sums are exact: then they do not depend on
        the members.
        """
        sets = [0] * len(self.carried)
        for m, who in enumerate(self.assignment if sets else ()):
            sets[who] |= 1 << m
        return tuple(Contribution(bits, before) for bits, before in zip(sets, self.carried, strict=True))


NEAR = 2
"""A peer receives the tables of stages at most this far from its own.

It exchanges frames with the adjacent stages. Peers two stages away may forward messages between two neighbours that
cannot reach each other. If every peer received all tables, every message would grow with the number of peers.
"""
UNTOLD = StageTable(0, (), ())
"""Takes the place of a stage's table that the receiver of a message need not know."""


def is_near(one: int, other: int) -> bool:
    """Return True if peers of one stage receive the tables of the other because of their distance.

    Stages that share parameters receive each other's tables as well (`Settings.partner`).
    """
    return abs(one - other) <= NEAR


def attempt_under(
    tables: Sequence[StageTable], pass_id: PassId, stage: StageIndex, partner: StageIndex | None
) -> Attempt:
    """The reduction attempt of `stage` under these tables. `partner`: the stage that shares parameters with it."""
    return Attempt(pass_id, stage, tables[stage].number, -1 if partner is None else tables[partner].number)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one roster member contributed to a step whose gradients were averaged with compression."""

    microbatches: int
    """The member's microbatches, as a bit set."""
    carried: int
    """The value of `StageTable.carried` for this member."""
