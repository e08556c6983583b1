"""Violation: an invariant is broken."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant is broken."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Exceptions are rebuilt from their `args`, the one text; benchmarks receive this one from other processes."""
        return type(self), (self.invariant, self.detail)
