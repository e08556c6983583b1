"""A stage's sums in the reference, when a swarm's replicas have averaged their gradients compressed.

The same arithmetic as in swarm/compute/averaging.py, over whole vectors and written down a second time. Who added what
in a step, and whose residuals counted, is in the decision record. Without a record there is one replica a stage, which
compresses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from peers.replay import ReplayError
from swarm import codecs
from swarm.compute.reduction import BUCKET_ELEMENTS
from swarm.compute.sums import Accumulator, Layout, combine
from swarm.manifest import SumSection
from swarm.protocol.messages import Contribution

_ALONE = (Contribution(-1, -1),)  # all microbatches


class AveragedSums:
    """`begin` a step, `add` its microbatches, take what is `reduced`."""

    def __init__(self, layout: Layout, sums: SumSection) -> None:
        self.layout = layout
        self._sums = sums
        self._codec = codecs.averaging(sums.averaging) if sums.compresses else None
        self._members = [Accumulator(layout, sums)]
        self._contributions: Sequence[Contribution] = _ALONE
        self._shares: list[Tensor | None] = []
        """What compressing each member's share lost in the step before, in the order of its roster. None: nothing."""
        self._total: Tensor | None = None
        """What compressing the sums lost then."""
        self._step = 0

    def begin(self, step: int, contributions: Sequence[Contribution] = ()) -> None:
        """Raises ReplayError for residuals that are not known here."""
        self._step = step
        self._contributions = contributions or _ALONE
        while len(self._members) < len(self._contributions):
            self._members.append(Accumulator(self.layout, self._sums))
        for sums in self._members:
            sums.zero()
        if any(each.carried >= len(self._shares) for each in self._contributions):
            raise ReplayError(
                f"step {step} adds residuals of step {step - 1}, which are not known here: train from version 0"
            )

    def add(self, m: int, gradients: Sequence[Tensor], loss: float | None) -> None:
        """Microbatch `m`, to the sums of the member that had it. Raises SumOverflow, ReplayError."""
        for sums, each in zip(self._members, self._contributions, strict=False):
            if each.microbatches >> m & 1:
                sums.add(gradients, loss, step=self._step)
                return
        raise ReplayError(f"microbatch {m} of step {self._step} is in nobody's sum")

    def reduced(self) -> Tensor:
        """What every replica applies: (layout.length,). Raises SumOverflow, codecs.CodecError."""
        members = [sums.flat for sums in self._members[: len(self._contributions)]]
        if self._codec is None or len(members) == 1:
            self._shares, self._total = [None], None
            return combine(members[0], (), self._sums)
        reduced = torch.full_like(members[0], math.nan)
        shares: list[Tensor] = [torch.zeros(len(flat)) for flat in members]
        total = torch.zeros(self.layout.length)
        end = self.layout.length - self.layout.with_loss
        for bucket, start in enumerate(range(0, end, BUCKET_ELEMENTS)):
            where = slice(start, min(start + BUCKET_ELEMENTS, end))
            crossed = []
            for flat, lost, each in zip(members, shares, self._contributions, strict=True):
                before = self._shares[each.carried] if each.carried >= 0 else None
                crossed.append(_across(self._codec, flat[where], before, where, lost))
            if all(share is not None for share in crossed):
                added = torch.zeros(where.stop - start, dtype=torch.float64)
                for share in crossed:
                    added += share
                before = self._total if self._kept(bucket) else None
                if (both := _across(self._codec, added, before, where, total)) is not None:
                    reduced[where] = both.to(reduced.dtype)
        if self.layout.with_loss:
            loss = sum(flat[-1].item() for flat in members)
            reduced[-1] = loss if math.isfinite(loss) else math.nan
        self._shares, self._total = [*shares], total
        return reduced

    def _kept(self, bucket: int) -> bool:
        """Whether who reduces a bucket has reduced it in the step before."""
        before = self._contributions[bucket % len(self._contributions)].carried
        return before >= 0 and bucket % len(self._shares) == before


def _across(codec: codecs.Codec, values: Tensor, before: Tensor | None, where: slice, lost: Tensor) -> Tensor | None:
    """What a receiver makes of `values` and an earlier loss. What that loses goes to lost[where]. None: not finite."""
    wanted = values.double()
    if before is not None:
        wanted = wanted + before[where]
    wanted = wanted.float()
    if not bool(torch.isfinite(wanted).all()):
        return None
    crossed = codec.decode(codec.encode(wanted), wanted.shape)
    lost[where] = wanted - crossed
    return crossed
