"""A mutant: a protocol that is broken on purpose, in one rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    rule: str
    """The rule it breaks."""
    patches: Callable[[], list[Patch]]
    scenario: str = "mixed"
    """In which seeds it is looked for."""
    first: int = 0
    """The first of them. What takes several faults in a row shows in one seed of a thousand."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this is open, the cores of this process are broken."""
        before = []
        for owner, name, value in self.patches():
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
