"""Checks the fields of a log record. No field is trusted, because peers report many of them.

A record with wrong fields is ignored as a whole (`Malformed`); texts and lists are cut to size.
"""

from __future__ import annotations

import math
import sys
from typing import Any

Record = dict[str, Any]

MOST_TEXT = 400
"""Number of characters of a text that are kept."""
MOST_NAME = 80
"""Maximum number of characters in the name of an actor, a pass or a key."""
MOST_STAGES = 4096
MOST_ROSTER = 65_536
LARGEST = 2**62
"""Larger numbers are considered false. SQLite stores no integer above 2^63."""


class Malformed(ValueError):
    """A record whose fields do not fit its kind."""


def text(record: Record, key: str, most: int = MOST_TEXT) -> str:
    value = record.get(key)
    if type(value) is not str:
        raise Malformed(key)
    return value if len(value) <= most else value[: most - 1] + "…"


def name(record: Record, key: str) -> str:
    """Read the name of an actor, a pass or a key. Texts that are too long for a name are refused."""
    value = record.get(key)
    if type(value) is not str or len(value) > MOST_NAME:
        raise Malformed(key)
    return value


def number(record: Record, key: str) -> float:
    return a_number(record.get(key))


def count(record: Record, key: str, least: int = 0) -> int:
    return a_count(record.get(key), least)


def stage(record: Record, key: str = "stage") -> int:
    value = a_count(record.get(key))
    if value >= MOST_STAGES:
        raise Malformed(key)
    return value


def listing(record: Record, key: str, most: int) -> list[Any]:
    """Read a list of at most `most` items. A longer list is refused."""
    value = record.get(key)
    if type(value) is not list or len(value) > most:
        raise Malformed(key)
    return value


def names(record: Record, key: str, most: int) -> list[str]:
    found = listing(record, key, most)
    for value in found:
        if type(value) is not str or len(value) > MOST_NAME:
            raise Malformed(key)
    return list(found)


def texts(record: Record, key: str, most: int) -> list[str]:
    found = listing(record, key, most)
    for value in found:
        if type(value) is not str:
            raise Malformed(key)
    return [value[:MOST_TEXT] for value in found]


def counts(record: Record, key: str, most: int) -> list[int]:
    return [a_count(value) for value in listing(record, key, most)]


def numbers(record: Record, key: str, most: int) -> list[float]:
    return [a_number(value) for value in listing(record, key, most)]


def a_number(value: object) -> float:
    """Read a finite number."""
    if type(value) is float:
        if -1e18 < value < 1e18:  # this refuses NaN too, and keeps products of three such numbers finite
            return value
    elif type(value) is int and -(10**18) < value < 10**18:
        return float(value)
    raise Malformed("no number")


def a_count(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < LARGEST:
        raise Malformed("no count")
    return value


def loss(record: Record, key: str) -> float | None:
    """Read a loss. None if it is not finite, as in a step that overflowed. JSON has no NaN, but Python's writer
    does.
    """
    value = record.get(key)
    if type(value) is float and not math.isfinite(value):
        return None
    return a_number(value)


def flat(value: object, keys: int) -> dict[str, str | float]:
    """Read a mapping of texts to texts and finite numbers, of at most `keys` keys. Other entries are left out."""
    if type(value) is not dict:
        raise Malformed("no mapping")
    kept: dict[str, str | float] = {}
    for key, item in value.items():
        if len(kept) >= keys:
            break
        if type(key) is not str or len(key) > 40:
            continue
        if type(item) is str:
            kept[sys.intern(key)] = sys.intern(item[:MOST_NAME])  # thousands of records share these strings
        elif (type(item) is int and abs(item) < LARGEST) or (type(item) is float and math.isfinite(item)):
            kept[sys.intern(key)] = item
    return kept


def step_of(pass_id: str) -> int:
    """The step in the name of a pass, `term:step` or `term:step+index`."""
    _, colon, rest = pass_id.partition(":")
    digits = rest.partition("+")[0]
    if not colon or not digits.isdecimal() or not digits.isascii() or len(digits) > 18:
        raise Malformed(pass_id)
    return int(digits)


def peer_of(actor: str) -> str:
    """The peer's part of an actor's name, without the number of its start."""
    return actor.rpartition(".")[0] or actor
