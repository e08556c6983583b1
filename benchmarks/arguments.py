"""Types of arguments for argparse. A wrong value ends the command before it measures anything."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is not below `least`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise ArgumentTypeError(f"{number} is too small; the least is {least}")
        return number

    return parse


def some_of(known: Collection[str], separator: str) -> Callable[[str], str]:
    """Some of the `known` names, with `separator` between them. The text stays as it is."""

    def check(text: str) -> str:
        for name in text.split(separator) if text else ():
            if name not in known:
                raise ArgumentTypeError(f"{name!r} is unknown; choose from {f'{separator} '.join(known)}")
        return text

    return check


def each(parse: Callable[[str], object], separator: str) -> Callable[[str], str]:
    """Values that `parse` accepts, with `separator` between them. The text stays as it is."""

    def check(text: str) -> str:
        for part in text.split(separator):
            try:
                parse(part)
            except ValueError as error:
                raise ArgumentTypeError(f"{part!r}: {error}") from None
        return text

    return check
