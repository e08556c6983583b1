"""A simulated peer's part in its stage's reduction: shares and sums of buckets, and their compression errors."""

from __future__ import annotations

from typing import Any

from swarm.protocol.ids import Attempt
from swarm.protocol.peer import io as peer_io
from swarm.protocol.sketch import seal_of, written
from swarm.simulation.checks.watch import reduced_digest
from swarm.simulation.faults.lie import LIE
from swarm.simulation.kernel.compute_queue import Priority
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.peer_body import PeerBody
from swarm.simulation.toy.sim_catch_up import Loans
from swarm.simulation.toy.toy_averaging import compressed
from swarm.simulation.toy.toy_model import (
    bucket_share,
    buckets_of,
    checksum_of,
    loss_sum_of,
    shared_buckets,
    shared_digest,
    sketch_of,
    squared_norm_of,
)

_SMALL_S = 0.001


class SimReduce:
    """The reduction of one process. Reduced buckets are in a separate buffer until they are applied."""

    def __init__(self, peer: PeerBody, loans: Loans) -> None:
        self.flips_next = False
        """True if a bit flips in memory in the next bucket that this peer reduces beside a sibling. Replicas find it by
        comparing digests; a peer that reduces alone cannot.
        """
        self._peer = peer
        self._loans = loans
        self._of: Attempt | None = None
        self._buffer: dict[int, int] = {}
        """{bucket: sum} of that attempt."""
        self._residuals: dict[tuple[bool, int], int] = {}
        """{(True for a sum or False for a share, bucket): its compression error in the last applied step}"""
        self._residuals_for: int | None = None
        """The version for which they are used."""
        self._pending: dict[tuple[bool, int], int] = {}
        self._pending_of: Attempt | None = None

    def clear(self) -> None:
        """Another state is held. The buffers of the former one are void."""
        self._of, self._buffer = None, {}
        self._residuals, self._residuals_for = {}, None

    # ------------------------------------------------------------ orders

    def encode_part(self, action: peer_io.EncodePart) -> None:
        if self._begins(action.attempt):
            self._peer.queue.add(Priority.CONTROL, action, self._part_encoded, _SMALL_S)

    def sum_bucket(self, action: peer_io.SumBucket) -> None:
        if self._begins(action.attempt):
            self._peer.queue.add(Priority.CONTROL, action, self._bucket_summed, _SMALL_S)

    def _begins(self, attempt: Attempt) -> bool:
        """Return True if the peer works on the attempt. Raises Violation if the attempt is void."""
        peer = self._peer
        if peer.swallowed("work") or peer.lies("unreduced"):
            return False
        peer.world.watch.passes.reduces(peer, attempt)
        peer.world.on_phase("reduce", peer)
        return True

    def store_sum(self, action: peer_io.StoreSum) -> None:
        peer = self._peer
        peer.world.watch.passes.reduces(peer, action.attempt)
        if self._of != action.attempt:
            self._of, self._buffer = action.attempt, {}
        payload = peer.number(action.payload)
        if self.flips_next and len(peer.core.pass_run.microbatches.table.roster) > 1:
            self.flips_next = False
            payload ^= 1 << peer.world.random.randrange(64)
            peer.world.watch.flips.flipped(action.attempt.pass_id, action.attempt.stage, peer.actor)
        self._buffer[action.bucket] = payload

    def assemble(self, action: peer_io.Assemble) -> None:
        self._peer.world.watch.passes.reduces(self._peer, action.attempt)
        self._peer.queue.add(Priority.CONTROL, action, self._assembled, _SMALL_S)

    def restore(self, action: peer_io.RestoreSums) -> None:
        """Use the sums of a step that was decided without this peer, instead of its own."""
        queue = self._peer.queue
        queue.cancel(lambda of: isinstance(of, peer_io.Forward | peer_io.Backward | peer_io.Weights))
        self._of, self._buffer = action.attempt, self._loans.spooled(action.attempt.pass_id.step)
        queue.add(Priority.CONTROL, action, self._restored, _SMALL_S)

    def cancel(self, action: peer_io.CancelReduce) -> None:
        void = action.attempt
        self._peer.queue.cancel(lambda of: getattr(of, "attempt", None) == void and not isinstance(of, peer_io.Apply))
        if self._of == void:
            self._of, self._buffer = None, {}
        if self._pending_of == void:
            self._pending_of, self._pending = None, {}

    # ------------------------------------------------------------ results

    def sums(self, attempt: Attempt) -> dict[int, int]:
        """{bucket: sum} of `attempt`, which must be complete. Raises Violation."""
        peer = self._peer
        if self._of != attempt or len(self._buffer) != buckets_of(peer.stage_held, self.shared(peer.stage_held)):
            raise Violation("contract", f"{peer.label} needs the sums of {attempt}, but holds those of {self._of}")
        return self._buffer

    def settle(self, action: peer_io.Apply, version: int) -> None:
        """The sums are applied, which gives `version`. Their compression errors become the next step's residuals."""
        left = self._pending_of == action.attempt and not action.decision.skip
        self._residuals, self._residuals_for = (self._pending if left else {}), version

    def shared(self, stage: int) -> int:
        """Number of buckets of a stage that another stage shares."""
        return shared_buckets(self._peer.world.settings, stage)

    def _part_encoded(self, action: peer_io.EncodePart) -> None:
        self._peer.feed(peer_io.PartEncoded(action.attempt, action.bucket, self._share(action)))

    def _bucket_summed(self, action: peer_io.SumBucket) -> None:
        peer = self._peer
        if action.parts:
            total = self._share(action) + sum(map(peer.number, action.parts))
            total = self._compressed(action, total, of_sum=True)
        else:
            total = bucket_share(peer.accumulator, action.bucket)
        if peer.lies("totals"):
            total += LIE
        peer.feed(peer_io.BucketSummed(action.attempt, action.bucket, total))

    def _share(self, action: peer_io.EncodePart | peer_io.SumBucket) -> int:
        peer = self._peer
        first = set(range(peer.world.first_round))
        summed = self._buffer if self._of == action.attempt else {}
        if action.bucket not in first and not first.issubset(summed):
            raise Violation("contract", f"{peer.label} should compute bucket {action.bucket} before the first round")
        return self._compressed(action, bucket_share(peer.accumulator, action.bucket), of_sum=False)

    def _compressed(self, action: peer_io.EncodePart | peer_io.SumBucket, value: int, *, of_sum: bool) -> int:
        """The compressed `value`. Its error becomes a pending residual."""
        peer = self._peer
        if not peer.world.settings.averages_compressed:
            return value
        place = (of_sum, action.bucket)
        if action.carried:
            if self._residuals_for != action.attempt.pass_id.version:
                raise Violation("contract", f"{peer.label} needs residuals in {action.attempt}, which it does not have")
            value += self._residuals.get(place, 0)
        if self._pending_of != action.attempt:
            self._pending_of, self._pending = action.attempt, {}
        crossed, self._pending[place] = compressed(value)
        return crossed

    def _assembled(self, action: peer_io.Assemble) -> None:
        peer, stage = self._peer, self._peer.stage_held
        sums = self.sums(action.attempt)
        ordered = tuple(sums[bucket] for bucket in sorted(sums))
        digest = reduced_digest(stage, sums)
        version = action.attempt.pass_id.version
        spoilt = peer.world.watch.nonfinite.is_spoilt(version) or peer.lies("spoilt")
        peer.world.watch.reduced(stage, digest, ordered)
        own = [bucket_share(peer.accumulator, bucket) for bucket in sorted(sums)]
        sketches = self._sketches(own, ordered) if peer.world.settings.screened else {}
        peer.feed(
            peer_io.Assembled(
                action.attempt,
                digest,
                squared_norm_of(stage, ordered),
                loss_sum_of(stage, peer.world.settings.stages, ordered),
                finite=peer.world.watch.nonfinite.is_finite(stage, action.attempt.pass_id) and not self._is_spoilt(),
                shared=shared_digest(ordered[: self.shared(stage)]),
                state=checksum_of(peer.state),
                spoilt=spoilt,
                unusable=spoilt or peer.world.watch.nonfinite.is_unusable(version),
                **sketches,
            )
        )
        if peer.alive:
            peer.world.on_phase("prepared", peer)

    def _sketches(self, own: list[int], everything: tuple[int, ...]) -> dict[str, Any]:
        """The fields of Assembled for the screen: sketches of the peer's own sums and of all sums."""
        shared = self.shared(self._peer.stage_held)
        parts = [slice(shared, None), *([slice(shared)] if shared else [])]
        told = [sketch_of(own[part]) for part in parts]
        if self._peer.lies("sketch"):
            told[0] = (told[0][0] ^ 1, *told[0][1:])
        adds_up = not self._peer.world.settings.averages_compressed
        seal = seal_of(sketch_of(everything[part]) for part in parts) if adds_up else 0
        return {"sketch": b"".join(map(written, told)), "seal": seal}

    def _is_spoilt(self) -> bool:
        """Return True if a contributor to these sums has added a non-finite value, or a peer of the pass has sent
        one.
        """
        world, table = self._peer.world, self._peer.core.pass_run.microbatches.table
        for actor, member in world.by_actor.items():
            if not isinstance(member, PeerBody) or member.lie is None or not member.is_liar:
                continue
            if member.lie.about == "nan" and actor in table.roster and table.assigned_to(actor):
                return True
            if member.lie.about == "unsendable" and world.watch.passes.is_in_pass_of(member, self._peer):
                return True
        return False

    def _restored(self, action: peer_io.RestoreSums) -> None:
        digest = reduced_digest(self._peer.stage_held, self.sums(action.attempt))
        self._peer.feed(peer_io.Assembled(action.attempt, digest, 0.0, 0.0))
