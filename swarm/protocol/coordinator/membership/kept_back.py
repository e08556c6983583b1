"""Stages whose checkpoints nobody gets: their peers have saved none, or give theirs to nobody.

Perhaps their disks or lines are slow or broken, or they lie. They do their work, so they keep it. But if they leave, or
at the end of the run, their state is lost. So another peer may take a place beside them, and fetch their state.
"""

from __future__ import annotations

from collections.abc import Collection


class KeptBack:
    """The peers that hold these stages, by stage. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._peers: dict[int, frozenset[str]] = {}
        self._arrived: dict[int, float] = {}
        """For each stage, when bytes of one of its checkpoints last arrived."""

    def add(self, stage: int, peers: Collection[str]) -> None:
        """These peers hold the stage, and its checkpoints do not arrive. Peers that come later are not suspected."""
        self._peers.setdefault(stage, frozenset(peers))

    def clear(self) -> None:
        """A checkpoint of every stage is in the archive, or the run goes back."""
        self._peers.clear()

    def arrives(self, stage: int, now: float) -> None:
        """Bytes of a checkpoint of the stage arrive."""
        self._arrived[stage] = now

    def arrived_since(self, stage: int, since: float) -> bool:
        return self._arrived.get(stage, since) > since

    def has(self, peer: str) -> bool:
        return any(peer in peers for peers in self._peers.values())
