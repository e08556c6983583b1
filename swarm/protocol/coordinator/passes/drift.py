"""Finds replicas of a stage whose states differ, and chooses the replicas that are believed.

All replicas of a stage should hold bit-identical states. If they do not, a memory error occurred, or a machine computes
differently. Every Prepared contains a checksum of the state that the step was computed with (`Prepared.state`), so a
difference is found before the step's gradients are applied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class Drift:
    """The replicas of one stage whose states differ. The step is repeated without those that must load their state
    again.
    """

    stage: int
    believed: tuple[Actor, ...]
    reload: tuple[Actor, ...]
    reason: str


def drift_of(stage: int, states: Mapping[Actor, Hashable], members: Members) -> Drift | None:
    """Find replicas whose states differ. Return None if all states are equal.

    The state that the replicas of most people hold is believed (`People`). If several states have equally many people,
    the one with the replica of the lowest `Member.standing` is believed.
    """
    groups: dict[Hashable, list[Actor]] = defaultdict(list)
    for actor, state in states.items():
        groups[state].append(actor)
    if len(groups) < 2:
        return None
    votes, rank = members.people.votes(actor.peer for actor in states), members.standing
    counts = [sum(votes[actor.peer] for actor in group) for group in groups.values()]
    candidates = [group for group, count in zip(groups.values(), counts, strict=True) if count == max(counts)]
    believed = min(candidates, key=lambda group: min((rank(actor), actor) for actor in group))
    if len(candidates) == 1:
        whose = f", which are those of most of the {sum(counts)} people" if 1 < sum(counts) < len(states) else ""
        reason = f"{len(believed)} of {len(states)} replicas hold the same state{whose}"
    else:
        first = min(believed, key=lambda actor: (rank(actor), actor))
        reason = f"it is unknown which state is right: {first}, which has held the stage for longest, is believed"
    others = tuple(actor for actor in states if actor not in believed)
    return Drift(stage, tuple(believed), others, reason)
