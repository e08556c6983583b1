"""The parameters of a viewer's request, parsed from the URL and limited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from peers.dashboard.access import Denied

MOST_LISTED = 200
MOST_POINTS = 4_000
_LONGEST = 128
_GREATEST = 1 << 53  # JavaScript's numbers are exact up to here


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of one request. `at` None: now. `first`, `last`: steps, or unix seconds, depending on the
    topic.
    """

    at: float | None = None
    offset: int = 0
    limit: int = 50
    first: float | None = None
    last: float | None = None
    points: int = 600
    before: float | None = None
    name: str = ""
    sort: str = ""
    q: str = ""
    actor: str = ""
    kind: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str], limit: int = 50) -> Query:
        """Read the parameters from a request. Raises Denied for invalid values. Unknown keys are ignored."""
        for key, text in given.items():
            if len(text) > _LONGEST:
                raise Denied(400, f"{key[:20]} is too long")
        return cls(
            at=_number(given, "at"),
            offset=_count(given, "offset", 0, 10_000_000),
            limit=_count(given, "limit", limit, MOST_LISTED),
            first=_number(given, "first"),
            last=_number(given, "last"),
            points=_count(given, "points", 600, MOST_POINTS),
            before=_number(given, "before"),
            name=given.get("name", ""),
            sort=given.get("sort", ""),
            q=given.get("q", ""),
            actor=given.get("actor", ""),
            kind=given.get("kind", ""),
        )

    @property
    def steps(self) -> tuple[int | None, int | None]:
        """`first` and `last`, as step numbers."""
        first, last = (None if value is None else int(value) for value in (self.first, self.last))
        return first, last


def _number(given: Mapping[str, str], key: str) -> float | None:
    text = given.get(key, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > _GREATEST:
        raise Denied(400, f"{key} is not a number")
    return value


def _count(given: Mapping[str, str], key: str, otherwise: int, most: int) -> int:
    value = _number(given, key)
    if value is None:
        return otherwise
    if value < 0 or value != int(value):
        raise Denied(400, f"{key} is not a whole number of at least 0")
    return min(int(value), most)
