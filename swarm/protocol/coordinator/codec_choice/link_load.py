"""The loads of the uplinks and links in a training pass: the frames that they carry, and their rates.

Loads are counted per microbatch of the whole run. Each replica of a stage sends its share of the frames. The traffic of
averaging gradients is left out: a peer averages when it has no more frames to send, so no codec can hide that traffic
(docs/slow-links.md).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.protocol.codec_ladder import Slot
from swarm.protocol.ids import Actor, Direction
from swarm.protocol.messages import StageTable


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured speeds of a peer. None or absent: unknown."""

    seconds_per_microbatch: float | None = None
    uplink: float | None = None
    """The peer's own upload limit in bytes/s."""
    links: Mapping[Actor, float] = field(default_factory=dict)
    """Bytes/s received from each sender."""


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """The load of one uplink, or of one link."""

    name: str
    frames: Mapping[Slot, float]
    """Number of frames per microbatch of the run, by boundary and direction."""
    rate: float | None
    """Bytes/s; None: not measured."""


def itself(actor: Actor) -> str:
    """The owner of a peer, if each peer is a person."""
    return actor.peer


def burdens(
    tables: Sequence[StageTable], measured: Mapping[Actor, Measured], person: Callable[[Actor], str] = itself
) -> list[LinkLoad]:
    """The loads of every peer that sends frames, and of every measured link between two of them.

    An uplink carries at least the rate of its second fastest link, of those to its siblings and to the peers that get
    its frames. Of the links to the peers of one person, only the fastest counts (`person`: the owner of a peer), so one
    person's false report does not fill the uplink with large frames. If only one person has measured it, its word
    counts.

    If a peer reports an upload limit, this limit counts instead, because each of several frames that share the uplink
    seems slow. But if the limit is more than twice that rate, twice that rate counts.
    """
    limits = {actor: known.uplink for actor, known in measured.items() if known.uplink is not None}
    carried = _carried(tables, measured, person)
    return [*_uplinks(tables, carried, limits), *_links(tables, measured, limits)]


def pace(
    tables: Sequence[StageTable], measured: Mapping[Actor, Measured], person: Callable[[Actor], str] = itself
) -> float | None:
    """Seconds that the slowest stage needs for one microbatch of the run. None: in some stage no peer is measured.

    A stage is as slow as most of its people report: the median of the times that their peers need for their shares.
    `person`: the owner of a peer. Peers that are not measured are left out, or one could prevent a choice by silence.
    """
    slowest = 0.0
    for table in tables:
        times: dict[str, float] = {}
        for actor, share in _shares(table):
            seconds = measured[actor].seconds_per_microbatch if actor in measured else None
            if seconds is not None:
                owner = person(actor)
                times[owner] = max(share * seconds, times.get(owner, 0.0))
        if not times:
            return None
        slowest = max(slowest, sorted(times.values())[len(times) // 2])
    return slowest or None


def _carried(
    tables: Sequence[StageTable], measured: Mapping[Actor, Measured], person: Callable[[Actor], str]
) -> dict[Actor, float]:
    """For each measured sender, the bytes/s that its uplink carries at least (`burdens`)."""
    receivers = {actor: set(table.roster) - {actor} for table in tables for actor in table.roster}
    for before, after in itertools.pairwise(tables):
        for one, other in set(zip(before.assignment, after.assignment, strict=True)):
            receivers[before.roster[one]].add(after.roster[other])
            receivers[after.roster[other]].add(before.roster[one])
    carried = {}
    for sender, those in receivers.items():
        rates: dict[str, float] = {}
        for receiver in those:
            rate = measured[receiver].links.get(sender) if receiver in measured else None
            if rate is not None:
                owner = person(receiver)
                rates[owner] = max(rate, rates.get(owner, 0.0))
        if rates:
            carried[sender] = sorted(rates.values())[-2:][0]
    return carried


def _uplinks(
    tables: Sequence[StageTable], rates: Mapping[Actor, float], limits: Mapping[Actor, float]
) -> Iterator[LinkLoad]:
    for stage, table in enumerate(tables):
        slots = [(stage + 1, Direction.FORWARD)] if stage + 1 < len(tables) else []
        slots += [(stage, Direction.BACKWARD)] if stage else []
        for actor, share in _shares(table) if slots else ():
            carried = rates.get(actor)
            if actor in limits:
                carried = limits[actor] if carried is None else min(limits[actor], 2 * carried)
            yield LinkLoad(f"the uplink of {actor}", dict.fromkeys(slots, share), carried)


def _links(
    tables: Sequence[StageTable], measured: Mapping[Actor, Measured], limits: Mapping[Actor, float]
) -> Iterator[LinkLoad]:
    for boundary, (before, after) in enumerate(itertools.pairwise(tables), 1):
        pairs = Counter(zip(before.assignment, after.assignment, strict=True))
        for (one, other), frames in sorted(pairs.items()):
            here, there = before.roster[one], after.roster[other]
            both = ((here, there, Direction.FORWARD), (there, here, Direction.BACKWARD))
            for sender, receiver, direction in both:
                carried = measured[receiver].links.get(sender) if receiver in measured else None
                if carried is not None and sender not in limits:
                    carries = {(boundary, direction): frames / len(before.assignment)}
                    yield LinkLoad(f"the link from {sender} to {receiver}", carries, carried)


def _shares(table: StageTable) -> list[tuple[Actor, float]]:
    """The actors with microbatches, and each actor's fraction of all microbatches."""
    counts = Counter(table.assignment)
    return [(table.roster[who], counts[who] / len(table.assignment)) for who in sorted(counts)]
