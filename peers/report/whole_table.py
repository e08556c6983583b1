"""Prints a table whole, also where it is wider than the terminal.

rich cuts cells off to make a table fit: of 0.000648 hours, "0.0006…" would be left, and of a trouble its first words. A
pipe or a file counts as 80 columns. A terminal wraps lines that are too long.
"""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 10_000
"""Columns. Longer lines are cut off."""


def print_whole(table: Table, console: Console) -> None:
    """Print `table` with every cell on one line of its own length. Sets the width of `table`."""
    table.width = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console.print(table, soft_wrap=True)
