"""What peers tell for people to see. The coordinator decides nothing by it."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor, PassId, StageIndex

WORK_KINDS = ("forward", "backward", "waiting", "reducing", "applying", "recovering")
"""What a peer's time goes into, as events name it."""
LINK_KINDS = ("forward", "backward", "sums", "state", "control")
"""What it sends, as events name it."""
MAX_SPANS = 64
MAX_LINK_USES = 32
MAX_TRAITS = 16


@dataclass(frozen=True, slots=True)
class Trait:
    """Something about a machine: a text, or a number if there is one."""

    name: str
    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Of a peer's time. `start` and `length`: milliseconds, from when it heard Open."""

    kind: int
    """Index into WORK_KINDS."""
    microbatch: int
    """The first; −1: none."""
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What the sender has to do with another actor."""

    other: Actor
    rate: float | None = None
    """Bytes a second at which the other's frames come in."""
    rtt_s: float | None = None
    via: Actor | None = None
    """Who passes frames on; None: they go straight."""
    sent: tuple[int, ...] = ()
    """Bytes to the other since the last report, by LINK_KINDS."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a peer did in one training pass, as it measured that itself: from when it heard Open to the next one."""

    pass_id: PassId
    stage: StageIndex
    seconds: tuple[float, ...]
    """By WORK_KINDS."""
    spans: tuple[Span, ...] = ()
    usage: tuple[Figure, ...] = ()
    links: tuple[LinkUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a peer tells for people to see. Nothing is decided by it, and nobody misses it when it is lost."""

    actor: Actor
    machine: tuple[Trait, ...] = ()
    """What it runs on; empty: as told before."""
    work: Work | None = None
