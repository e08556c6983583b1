"""How the frames of one peer in one training pass depend on earlier visits to the same samples.

A key frame does not depend on an earlier visit. Any other frame is the change relative to its base: the activation of
the visit before, as the receiver decoded it, which both ends keep. Only the sender's memory decides whether a frame is
a key frame. The receiver names its base in the Want. If the sender has another base, it sends the same values as a
whole frame. So a repeated frame, to any receiver, never changes the computed result.

Peers with different bases compute different results, and a step must not mix them: if two neighbours die in one step,
the second may have computed with another copy of an activation than the first. The receipts detect this: stages that
computed with the same copies have matching receipts (`mismatch`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

from swarm.protocol.ids import BaseKey, Direction, End, FrameKey, Key, Microbatch, StepNumber
from swarm.protocol.messages import Lineage, Receipt

DIGEST_BITS = 63
_MASK = (1 << DIGEST_BITS) - 1
_NONE = Lineage()


class Crossings:
    """The lineage of one peer's frames in one pass.

    `received`, `sent`: digests of the bases of the visit before, by microbatch. Both are empty in a run without bases.
    `mutual` False: only the sender uses the bases, and every frame is whole.
    """

    def __init__(
        self,
        visit: StepNumber | None = None,
        received: Mapping[Microbatch, int] | None = None,
        sent: Mapping[Microbatch, int] | None = None,
        *,
        mutual: bool = True,
    ) -> None:
        self.receipt: Receipt | None = None
        """Receipt of all microbatches accumulated so far; None while no frame with a digest has crossed."""
        self._visit = visit
        self._mutual = mutual
        self._bases = {End.RECEIVED: dict(received or {}), End.SENT: dict(sent or {})}
        self._inputs: dict[Microbatch, Lineage] = {}
        self._gradients: dict[Microbatch, Lineage] = {}
        self._sent: dict[Microbatch, int] = {}
        self._left: dict[tuple[End, Microbatch], int] = {}

    # ------------------------------------------------------------ frames that come

    def hints(self, keys: Sequence[Key]) -> tuple[int, ...]:
        """The bases to name in a Want of these keys, 0 for none. The sender may send the change relative to the named
        base.
        """
        known = self._bases[End.RECEIVED]
        hints = tuple(
            known.get(key.microbatch, 0) if isinstance(key, FrameKey) and key.direction is Direction.FORWARD else 0
            for key in keys
        )
        return hints if any(hints) else ()

    def accepts(self, m: Microbatch, lineage: Lineage | None) -> bool:
        """Return True if an activation is whole, or relative to the base that this peer has."""
        return lineage is None or lineage.base in (0, self._bases[End.RECEIVED].get(m, 0))

    def arrived(self, m: Microbatch, lineage: Lineage | None) -> None:
        """An activation is accepted."""
        self._inputs[m] = lineage or _NONE

    def gradient_arrived(self, m: Microbatch, lineage: Lineage | None) -> None:
        self._gradients[m] = lineage or _NONE

    # ------------------------------------------------------------ orders to the compute thread

    def decoded_with(self, m: Microbatch) -> BaseKey | None:
        """The base to which the activation of `m` is relative. None: the activation is whole."""
        return self._key(m, End.RECEIVED) if self._inputs.get(m, _NONE).base else None

    def encoded_with(self, m: Microbatch) -> BaseKey | None:
        """The base relative to which the output of `m` is encoded. None: it is encoded as a key frame."""
        return self._key(m, End.SENT) if m in self._bases[End.SENT] else None

    def _key(self, m: Microbatch, end: End) -> BaseKey:
        assert self._visit is not None
        return BaseKey(self._visit, m, end)

    # ------------------------------------------------------------ results of the compute thread

    def forwarded(self, m: Microbatch, received: int, sent: int) -> Lineage | None:
        """The output of `m` is computed; return its lineage. `received`, `sent`: digests of the input and of the output
        as the next stage decodes it.
        """
        if not sent:
            return None
        self._sent[m] = sent
        base = self._bases[End.SENT].get(m, 0)
        return Lineage(source=received, base=base if self._mutual else 0, fresh=not base)

    def accumulated(self, m: Microbatch, received: int) -> Lineage | None:
        """Microbatch `m` is in the accumulator, or will be. Return the lineage of its gradient for the stage before."""
        arrived, gradient = self._inputs.get(m, _NONE), self._gradients.get(m, _NONE)
        sent = self._sent.get(m, 0)
        if not received and not sent:
            return None
        trail = _hash(received, gradient.trail)
        told = Receipt(
            inputs=_hash(m, received),
            sources=_hash(m, arrived.source),
            trails=_hash(m, trail),
            echoes=_hash(m, gradient.trail),
            fresh=int(arrived.fresh) << m,
        )
        self.receipt = total((self.receipt, told))
        if received and self._mutual:
            self._left[End.RECEIVED, m] = received
        if sent and gradient.source == sent:  # otherwise the next stage used the copy of another peer
            self._left[End.SENT, m] = sent
        return Lineage(source=received, trail=trail)

    def forget(self, m: Microbatch) -> None:
        """Microbatch `m` was given up."""
        for known in (self._inputs, self._gradients, self._sent):
            known.pop(m, None)

    def left(self) -> Mapping[tuple[End, Microbatch], int]:
        """The digests of the frames of this pass, which become the bases for the next visit."""
        return self._left


def total(receipts: Iterable[Receipt | None]) -> Receipt | None:
    """The receipt of the union of disjoint sets of microbatches, from the receipts of the sets."""
    known = [receipt for receipt in receipts if receipt is not None]
    if not known:
        return None
    fresh = 0
    for receipt in known:
        fresh |= receipt.fresh
    return Receipt(
        inputs=sum(receipt.inputs for receipt in known) & _MASK,
        sources=sum(receipt.sources for receipt in known) & _MASK,
        trails=sum(receipt.trails for receipt in known) & _MASK,
        echoes=sum(receipt.echoes for receipt in known) & _MASK,
        fresh=fresh,
    )


def mismatch(receipts: Sequence[Receipt | None]) -> int | None:
    """Given every stage's receipt of a step, return the first boundary whose two ends used different copies; None: no
    boundary.
    """
    for boundary in range(1, len(receipts)):
        before, after = receipts[boundary - 1] or Receipt(), receipts[boundary] or Receipt()
        if after.sources != before.inputs or after.trails != before.echoes:
            return boundary
    return None


def _hash(*values: int) -> int:
    """A hash of 63 bits, never 0: 0 means none."""
    raw = hashlib.blake2b(struct.pack(f"<{len(values)}Q", *values), digest_size=8).digest()
    return (int.from_bytes(raw, "little") & _MASK) or 1
