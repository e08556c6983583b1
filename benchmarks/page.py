"""Writes the table of a benchmark into a Markdown page."""

from __future__ import annotations

from pathlib import Path

_END = "<!-- end of table -->\n"


def put_table(page: Path, benchmark: str, table: str) -> None:
    """Put `table`, whole lines, between the two comments of an existing page.

    `benchmark`: its module's name in this folder. Raises ValueError for a page that lacks them.
    """
    begin = f"<!-- table: written by benchmarks.{benchmark} -->\n"
    head, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end, tail = rest.partition(_END)
    if not found or not end:
        raise ValueError(f"{page} needs the lines {begin.strip()} and {_END.strip()} where the table shall stand")
    page.write_text(head + begin + table + end + tail, encoding="utf-8")
