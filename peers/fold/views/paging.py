"""Selects the part of a list that fits on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST = 200
"""Maximum number of entries on one page."""


def page(items: Sequence[T], offset: int, limit: int) -> Sequence[T]:
    start = max(0, offset)
    return items[start : start + max(0, min(limit, MOST))]
