"""What crosses the boundaries of one peer in one training pass, as far as it is built on earlier visits.

A key frame owes nothing to an earlier visit; other frames are the change since the base, the reconstruction that both
ends kept of the visit before. Whether a frame is a key frame depends on its sender's memory alone. The receiver says in
its Want which base it has; if that is not the sender's, the same reconstruction is sent whole. So a frame that is sent
again, and to whomever, never changes what is computed.

Peers that remember differently compute differently, and a step must not mix the two: of two peers that die beside each
other in one step, the second may have computed with another copy of an activation than the first. The receipt shows it:
stages that computed with the same copies have receipts that match (`mismatch`).
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
    """`received`, `sent`: digests of the bases of the visit before, by microbatch. All empty in a run without bases.

    `mutual` False: the sender alone builds on them, and every frame is whole.
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
        """Of all microbatches accumulated so far; None while nothing with a digest has crossed."""
        self._visit = visit
        self._mutual = mutual
        self._bases = {End.RECEIVED: dict(received or {}), End.SENT: dict(sent or {})}
        self._inputs: dict[Microbatch, Lineage] = {}
        self._gradients: dict[Microbatch, Lineage] = {}
        self._sent: dict[Microbatch, int] = {}
        self._left: dict[tuple[End, Microbatch], int] = {}

    # ------------------------------------------------------------ frames that come

    def hints(self, keys: Sequence[Key]) -> tuple[int, ...]:
        """What to say in a Want of these keys: the base that each may be sent as a change of, 0 for none."""
        known = self._bases[End.RECEIVED]
        hints = tuple(
            known.get(key.microbatch, 0) if isinstance(key, FrameKey) and key.direction is Direction.FORWARD else 0
            for key in keys
        )
        return hints if any(hints) else ()

    def accepts(self, m: Microbatch, lineage: Lineage | None) -> bool:
        """Whether an activation is whole, or a change of the very base that is held here."""
        return lineage is None or lineage.base in (0, self._bases[End.RECEIVED].get(m, 0))

    def arrived(self, m: Microbatch, lineage: Lineage | None) -> None:
        """An activation is taken."""
        self._inputs[m] = lineage or _NONE

    def gradient_arrived(self, m: Microbatch, lineage: Lineage | None) -> None:
        self._gradients[m] = lineage or _NONE

    # ------------------------------------------------------------ what the compute thread is told

    def decoded_with(self, m: Microbatch) -> BaseKey | None:
        """The base that the activation of `m` is a change of; None: it is whole."""
        return self._key(m, End.RECEIVED) if self._inputs.get(m, _NONE).base else None

    def encoded_with(self, m: Microbatch) -> BaseKey | None:
        """The base that the output of `m` is to be a change of; None: a key frame."""
        return self._key(m, End.SENT) if m in self._bases[End.SENT] else None

    def _key(self, m: Microbatch, end: End) -> BaseKey:
        assert self._visit is not None
        return BaseKey(self._visit, m, end)

    # ------------------------------------------------------------ what it has computed

    def forwarded(self, m: Microbatch, received: int, sent: int) -> Lineage | None:
        """The lineage of the computed activation. `received`, `sent`: digests of the reconstructions in and out."""
        if not sent:
            return None
        self._sent[m] = sent
        base = self._bases[End.SENT].get(m, 0)
        return Lineage(source=received, base=base if self._mutual else 0, fresh=not base)

    def accumulated(self, m: Microbatch, received: int) -> Lineage | None:
        """`m` is in the sums, or will be: the lineage of its gradient for the stage before."""
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
        if sent and gradient.source == sent:  # else the next stage has used a copy that another peer made
            self._left[End.SENT, m] = sent
        return Lineage(source=received, trail=trail)

    def forget(self, m: Microbatch) -> None:
        """`m` is given up."""
        for known in (self._inputs, self._gradients, self._sent):
            known.pop(m, None)

    def left(self) -> Mapping[tuple[End, Microbatch], int]:
        """Digests of what the next visit may build on."""
        return self._left


def total(receipts: Iterable[Receipt | None]) -> Receipt | None:
    """Of disjoint sets of microbatches."""
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
    """Given every stage's receipt of a step: the first boundary whose two ends used different copies."""
    for boundary in range(1, len(receipts)):
        before, after = receipts[boundary - 1] or Receipt(), receipts[boundary] or Receipt()
        if after.sources != before.inputs or after.trails != before.echoes:
            return boundary
    return None


def _hash(*values: int) -> int:
    """63 bits, never 0: that says none."""
    raw = hashlib.blake2b(struct.pack(f"<{len(values)}Q", *values), digest_size=8).digest()
    return (int.from_bytes(raw, "little") & _MASK) or 1
