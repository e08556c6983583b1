"""What the uplinks and links of a training pass have to carry: how many of which frames, and how fast they are.

Counted per microbatch of the whole run. Of a stage with replicas each peer sends its share of the frames. What it sends
to average its gradients does not count: it does that when it has nothing else left to send, so that no codec can hide
it (docs/slow-links.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, Direction
from swarm.protocol.ladders import Slot
from swarm.protocol.messages import StageTable


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a peer's speed; None and absent: nothing."""

    seconds_per_microbatch: float | None = None
    uplink: float | None = None
    """Bytes a second: its own limit."""
    links: Mapping[Actor, float] = field(default_factory=dict)
    """Bytes a second that come from each sender."""


@dataclass(frozen=True, slots=True)
class Burden:
    """One uplink, or one link."""

    name: str
    frames: Mapping[Slot, float]
    """Frames that it carries per microbatch of the run."""
    rate: float | None
    """Bytes a second; None: not measured."""


def burdens(tables: Sequence[StageTable], measured: Mapping[Actor, Measured]) -> list[Burden]:
    """Of every peer that sends frames, and of every link between two of them that is measured.

    An uplink carries at least what the fastest of its links does. Who has a limit is taken at its word, since frames
    that share it come in more slowly than it is; unless all come in at less than half of it.
    """
    count = len(tables[0].assignment)
    limits = {actor: known.uplink for actor, known in measured.items() if known.uplink is not None}
    found = []
    for stage, table in enumerate(tables):
        for actor in table.roster:
            share = len(table.assigned_to(actor)) / count
            slots = [(stage + 1, Direction.FORWARD)] if stage + 1 < len(tables) else []
            slots += [(stage, Direction.BACKWARD)] if stage else []
            rate = _fastest(actor, measured)
            if actor in limits:
                rate = limits[actor] if rate is None else min(limits[actor], 2 * rate)
            if slots and share:
                found.append(Burden(f"the uplink of {actor}", dict.fromkeys(slots, share), rate))
    for boundary in range(1, len(tables)):
        before, after = tables[boundary - 1], tables[boundary]
        pairs = zip(before.assignment, after.assignment, strict=True)
        for (one, other), frames in sorted(Counter(pairs).items()):
            here, there = before.roster[one], after.roster[other]
            for sender, receiver, direction in (
                (here, there, Direction.FORWARD),
                (there, here, Direction.BACKWARD),
            ):
                link = measured[receiver].links.get(sender) if receiver in measured else None
                if link is not None and sender not in limits:
                    slot = {(boundary, direction): frames / count}
                    found.append(Burden(f"the link from {sender} to {receiver}", slot, link))
    return found


def pace(tables: Sequence[StageTable], measured: Mapping[Actor, Measured]) -> float | None:
    """Seconds in which the slowest peer computes its share of one microbatch of the run. None: not all are measured."""
    slowest = 0.0
    for table in tables:
        for actor in table.roster:
            seconds = measured[actor].seconds_per_microbatch if actor in measured else None
            share = len(table.assigned_to(actor)) / len(table.assignment)
            if share and seconds is None:
                return None
            slowest = max(slowest, share * (seconds or 0.0))
    return slowest or None


def _fastest(sender: Actor, measured: Mapping[Actor, Measured]) -> float | None:
    return max((m.links[sender] for m in measured.values() if sender in m.links), default=None)
