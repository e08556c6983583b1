"""The holders of each stage, according to the coordinator's log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peers.chaos.machine import EmulatedMachine, Seen
from swarm.events import LeadershipTaken, PeerJoined, PeerLost

LEADER = "leader"
"""A name that stands for the leading coordinator of a group."""
_STAGE = "stage:"


def stage_named(name: str) -> int | None:
    """The stage of a selector `stage:N`, which stands for all its holders; None for a host's name."""
    number = name.removeprefix(_STAGE)
    return int(number) if name.startswith(_STAGE) and number.isdigit() else None


def leader(coordinators: Sequence[EmulatedMachine]) -> str:
    """The host that took the lead last; in a group of one, the only one."""
    taken = {
        machine.name: max((seen.at for seen in machine.log if isinstance(seen.event, LeadershipTaken)), default=0.0)
        for machine in coordinators
    }
    return max(taken, key=lambda name: taken[name])


def stages_held(coordinator: Iterable[Seen]) -> dict[str, int]:
    """{actor: stage} at the end of this log."""
    held: dict[str, int] = {}
    for seen in coordinator:
        if isinstance(seen.event, PeerJoined | PeerLost):
            held.pop(seen.event.actor, None)
        if isinstance(seen.event, PeerJoined) and seen.event.stage is not None:
            held[seen.event.actor] = seen.event.stage
    return held


def holders(machines: Iterable[EmulatedMachine], coordinator: Iterable[Seen], stage: int) -> tuple[str, ...]:
    """Hosts that run and hold a stage."""
    held = stages_held(coordinator)
    return tuple(m.name for m in machines if m.running and m.lives and held.get(m.lives[-1]) == stage)
