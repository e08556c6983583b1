"""Counts how often each fault × phase × role occurred over many runs, and lists the cells that are still empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from swarm.simulation.faults.faults import CELLS, KINDS, PHASES, ROLES, Cell, nonsense

ENOUGH_SEEDS = 2100
"""After this number of mixed runs, no cell may be empty: each is planned three times by then."""


class Coverage:
    """Counts of the cells that occurred."""

    def __init__(self) -> None:
        self.counts: Counter[Cell] = Counter()

    def add(self, struck: Iterable[Cell]) -> None:
        self.counts.update(struck)

    def empty(self, kinds: Iterable[str] = KINDS) -> list[Cell]:
        """Meaningful cells that never occurred."""
        wanted = set(kinds)
        return [cell for cell in CELLS if cell.kind in wanted and not self.counts[cell]]

    def table(self) -> str:
        """One row per fault and role, one column per phase. `·`: there is no such fault; `0!`: the fault never
        occurred.
        """
        width = max(len(kind) for kind in KINDS)
        head = f"{'fault':<{width}}  {'role':<11}  " + "  ".join(f"{phase:>13}" for phase in PHASES)
        lines = [head, "-" * len(head)]
        for kind in KINDS:
            for role in ROLES:
                row = [self._entry(Cell(kind, phase, role)) for phase in PHASES]
                if any(entry != "·" for entry in row):
                    lines.append(f"{kind:<{width}}  {role:<11}  " + "  ".join(f"{entry:>13}" for entry in row))
        return "\n".join(lines)

    def reasons(self) -> str:
        """The reasons why the cells marked `·` do not exist."""
        found: dict[str, list[Cell]] = {}
        for kind in KINDS:
            for phase in PHASES:
                for role in ROLES:
                    cell = Cell(kind, phase, role)
                    if (reason := nonsense(cell)) is not None:
                        found.setdefault(reason, []).append(cell)
        return "\n".join(f"· {len(cells):3} cells: {reason}" for reason, cells in found.items())

    def _entry(self, cell: Cell) -> str:
        if nonsense(cell) is not None:
            return "·"
        return str(self.counts[cell]) if self.counts[cell] else "0!"
