"""The data that peers send each other, and the requests for it: frames of microbatches, parts and sums of a
reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, FrameKey, Key, PartKey, SumKey

Payload = object
"""Opaque to the core: bytes in the real driver, toy numbers in the simulator."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """How a frame was computed. Used in runs whose codec encodes changes relative to earlier visits.

    All values except `fresh` are 63-bit digests of reconstructed tensors; 0 means none. `swarm.protocol.lineage`
    explains their use.
    """

    source: int = 0
    """For an activation: the digest of the input from which it was computed. For a gradient: the digest of the
    activation with which it was computed.
    """
    base: int = 0
    """Digest of the base: the payload is the change relative to it. 0: the payload is whole."""
    fresh: bool = False
    """True for a key frame, which does not depend on an earlier visit. (Other frames depend on one even if they are
    sent whole.)
    """
    trail: int = 0
    """For a gradient: a digest of all activations that it was computed with, from its boundary to the last stage."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A summary of the copies of activations with which the gradients of a set of microbatches were computed. Used in
    the same runs as `Lineage`.

    Except for `fresh`, each value is a sum of 63-bit digests over the microbatches, modulo 2^63.
    """

    inputs: int = 0
    """Sum of the digests of the activations that this stage received."""
    sources: int = 0
    """Sum of the digests of the inputs from which the stage before computed those activations."""
    trails: int = 0
    """Sum of the `Lineage.trail` of the gradients that this stage computed."""
    echoes: int = 0
    """Sum of the `Lineage.trail` of the gradients that this stage received."""
    fresh: int = 0
    """Bit m is set if microbatch m arrived as a key frame."""


@dataclass(frozen=True, slots=True)
class Want:
    """An actor asks for the frames, parts and sums that it lacks.

    This is the only rule for recovery. It is also the only flow control: a frame is sent only if a peer wants it. Parts
    and sums of a reduction are sent without a Want; a peer wants only lost ones.
    """

    keys: tuple[Key, ...]
    bases: tuple[int, ...] = ()
    """For each key, the digest of the base that the sender of the Want has, so that it can decode a change relative to
    this base. 0: it has none. Empty: it has none for any key.
    """
    again: bool = False
    """True if the keys were wanted before and did not arrive. A receiver that has not computed them yet answers with
    Pending.
    """

    def base(self, index: int) -> int:
        return self.bases[index] if self.bases else 0


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer to a repeated Want: the link works, and the frames will be sent as soon as they are computed.

    In a deep pipeline, most gradients arrive later than the deadline for a repeated Want, which is short so that lost
    frames are detected quickly.
    """

    keys: tuple[FrameKey, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    key: FrameKey
    payload: Payload = field(repr=False)
    lineage: Lineage | None = None


@dataclass(frozen=True, slots=True)
class ReducePart:
    """One contributor's part of a bucket. From `microbatches`, the reducer checks that the parts are disjoint and
    complete.

    `microbatches`: a bit set.
    """

    key: PartKey
    microbatches: int
    payload: Payload = field(repr=False)
    receipt: Receipt | None = None
    """The receipt of `microbatches`."""


@dataclass(frozen=True, slots=True)
class ReducedPart:
    key: SumKey
    payload: Payload = field(repr=False)
    receipt: Receipt | None = None
    """The receipt of all microbatches of the step."""


WithPayload = Frame | ReducePart | ReducedPart
"""Messages that carry raw bytes, whose content only a peer of the receiving stage can check."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Asks the receiver to forward `message`, because `origin` and `destination` cannot reach each other."""

    origin: Actor
    destination: Actor
    message: Want | WithPayload
    signature: bytes = field(default=b"", repr=False, compare=False)
    """The origin's signature. The drivers make it and check it, not the cores."""
