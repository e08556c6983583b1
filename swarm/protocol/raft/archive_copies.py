"""The checkpoints that a member of a group of coordinators holds, and those that it has yet to copy.

A checkpoint counts once a majority of the members holds it. The leader collects it from peers and offers it. The other
members copy it, from the leader or from whoever holds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarm.protocol.coordinator.io import CollectCheckpoint
from swarm.protocol.ids import Actor, Term
from swarm.protocol.messages import ArchivedEntry, Offer
from swarm.protocol.raft.raft import Raft

_KEPT = 4
"""Number of checkpoints held by this member that it remembers."""


class ArchiveCopies:
    """The copies of member `actor`. `holds`: {version: digests of the archive's files, by stage}."""

    def __init__(
        self, actor: Actor, group: tuple[Actor, ...], heartbeat_s: float, holds: Mapping[int, tuple[str, ...]]
    ) -> None:
        self._actor = actor
        self._group = group
        self._heartbeat_s = heartbeat_s
        self._holds = dict(holds)
        self._orders: dict[int, CollectCheckpoint] = {}
        """The last order for each checkpoint that is to be fetched."""
        self._pending: Offer | None = None
        """A checkpoint that this leader holds and a majority does not hold yet."""
        self._copy_at = 0.0

    def forget_pending(self) -> None:
        """Forget the checkpoint that is offered: leadership began or ended here."""
        self._pending = None

    def roll_back(self, version: int) -> None:
        """Forget later versions than this one."""
        self._holds = {held: files for held, files in self._holds.items() if held <= version}
        self._pending = None

    def collect(self, order: CollectCheckpoint) -> list[CollectCheckpoint]:
        """Return the leader's order if it may be carried out now. It must wait while an older checkpoint is stored
        here but not at a majority yet; the core repeats it.
        """
        if self._pending is not None and order.version > self._pending.version:
            return []
        self._orders[order.version] = order
        return [order]

    def stored(self, version: int, term: Term, record: Raft, *, leads: bool) -> None:
        """Record that an ordered checkpoint is on this member's disk."""
        order = self._orders.pop(version, None)
        if order is None or term < record.standing.rolled_back_in:
            return
        self._holds[version] = order.digests
        self._holds = {held: self._holds[held] for held in sorted(self._holds)[-_KEPT:]}
        archived = record.prospect().archived
        if leads and (archived is None or archived.version < version):
            self._pending = Offer(version, term, order.digests)

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
            done, self._pending = self._pending, None
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
        if now < self._copy_at and offer.version in self._orders:
            return []
        self._copy_at = now + 4 * self._heartbeat_s
        stages, proven = len(offer.digests), record.standing.last_sound
        order = CollectCheckpoint(offer.version, offer.term, (holders,) * stages, offer.digests, True, proven)
        self._orders[offer.version] = order
        return [order]
