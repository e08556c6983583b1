"""A mapping of a few names to numbers that takes a third of a dict's memory. Each of ten thousand peers has two of
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

MOST_SHARED = 256
"""Maximum number of sets of names that mappings share. Peers choose the names, so there may be any number of sets."""

_shared: dict[tuple[str, ...], tuple[str, ...]] = {}


class Packed(Mapping[str, float]):
    """The mapping. It cannot be changed. Numbers are kept as float64."""

    __slots__ = ("_names", "_numbers")

    def __init__(self, items: Mapping[str, float]) -> None:
        names = tuple(items)
        if len(_shared) < MOST_SHARED:
            names = _shared.setdefault(names, names)
        else:
            names = _shared.get(names, names)
        self._names = names
        self._numbers = array("d", items.values())

    def __getitem__(self, name: str) -> float:
        try:
            return self._numbers[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __hash__(self) -> int:
        return hash((self._names, self._numbers.tobytes()))

    def __repr__(self) -> str:
        return f"Packed({dict(self)})"


NOTHING = Packed({})
