"""Paging: a part of a list, never more than a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST = 200
"""Entries of one page."""


def page(items: Sequence[T], offset: int, limit: int) -> Sequence[T]:
    start = max(0, offset)
    return items[start : start + max(0, min(limit, MOST))]
