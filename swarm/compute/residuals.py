"""Residuals of one stage: what compressing lost in the last applied step, and in the attempt to reduce under way.

Those of an attempt are pending until its decision is applied; a void attempt leaves nothing, and the next one computes
from the same held ones again. They are no part of the state: no checkpoint and no other peer ever has them. Which of
them count in a step is said with each order (swarm/protocol/residuals.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from swarm.protocol.ids import Attempt

Held = Mapping[int, Tensor]
"""{bucket: what was lost, fp32}; a bucket that is not there has lost nothing."""


class Residuals:
    """`shares`: of this peer's own share; `sums`: of the buckets that it reduced."""

    def __init__(self) -> None:
        self._version: int | None = None
        """The version that those held belong to. None: nothing is held."""
        self._shares: Held = {}
        self._sums: Held = {}
        self._attempt: Attempt | None = None
        self._pending_shares: dict[int, Tensor] = {}
        self._pending_sums: dict[int, Tensor] = {}

    def share(self, attempt: Attempt, bucket: int, carried: bool) -> Tensor | None:
        """To be added to the own share of `bucket`; None for nothing. Raises LookupError when it is not held."""
        return self._of(self._shares, attempt, bucket) if carried else None

    def sum(self, attempt: Attempt, bucket: int, carried: bool) -> Tensor | None:
        """As `share`, of the sum of `bucket`; None too if another peer has reduced it."""
        return self._of(self._sums, attempt, bucket) if carried else None

    def share_lost(self, attempt: Attempt, bucket: int, lost: Tensor) -> None:
        self._begin(attempt)
        self._pending_shares[bucket] = lost

    def sum_lost(self, attempt: Attempt, bucket: int, lost: Tensor) -> None:
        self._begin(attempt)
        self._pending_sums[bucket] = lost

    def applied(self, attempt: Attempt, *, skipped: bool) -> None:
        """The step of `attempt` is applied: what it left is what the next step may add."""
        left = attempt == self._attempt and not skipped
        self._shares, self._sums = (self._pending_shares, self._pending_sums) if left else ({}, {})
        self._version = attempt.pass_id.step + 1
        self._drop()

    def cancel(self, attempt: Attempt) -> None:
        if attempt == self._attempt:
            self._drop()

    def forget(self) -> None:
        """Another state is loaded."""
        self._version, self._shares, self._sums = None, {}, {}
        self._drop()

    def _of(self, held: Held, attempt: Attempt, bucket: int) -> Tensor | None:
        if self._version != attempt.pass_id.version:
            raise LookupError(
                f"the residuals for version {attempt.pass_id.version} are not here: held are those for {self._version}"
            )
        return held.get(bucket)

    def _begin(self, attempt: Attempt) -> None:
        if attempt != self._attempt:
            self._drop()
            self._attempt = attempt

    def _drop(self) -> None:
        self._attempt, self._pending_shares, self._pending_sums = None, {}, {}
