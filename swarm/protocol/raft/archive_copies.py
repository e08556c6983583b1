"""The checkpoints that a member of a group of coordinators holds, and those that it has yet to copy.

A checkpoint counts once a majority of the members holds it. The leader collects it from peers and offers it. The other
members copy it, from the leader or from whoever holds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarm.protocol.coordinator.io import ArchiveStored, CollectCheckpoint
from swarm.protocol.ids import Actor
from swarm.protocol.messages import ArchivedEntry, Offer
from swarm.protocol.raft.raft import Raft

_KEPT = 4
"""Number of checkpoints held by this member that it remembers."""
_PATIENCE = 4
"""Step budgets that the other members have at first to copy a checkpoint before a newer one may replace it."""


class ArchiveCopies:
    """The copies of member `actor`. `holds`: {version: digests of the archive's files, by stage}."""

    def __init__(
        self,
        actor: Actor,
        group: tuple[Actor, ...],
        heartbeat_s: float,
        step_budget_s: float,
        holds: Mapping[int, tuple[str, ...]],
    ) -> None:
        self._actor = actor
        self._group = group
        self._heartbeat_s = heartbeat_s
        self._holds = dict(holds)
        self._ordered: set[int] = set()
        """The checkpoints that are to be fetched."""
        self._pending: Offer | None = None
        """A checkpoint that this leader holds and a majority does not hold yet."""
        self._pending_since = 0.0
        self._least_patience_s = self._patience_s = _PATIENCE * step_budget_s
        """For so long, the pending checkpoint is not replaced. The time doubles with each that is, because the links
        of the other members may be slow.
        """
        self._copy_at = 0.0

    def forget_pending(self) -> None:
        """Forget the checkpoint that is offered: leadership began or ended here, or it is void or at a majority."""
        self._pending = None
        self._patience_s = self._least_patience_s

    def roll_back(self, version: int) -> None:
        """Forget later versions than this one."""
        self._holds = {held: files for held, files in self._holds.items() if held <= version}
        self.forget_pending()

    def collect(self, order: CollectCheckpoint, now: float) -> list[CollectCheckpoint]:
        """Return the leader's order if it may be carried out now. It must wait while an older checkpoint, or other
        copies of the same one, are stored here but not at a majority yet; the core repeats it. It does not wait for
        ever, because the others may be unable to copy what is stored here.
        """
        pending = self._pending
        if pending is not None and now - self._pending_since < self._patience_s:
            same = order.version == pending.version and order.digests == pending.digests
            if order.version >= pending.version and not same:
                return []
        self._ordered.add(order.version)
        return [order]

    def stored(self, done: ArchiveStored, record: Raft, now: float, *, leads: bool) -> None:
        """Record that an ordered checkpoint is on this member's disk."""
        self._ordered.discard(done.version)
        standing = record.standing
        counts = any((each.version, each.digests) == (done.version, done.digests) for each in standing.checkpoints)
        if done.term < standing.rolled_back_in and not counts:
            return  # the rollback may have undone it
        self._holds[done.version] = done.digests
        self._holds = {held: self._holds[held] for held in sorted(self._holds)[-_KEPT:]}
        archived = record.prospect().archived
        if leads and (archived is None or archived.version < done.version):
            self._wait_for_copies(Offer(done.version, done.term, done.digests), now)

    def _wait_for_copies(self, offer: Offer, now: float) -> None:
        """The leader holds a checkpoint that the others are to copy."""
        before, self._pending = self._pending, offer
        if before is not None and (before.version, before.digests) == (offer.version, offer.digests):
            return
        self._pending_since = now
        if before is not None:
            self._patience_s *= 2

    def offer(self, record: Raft, now: float) -> list[CollectCheckpoint]:
        """The leader's part: offer its newest checkpoint, and propose the entry once a majority holds it. Return what
        the leader has to copy itself.
        """
        orders: list[CollectCheckpoint] = []
        archived = record.standing.archived
        newest = None if archived is None else Offer(archived.version, archived.term, archived.digests)
        if newest is not None and self._holds.get(newest.version) != newest.digests:
            others = tuple(member for member in self._group if member != self._actor)
            orders = self._copy(newest, others, record, now)
            newest = None
        offer = self._pending or newest
        if offer != record.offer:
            record.offer = offer
            record.holders = {self._actor}
        if self._pending is not None and len(record.holders) >= record.majority:
            done = self._pending
            self.forget_pending()
            if done.term >= record.prospect().rolled_back_in:
                record.propose(ArchivedEntry(record.ballot, done.version, done.term, done.digests))
        return orders

    def follow(self, record: Raft, now: float) -> list[CollectCheckpoint]:
        """The part of the other members: report that this member holds the offered checkpoint. Return what it has to
        copy.
        """
        offer = record.offered
        record.held = None
        if offer is not None and self._holds.get(offer.version) == offer.digests:
            record.held = offer
        elif offer is not None and record.leader is not None:
            return self._copy(offer, (record.leader,), record, now)
        return []

    def _copy(self, offer: Offer, holders: tuple[Actor, ...], record: Raft, now: float) -> list[CollectCheckpoint]:
        if now < self._copy_at and offer.version in self._ordered:
            return []
        self._copy_at = now + 4 * self._heartbeat_s
        stages, proven = len(offer.digests), record.standing.last_sound
        order = CollectCheckpoint(offer.version, offer.term, (holders,) * stages, offer.digests, True, proven)
        self._ordered.add(offer.version)
        return [order]
