"""The field of a record, or the column of a table, that contains the documents."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from swarm.data.corpus_error import CorpusError

MAX_TEXT = 1 << 28
"""Largest number of characters in a cell of a table, and of bytes in a line of JSON lines. Several copies of each are
in memory at once.
"""
_NAMES_SHOWN = 8
_NAME_SHOWN = 40
"""Characters of a name in a message: a table without a line of names has texts in its first line."""


def text_in(value: Any, place: str) -> str:
    """The text of a field. Datasets often have `null` for a text that is missing: it counts as empty.

    `place`: the file and the place in it, for the error. Raises CorpusError for any other value.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(f"{place}: expected text, got {type(value).__name__} {str(value)[:40]!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{place}: not valid Unicode text ({error.reason} at character {error.start})") from None
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """For an unknown name, what a message adds: the nearest known name, or the first known names if none is near."""
    names = list(known)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"; the nearest one is {_short(near[0])}"
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    return f"; there are {', '.join(map(_short, names[:_NAMES_SHOWN]))}{more}" if names else ""


def _short(name: str) -> str:
    return repr(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")
