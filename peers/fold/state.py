"""RunState: the state of a run at an instant, according to the events up to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from peers.fold import snapshot
from peers.fold.faults import Faults
from peers.fold.links import Links
from peers.fold.members import Members
from peers.fold.people import People
from peers.fold.pipeline import Pipeline
from peers.fold.run import Run
from peers.fold.samples import Results
from peers.fold.work import Work

FORMAT = 7
"""The format of the lines. It is raised when fields change, or what is computed for them. Snapshots of another format
are made again from the log.
"""


@dataclass(slots=True)
class RunState:
    """The state of a run. All its parts have limits, so its memory is bounded. Only `peers.fold.apply` changes it."""

    run: Run = field(default_factory=Run)
    members: Members = field(default_factory=Members)
    pipeline: Pipeline = field(default_factory=Pipeline)
    work: Work = field(default_factory=Work)
    links: Links = field(default_factory=Links)
    faults: Faults = field(default_factory=Faults)
    people: People = field(default_factory=People)
    results: Results = field(default_factory=Results)
    events: int = 0
    """Number of applied events."""
    malformed: int = 0
    """Number of records that did not fit their kind, and were ignored."""

    def to_lines(self) -> Iterator[str]:
        """JSON texts, one after another, generated on demand: take all of them before the next event is applied."""
        yield json.dumps({"format": FORMAT})
        yield from snapshot.to_lines(self)

    @classmethod
    def from_lines(cls, lines: Iterable[str | bytes]) -> Self:
        """The state from the lines of `to_lines`. Raises ValueError for another format."""
        found = iter(lines)
        try:
            head = json.loads(next(found, "null"))
            if head != {"format": FORMAT}:
                raise ValueError(f"a snapshot that begins with {str(head)[:80]}, not with format {FORMAT}")
            return snapshot.from_lines(cls, found)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a snapshot of a run: {error}") from None
