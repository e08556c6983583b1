"""What crosses between peers, and how it is asked for: frames of microbatches, parts and sums of a reduce."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, FrameKey, Key, PartKey, SumKey

Payload = object
"""Opaque to the core: bytes in the real driver, toy numbers in the simulator."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a frame was made from, in a run whose codec builds on earlier visits. Digests of reconstructions, 63 bits.

    0 says none. What the digests are for: `crossings`.
    """

    source: int = 0
    """Of an activation: the input it was computed from. Of a gradient: the activation it was computed with."""
    base: int = 0
    """The payload is the change of this. 0: it is whole."""
    fresh: bool = False
    """A key frame: however it is sent, it owes nothing to an earlier visit."""
    trail: int = 0
    """Of a gradient: a digest of all activations from its boundary on that it was computed with."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Which copies of activations the gradient of a set of microbatches was computed with, in the same runs.

    Sums of 63-bit digests over the microbatches, modulo 2^63.
    """

    inputs: int = 0
    """What came in."""
    sources: int = 0
    """What that was computed from, in the stage before."""
    trails: int = 0
    """The trails of the gradients made here."""
    echoes: int = 0
    """The trails of the gradients that came in."""
    fresh: int = 0
    """Bit m is set when microbatch m came in as a key frame."""


@dataclass(frozen=True, slots=True)
class Want:
    """An actor asks for the frames, parts and sums that it lacks.

    This is the only rule for recovery. It is also the only flow control: a frame moves only when a peer wants it. Parts
    and sums of a reduce are sent without being asked for; only lost ones are wanted.
    """

    keys: tuple[Key, ...]
    bases: tuple[int, ...] = ()
    """Of which base the sender can use a change, for each key (0: of none). Empty: of none at all."""
    again: bool = False
    """It was wanted before and has not come: whoever has yet to make it says so (Pending)."""

    def base(self, index: int) -> int:
        return self.bases[index] if self.bases else 0


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer to a Want that came again: the way is open, and the frames will come when they are made.

    In a deep pipeline most gradients take longer than any deadline that notices a lost frame soon.
    """

    keys: tuple[FrameKey, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    key: FrameKey
    payload: Payload = field(repr=False)
    lineage: Lineage | None = None


@dataclass(frozen=True, slots=True)
class ReducePart:
    """One contributor's share of a bucket. `microbatches` (bit set) lets the reducer check disjoint and complete."""

    key: PartKey
    microbatches: int
    payload: Payload = field(repr=False)
    receipt: Receipt | None = None
    """Of `microbatches`."""


@dataclass(frozen=True, slots=True)
class ReducedPart:
    key: SumKey
    payload: Payload = field(repr=False)
    receipt: Receipt | None = None
    """Of all microbatches."""


WithPayload = Frame | ReducePart | ReducedPart
"""Messages that carry raw bytes, which only the stages they are for can judge."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass `message` on: `origin` and `destination` cannot reach each other."""

    origin: Actor
    destination: Actor
    message: Want | WithPayload
