"""Counts of graphs, each made once. A count takes a tenth of a second and more; its result never changes.

A forked process knows what its parent knows. A parent that reads what its children `tell` spares later children counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Bytes of memory for a microbatch, without the parameters."""

    held: int
    """Bytes of its graph between forward and backward."""
    in_backward: int
    """Additional bytes at the peak of the backward, with the gradients."""
    gradients: int
    """Bytes of the gradients of all parameters."""


class KnownCounts:
    """The counts that this process knows."""

    def __init__(self) -> None:
        self._known: dict[str, GraphCounts] = {}
        self.tell: Callable[[bytes], None] | None = None
        """Called with a line of at most 200 bytes for each new count. `learn` reads it."""

    def of(self, subject: tuple[str | int | bool, ...], count: Callable[[], GraphCounts]) -> GraphCounts:
        """The known counts of a subject; if there are none, the result of `count`. `subject`: everything on which the
        counts depend.
        """
        key = hashlib.sha256(json.dumps(subject).encode()).hexdigest()
        if key not in self._known:
            self._known[key] = count()
            if self.tell is not None:
                self.tell(json.dumps([key, *astuple(self._known[key])]).encode() + b"\n")
        return self._known[key]

    def learn(self, line: bytes) -> None:
        """Add a count that another process has made."""
        key, *sizes = json.loads(line)
        self._known[key] = GraphCounts(*sizes)


KNOWN = KnownCounts()
"""Of this process."""
