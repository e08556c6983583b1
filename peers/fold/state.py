"""RunState: all that is true of a run at an instant, as the events up to it say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from peers.fold import snapshot
from peers.fold.faults import Faults
from peers.fold.links import Links
from peers.fold.members import Members
from peers.fold.people import People
from peers.fold.pipeline import Pipeline
from peers.fold.run import Run
from peers.fold.samples import Results
from peers.fold.work import Work

FORMAT = 3
"""Of the JSON. Raised when fields change: snapshots of another format are made anew from the log."""


@dataclass(slots=True)
class RunState:
    """Bounded: see the limits of each part. Changed by `peers.fold.apply` alone."""

    run: Run = field(default_factory=Run)
    members: Members = field(default_factory=Members)
    pipeline: Pipeline = field(default_factory=Pipeline)
    work: Work = field(default_factory=Work)
    links: Links = field(default_factory=Links)
    faults: Faults = field(default_factory=Faults)
    people: People = field(default_factory=People)
    results: Results = field(default_factory=Results)
    events: int = 0
    """That were applied."""
    malformed: int = 0
    """Records that could not be what their kind says, and were passed over."""

    def to_json(self) -> dict[str, Any]:
        """JSON values. They share lists and mappings with this state: write them before the next event."""
        return {"format": FORMAT, "state": snapshot.dump(self)}

    def json_pieces(self) -> Iterator[str]:
        """The text of `to_json`, part by part."""
        yield f'{{"format":{FORMAT},"state":'
        yield from snapshot.pieces(self)
        yield "}"

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """The state that `to_json` made `raw` of; takes it over. Raises ValueError for another format."""
        if raw.get("format") != FORMAT:
            raise ValueError(f"a snapshot of format {raw.get('format')!r}, not {FORMAT}")
        try:
            return snapshot.load(cls, raw["state"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no snapshot of a run: {error}") from None
