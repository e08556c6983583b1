"""The documents of tables: a column of a CSV, TSV or Parquet file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from swarm.data import formats
from swarm.data.corpus_error import CorpusError
from swarm.data.field import MAX_TEXT, nearest, text_in
from swarm.data.text_file import ZERO_BYTES

MAX_LINE = 2 * MAX_TEXT
"""Largest number of characters in a line, which has several cells."""
_PARQUET_ROWS = 64
"""Number of rows that are decoded at once."""
_SEPARATORS = (",", ";", "\t", "|")


def read_table(path: Path, column: str, delimiter: str) -> Iterator[str]:
    """The texts of a CSV or TSV file whose first line contains the column names. Raises CorpusError, with the line, for
    a file without the column, and for content that is not valid.
    """
    csv.field_size_limit(MAX_TEXT)
    with formats.opened(path) as file:
        begin = 1
        rows = csv.reader((), delimiter=delimiter)
        try:
            plain = delimiter == "\t" and _is_unquoted(path)
            rows = csv.reader(
                _lines(file, path),
                delimiter=delimiter,
                strict=True,
                quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
            )
            if fix := _separator(path, column, delimiter):
                raise CorpusError(f"{path}: no column {column!r} in its first line{fix}")
            names = next(rows, [])
            if column not in names:
                raise CorpusError(
                    f"{path}: no column {column!r} in its first line{nearest(column, names)}; choose with --column"
                )
            _refuse_twins(path, names, column)
            at = names.index(column)
            begin = rows.line_num + 1
            for row in rows:
                begin = rows.line_num + 1
                if row and len(row) <= at:
                    raise CorpusError(
                        f"{path}, line {rows.line_num}: has {len(row)} cells, but the text should be in cell {at + 1}"
                    )
                if any(cell.strip() for cell in row[len(names) :]):
                    raise CorpusError(
                        f"{path}, line {rows.line_num}: has {len(row)} cells, but the first line names {len(names)}: "
                        f"put a text with {delimiter!r} in it in quotes"
                    )
                if row and "\0" in row[at]:
                    raise CorpusError(f"{path}, line {rows.line_num}: {ZERO_BYTES}")
                if row and row[at].strip():
                    yield text_in(row[at], f"{path}, line {rows.line_num}, column {column!r}")
        except csv.Error as error:
            start = "" if begin >= rows.line_num else f"; its row begins in line {begin}: is a quote not closed there?"
            raise CorpusError(f"{path}, line {rows.line_num}: not valid CSV or TSV ({error}){start}") from None
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}, near line {rows.line_num}: not UTF-8 ({error.reason}); convert the file to UTF-8"
            ) from None


def read_parquet(path: Path, column: str) -> Iterator[str]:
    """The texts of a Parquet file. Raises CorpusError if it is damaged, lacks the column, or pyarrow is missing."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise CorpusError(f"reading {path} needs pyarrow: `pip install pyarrow -c constraints.txt`") from None
    try:
        file = parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise CorpusError(f"{path} is damaged or cut off: it cannot be read as Parquet ({error})") from None
    with file:
        if column not in names:
            raise CorpusError(f"{path}: no column {column!r}{nearest(column, names)}; choose with --column")
        _refuse_twins(path, names, column)
        for row, value in enumerate(_values(file, path, column), 1):
            text = text_in(value, f"{path}, row {row}, column {column!r}")
            if text.strip():
                yield text


def _lines(file: IO[bytes], path: Path) -> Iterator[str]:
    """The lines of a table. Raises CorpusError for a line that would fill the memory, such as a file without lines."""
    text = formats.text_of(file)
    number = 1
    while line := text.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise CorpusError(
                f"{path}, line {number}: is longer than {MAX_LINE:,} characters: does the file have another format "
                "than its name says, or other ends of lines?"
            )
        yield line
        number += 1


def _is_unquoted(path: Path) -> bool:
    """Whether the quotes in a TSV file are part of its texts, as in most published ones, and do not enclose cells.

    Then a text that begins with a quote would take in the lines after it, up to the next quote. It is so if every line
    is a whole row, but not with quotes that enclose cells.
    """
    with formats.opened(path) as file:
        widths = {line.count("\t") for line in _lines(file, path) if line.strip("\r\n")}
    if len(widths) > 1:
        return False
    with formats.opened(path) as file:
        rows = csv.reader(_lines(file, path), delimiter="\t", strict=True)
        ended = 0
        try:
            for _ in rows:
                if rows.line_num > ended + 1:
                    return True
                ended = rows.line_num
        except csv.Error:
            return True
    return False


def _separator(path: Path, column: str, delimiter: str) -> str:
    """What to do if the column is in the first line, but the file uses another separator."""
    with formats.opened(path) as file:
        first = next(_lines(file, path), "")
    if column in next(csv.reader([first], delimiter=delimiter), []):
        return ""
    for other in _SEPARATORS:
        if other != delimiter and column in next(csv.reader([first], delimiter=other), []):
            kind = next((suffix for suffix, its in formats.TABLES.items() if its == other), "")
            fix = f"rename the file to {kind}" if kind else f"write the file again with {delimiter!r}"
            return f": its cells are separated by {other!r}, not by {delimiter!r}; {fix}"
    return ""


def _values(file: Any, path: Path, column: str) -> Iterator[Any]:
    """The values of a column in an open Parquet file. A damaged page raises CorpusError when it is reached."""
    import pyarrow

    row = 0
    try:
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[column]):
            # By its name: for "a.b", there is also the struct "a" with a field "b". One by one: the texts may be large.
            for each in batch.column(column):
                value = each.as_py()
                row += 1
                yield value
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}, after row {row}, column {column!r}: cannot be read: {error}") from None


def _refuse_twins(path: Path, names: Sequence[str], column: str) -> None:
    if names.count(column) > 1:
        raise CorpusError(f"{path}: has {names.count(column)} columns called {column!r}: rename all but one")
