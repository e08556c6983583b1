"""Reads a table of a scenario. If a key is unknown or a value is invalid, the error names the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar, overload

T = TypeVar("T")
D = TypeVar("D")


class ScenarioError(ValueError):
    """A scenario that cannot be played; the message names the key, and the nearest known one."""


class Table:
    """A table that is being read. `take` the keys one by one, then `close`: keys that were not taken are errors."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, Mapping):
            raise ScenarioError(f"{where} is {raw!r}, not a table")
        self._raw = dict(raw)
        self._known: list[str] = []
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    @overload
    def take(self, key: str, read: Callable[[object], T]) -> T | None: ...
    @overload
    def take(self, key: str, read: Callable[[object], T], default: D) -> T | D: ...
    def take(self, key: str, read: Callable[[object], object], default: object = None) -> object:
        """The value of `key`, converted. `default` if the key is missing."""
        self._known.append(key)
        if key not in self._raw:
            return default
        value = self._raw.pop(key)
        try:
            return read(value)
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(f"{self._name(key)}: {error}") from None

    def need(self, key: str, read: Callable[[object], T], why: str) -> T:
        found = self.take(key, read)
        if found is None:
            close = get_close_matches(key, self._raw, 1, 0.6)
            meant = f"; {self._name(close[0])} is unknown" if close else ""
            raise ScenarioError(f"{self._name(key)} is missing: {why}{meant}")
        return found

    def table(self, key: str) -> Table:
        """The table with this key in this table. It is empty if it is missing."""
        return Table(self.take(key, lambda value: value, {}), self._name(key))

    def tables(self, key: str) -> list[Table]:
        """The array of tables with this key."""
        rows = self.take(key, lambda value: value, [])
        if not isinstance(rows, list):
            raise ScenarioError(f"{self._name(key)} is {rows!r}: write [[{key}]]")
        return [Table(row, f"{self._name(key)}[{number}]") for number, row in enumerate(rows, 1)]

    def items(self) -> Iterator[tuple[str, object]]:
        """All remaining keys, which are taken."""
        while self._raw:
            key = next(iter(self._raw))
            yield key, self._raw.pop(key)

    def close(self) -> None:
        for key in self._raw:
            raise ScenarioError(f"{self._name(key)} is unknown{nearest(key, self._known)}")

    def _name(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key


def nearest(word: str, known: Collection[str]) -> str:
    """Text: `; did you mean X?`, or the list of known names."""
    close = get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f": choose one of {', '.join(known)}"


_HOST = re.compile(r"[A-Za-z0-9_-]{1,32}")


def host_names(value: object) -> tuple[str, ...]:
    """One name of a new host, or a list of them: each is the name of a folder, and of a target in faults."""
    for name in (found := names(value)):
        if _HOST.fullmatch(name) is None:
            raise ScenarioError(f"{name!r} is not a name for a host: write up to 32 letters, digits, - and _")
    return found


def names(value: object) -> tuple[str, ...]:
    """Read one name, or a list of names."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(name, str) and name for name in found):
        raise ScenarioError(f"{value!r} is neither a name nor a list of names")
    return tuple(found)
