"""Residuals of one stage: the compression errors of the last applied step and of the present attempt to reduce.

Residuals of an attempt are pending until its decision is applied. If the attempt is cancelled, they are dropped, and
the next attempt starts from the same held residuals. They are not part of the state: neither checkpoints nor other
peers have them. Each order says which residuals to add (swarm/protocol/residuals.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from swarm.protocol.ids import Attempt

Held = Mapping[int, Tensor]
"""{bucket: residual, fp32}; a missing bucket has no residual."""


class Residuals:
    """The residuals of a peer's own shares, and of the sums of the buckets that it reduces."""

    def __init__(self) -> None:
        self._version: int | None = None
        """The version to which the held residuals belong; None: there are none."""
        self._shares: Held = {}
        self._sums: Held = {}
        self._attempt: Attempt | None = None
        self._pending_shares: dict[int, Tensor] = {}
        self._pending_sums: dict[int, Tensor] = {}

    def share(self, attempt: Attempt, bucket: int, carried: bool) -> Tensor | None:
        """The residual to add to our own share of `bucket`; None: nothing to add. Raises LookupError if it is missing.

        `carried`: whether residuals are added in this attempt.
        """
        return self._of(self._shares, attempt, bucket) if carried else None

    def sum(self, attempt: Attempt, bucket: int, carried: bool) -> Tensor | None:
        """Like `share`, for the sum of `bucket`; also None if another peer reduced it in the previous step."""
        return self._of(self._sums, attempt, bucket) if carried else None

    def share_lost(self, attempt: Attempt, bucket: int, lost: Tensor) -> None:
        self._begin(attempt)
        self._pending_shares[bucket] = lost

    def sum_lost(self, attempt: Attempt, bucket: int, lost: Tensor) -> None:
        self._begin(attempt)
        self._pending_sums[bucket] = lost

    def applied(self, attempt: Attempt, *, skipped: bool) -> None:
        """Call after the step of `attempt` is applied: its pending residuals become those for the next step."""
        left = attempt == self._attempt and not skipped
        self._shares, self._sums = (self._pending_shares, self._pending_sums) if left else ({}, {})
        self._version = attempt.pass_id.step + 1
        self._drop()

    def cancel(self, attempt: Attempt) -> None:
        if attempt == self._attempt:
            self._drop()

    def forget(self) -> None:
        """Call after another state is loaded: drop all residuals."""
        self._version, self._shares, self._sums = None, {}, {}
        self._drop()

    def _of(self, held: Held, attempt: Attempt, bucket: int) -> Tensor | None:
        if self._version != attempt.pass_id.version:
            raise LookupError(
                f"the residuals for version {attempt.pass_id.version} are missing; those for {self._version} are here"
            )
        return held.get(bucket)

    def _begin(self, attempt: Attempt) -> None:
        if attempt != self._attempt:
            self._drop()
            self._attempt = attempt

    def _drop(self) -> None:
        self._attempt, self._pending_shares, self._pending_sums = None, {}, {}
