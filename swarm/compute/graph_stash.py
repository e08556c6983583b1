"""The autograd graphs of the microbatches in flight, kept between forward and backward as far as memory allows.

A graph that was not kept is computed again from the order of its forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from swarm.protocol.ids import Microbatch
from swarm.protocol.peer.io import Forward


@dataclass(frozen=True, slots=True)
class Graph:
    """The autograd graph of a forward, kept for its backward."""

    source: Tensor | None
    """The leaf whose gradient is sent to the previous stage; None at stage 0."""
    output: Tensor


@dataclass(slots=True)
class KeptGraph:
    """One microbatch in flight."""

    order: Forward
    """The order of the forward, from which it can be computed again."""
    graph: Graph | None


class GraphStash:
    """The microbatches in flight: their orders, and their graphs as far as `budget_bytes` allows."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._usual = 0
        """Largest number of graphs kept at once so far."""
        self._graph_bytes: int | None = None  # of one graph: all microbatches of a run have one shape
        self._most: int | None = None
        """Largest number of graphs after an out-of-memory error; None: as many as fit into the budget."""
        self._kept: dict[Microbatch, KeptGraph] = {}

    def measured(
        self, run: Callable[[], Graph], measure: Callable[[Callable[[], Graph]], tuple[Graph, int]]
    ) -> tuple[Graph, int]:
        """The graph from `run`, and its bytes of memory. Only the first graph is measured."""
        if self._graph_bytes is not None:
            return run(), self._graph_bytes
        graph, self._graph_bytes = measure(run)
        return graph, self._graph_bytes

    def fits(self, beside: int) -> bool:
        """Whether `beside` bytes fit into the budget in addition to the kept graphs."""
        return self._count * (self._graph_bytes or 0) + beside <= self.budget_bytes

    def has_room(self, beside: int) -> bool:
        """Whether one more graph and `beside` other bytes fit into the budget."""
        return self.fits(beside + (self._graph_bytes or 0))

    def keep(self, microbatch: Microbatch, graph: Graph, nbytes: int, action: Forward, beside: int) -> bool:
        """Keep the graph if there is room for it and for `beside` other bytes. Returns whether it was kept."""
        graphs = self._count
        fits = self.fits(beside + nbytes) and (self._most is None or graphs < self._most)
        self._kept[microbatch] = KeptGraph(action, graph if fits else None)
        self._usual = max(self._usual, graphs + fits)
        return fits

    def halve(self) -> tuple[int, int]:
        """Drop all graphs and halve the limit. Returns (most graphs kept at once so far, new limit)."""
        for kept in self._kept.values():
            kept.graph = None
        before, self._most = self._usual, self._usual // 2
        self._usual = 0
        return before, self._most

    @property
    def _count(self) -> int:
        return sum(kept.graph is not None for kept in self._kept.values())

    def get(self, microbatch: Microbatch) -> KeptGraph | None:
        return self._kept.get(microbatch)

    def pop(self, microbatch: Microbatch) -> None:
        self._kept.pop(microbatch, None)

    def clear(self) -> None:
        self._kept.clear()
