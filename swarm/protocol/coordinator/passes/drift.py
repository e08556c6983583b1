"""Replicas of a stage whose states differ: whom of them the others believe.

What a replica holds should be the same bits as its siblings'. If it is not, its memory has changed by itself, or its
machine computes otherwise. Every step says what it was computed with (`Prepared.state`), so that is found before the
gradients count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class Drift:
    """In one stage. The step is done again without those who must reload their state."""

    stage: int
    believed: tuple[Actor, ...]
    reload: tuple[Actor, ...]
    reason: str


def drift_of(stage: int, states: Mapping[Actor, Hashable], rank: Callable[[Actor], tuple[float, ...]]) -> Drift | None:
    """None if all are the same. `rank`: of two that are as many, the lower one is believed."""
    groups: dict[Hashable, list[Actor]] = defaultdict(list)
    for actor, state in states.items():
        groups[state].append(actor)
    if len(groups) < 2:
        return None
    most = max(map(len, groups.values()))
    candidates = [group for group in groups.values() if len(group) == most]
    believed = min(candidates, key=lambda group: min((rank(actor), actor) for actor in group))
    if len(candidates) == 1:
        reason = f"{most} of {len(states)} replicas hold the same"
    else:
        first = min(believed, key=lambda actor: (rank(actor), actor))
        reason = f"nobody can tell who is right: {first}, which is in the stage for longest, is believed"
    others = tuple(actor for actor in states if actor not in believed)
    return Drift(stage, tuple(believed), others, reason)
