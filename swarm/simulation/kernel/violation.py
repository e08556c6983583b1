"""The exception that reports a broken invariant."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant is broken."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Needed because exceptions are rebuilt from `args`, which holds only the text; benchmarks receive this
        exception from other processes.
        """
        return type(self), (self.invariant, self.detail)
