"""The devices that a run has admitted, with their passes, as the decision record has them.

An open run may admit 100,000 devices, and the record is replayed at every start. So one more admission costs the same
whatever came before, and so do the questions about one device or one pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import overload

OBSERVES = "observe"
"""The word for an observer's pass in the value of an `admit` command."""


@dataclass(frozen=True, slots=True)
class Device:
    """The value of an `admit` command: a device that joins with a pass."""

    serial: str
    """The serial number of the pass: 32 hex digits."""
    devices: int
    """Number of devices that may join with the pass."""
    peer: str
    observes: bool = False
    """True: the pass is for observing. Records of earlier releases do not say so, and contain False for all passes."""

    @property
    def value(self) -> str:
        """The value as text, as the command contains it."""
        return " ".join((self.serial, str(self.devices), *([OBSERVES] if self.observes else []), self.peer))

    @classmethod
    def read(cls, value: str) -> Device:
        """Parse a command's value. Raises ValueError."""
        fields = value.split(" ")
        if not 3 <= len(fields) <= 4 or fields[2:-1] not in ([], [OBSERVES]) or not _is_count(fields[1]):
            raise ValueError(f"{value!r} is not a serial number, a number of devices and a peer id")
        if not (fields[-1].isascii() and fields[-1].isalnum()):
            raise ValueError(f"{fields[-1]!r} is not a peer id")
        return cls(read_serial(fields[0]), int(fields[1]), fields[-1], len(fields) == 4)


def read_serial(value: str) -> str:
    """Check a serial number. Raises ValueError."""
    if not re.fullmatch(r"[0-9a-f]{32}", value):
        raise ValueError(f"{value!r} is not the serial number of a pass, which has 32 hex digits")
    return value


class Admissions(Sequence[Device]):
    """The admissions, in the order of the record. It never changes: `after` returns a longer one.

    What follows one another shares one book. Each sees only its own part of it.
    """

    __slots__ = ("_book", "_count")

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._book = _Book()
        for device in devices:
            self._book.add(device)
        self._count = len(self._book.devices)

    def after(self, device: Device) -> Admissions:
        """These admissions and one more."""
        book = self._book
        if self._count == len(book.devices):
            book.add(device)
        elif book.devices[self._count] != device:  # the book went on in another way, which may not be committed
            return Admissions((*self, device))
        longer = Admissions.__new__(Admissions)
        longer._book, longer._count = book, self._count + 1
        return longer

    def last(self, peer: str) -> Device | None:
        """The last admission of a device. None: it was not admitted."""
        there = self._book.of_peer.get(peer, ())
        return next((self._book.devices[number] for number in reversed(there) if number < self._count), None)

    def has_joined(self, peer: str, serial: str) -> bool:
        """Return True if the device has joined with this pass."""
        return self._book.of_pass.get(serial, {}).get(peer, self._count) < self._count

    def came_with(self, serial: str) -> list[str]:
        """Peer ids of the devices that joined with a pass, in the order of their first admissions with it."""
        there = self._book.of_pass.get(serial, {})
        return [peer for peer, number in there.items() if number < self._count]

    def devices_of(self, serial: str) -> int:
        """Number of devices that joined with a pass."""
        there = self._book.of_pass.get(serial, {})
        return len(there) - self._later(reversed(there.values()))

    @property
    def devices(self) -> int:
        """Number of devices that joined, each counted once."""
        there = self._book.of_peer
        return len(there) - self._later(numbers[0] for numbers in reversed(there.values()))

    def _later(self, numbers: Iterable[int]) -> int:
        """How many admissions of the book, given newest first, come after these."""
        return sum(1 for _ in takewhile(lambda number: number >= self._count, numbers))

    def __iter__(self) -> Iterator[Device]:
        return islice(self._book.devices, self._count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Device: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Device, ...]: ...

    def __getitem__(self, index: int | slice) -> Device | tuple[Device, ...]:
        if isinstance(index, slice):
            return tuple(self._book.devices[number] for number in range(self._count)[index])
        return self._book.devices[range(self._count)[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Admissions) and self[:] == other[:]

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class _Book:
    """Admissions, numbered from 0, and where to find them."""

    devices: list[Device] = field(default_factory=list)
    of_peer: dict[str, list[int]] = field(default_factory=dict)
    """For each peer id, its admissions."""
    of_pass: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each pass and peer id, the first admission, in order."""

    def add(self, device: Device) -> None:
        number = len(self.devices)
        self.devices.append(device)
        self.of_peer.setdefault(device.peer, []).append(number)
        self.of_pass.setdefault(device.serial, {}).setdefault(device.peer, number)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= len(text) <= 6
