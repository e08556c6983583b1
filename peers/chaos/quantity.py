"""Reads quantities as people write them in a scenario: `50ms`, `80Mbit`, `2%`, `8MB`."""

from __future__ import annotations

import math
import re

import typer

from peers.options import parse_bytes, parse_rate

LONGEST_S = 365.0 * 24 * 3600
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


class QuantityError(ValueError):
    """A text is not such a quantity. The message shows the right form."""


def seconds(value: object) -> float:
    """Read a duration in seconds: `1.5s`, `200ms`, `2min`, `-5min`, or a number."""
    match = re.fullmatch(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h)\s*", str(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    else:
        found = math.nan if match is None else float(match[1]) * _UNITS_S[match[2]]
    if not abs(found) <= LONGEST_S:
        raise QuantityError(f"{value!r} is not a duration of a year at most: write 1.5s, 200ms or 2min")
    return found


def span(value: object) -> float:
    """Read a duration that is not negative, in seconds."""
    found = seconds(value)
    if found < 0:
        raise QuantityError(f"{value!r} is negative")
    return found


def rate(value: object) -> int:
    """Read a rate in bytes/s, such as `80Mbit`."""
    try:
        return parse_rate(str(value))
    except typer.BadParameter as error:
        raise QuantityError(error.message) from None


def size(value: object) -> int:
    """Read a size in bytes, such as `8MB`."""
    try:
        return parse_bytes(str(value))
    except typer.BadParameter as error:
        raise QuantityError(error.message) from None


def share(value: object) -> float:
    """Read a fraction, such as `5%` or 0.05."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*", str(value))
    found = float(match[1]) / (100 if match[2] else 1) if match is not None else -1.0
    if not 0 <= found < 1:
        raise QuantityError(f"{value!r} is not a share from 0 to 1: write 5% or 0.05")
    return found


def count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise QuantityError(f"{value!r} is not a whole number from 1 on")
    return value


def whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise QuantityError(f"{value!r} is not a whole number")
    return value


def factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise QuantityError(f"{value!r} is not a number above 0")
    return float(value)


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise QuantityError(f"{value!r} is not text")
    return value


def yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise QuantityError(f"{value!r} is neither true nor false")
    return value
