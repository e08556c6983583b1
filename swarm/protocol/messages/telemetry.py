"""What peers report for people to see. No decision of the coordinator depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor, PassId, StageIndex

WORK_KINDS = ("forward", "backward", "waiting", "reducing", "applying", "recovering")
"""Activities of a peer, by their names in events."""
LINK_KINDS = ("forward", "backward", "sums", "state", "padding", "control")
"""Kinds of data that a peer sends, by their names in events."""
MAX_SPANS = 64
MAX_LINK_USES = 32
MAX_TRAITS = 16
MAX_TROUBLE = 600
"""Largest length of `Telemetry.trouble`, in characters."""


@dataclass(frozen=True, slots=True)
class Trait:
    """A property of a machine, as text or, if possible, as a number."""

    name: str
    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A period of a peer's time. `start` and `length` are in milliseconds, from the time when the peer received
    Open.
    """

    kind: int
    """An index into WORK_KINDS."""
    microbatch: int
    """The first microbatch of the period; −1: none."""
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The sender's traffic with another actor."""

    other: Actor
    rate: float | None = None
    """Rate in bytes per second at which frames arrive from the other actor."""
    rtt_s: float | None = None
    via: Actor | None = None
    """The actor that forwards frames between the two; None: they are sent directly."""
    sent: tuple[int, ...] = ()
    """Bytes sent to the other actor since the last report, by LINK_KINDS."""


@dataclass(frozen=True, slots=True)
class Work:
    """A peer's own measurements of one training pass, from one Open to the next."""

    pass_id: PassId
    stage: StageIndex
    seconds: tuple[float, ...]
    """Seconds spent on each of WORK_KINDS."""
    spans: tuple[Span, ...] = ()
    usage: tuple[Figure, ...] = ()
    links: tuple[LinkUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a peer reports for people to see. No decision depends on it, and its loss does no harm."""

    actor: Actor
    machine: tuple[Trait, ...] = ()
    """Properties of the peer's machine. Empty: the same as reported before."""
    work: Work | None = None
    trouble: str = ""
    """A trouble of the peer in words, such as a state that no donor sends. Empty: nothing to report."""
