"""The documents of JSON files: lists, or a record on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swarm.data import formats
from swarm.data.corpus_error import CorpusError
from swarm.data.field import MAX_TEXT, nearest, text_in
from swarm.data.text_file import lines
from swarm.events.wording import amount

MAX_LIST = 1 << 28
"""Largest size of a JSON list in bytes: all of its objects are in memory at once, in several times as many bytes."""
_ONE_A_LINE = "; write each object on one line, such as with `jq -c . FILE`"


def read_json_lines(path: Path, field: str) -> Iterator[str]:
    """The texts of a file with an object or a string on each line: those in `field` of the objects. Raises CorpusError
    for other content, with the line.
    """
    for number, line in lines(path, MAX_TEXT, divide=False):
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


def read_json(path: Path, field: str) -> Iterator[str]:
    """The texts of a JSON list of objects or strings. Many .json files have one object per line: this works too.

    Raises CorpusError for other content.
    """
    if _begins_with_a_record(path):
        yield from read_json_lines(path, field)
        return
    with formats.opened(path) as file:
        raw = file.read(MAX_LIST + 1)
    if len(raw) > MAX_LIST:
        raise CorpusError(
            f"{path}: is a list of more than {amount(MAX_LIST)}: write each object on one line of another file, such "
            f"as with `jq -c '.[]' {path.name} > {path.stem}.jsonl`"
        )
    try:
        text = raw.decode("utf-8-sig")
        del raw
        tree = json.loads(text)
        del text
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not UTF-8 ({error.reason}); convert the file to UTF-8") from None
    except (ValueError, RecursionError) as error:
        several = _ONE_A_LINE if "Extra data" in str(error) else ""
        raise CorpusError(f"{path}: not JSON ({error}){several}") from None
    if isinstance(tree, dict):
        lists = [key for key, value in tree.items() if isinstance(value, list)]
        raise CorpusError(
            f"{path}: expected a list, got an object with the keys {', '.join(map(repr, list(tree)[:5]))}: write "
            + (f"the list {lists[0]!r} to a separate file" if lists else "an object for each document")
        )
    for number, record in enumerate(tree if isinstance(tree, list) else [tree], 1):
        yield from _of_record(record, field, f"{path}, entry {number}")


def _begins_with_a_record(path: Path) -> bool:
    """Whether the first line is an object. Of a longer line than an object may have, only the beginning is read."""
    first = next((line for _, line in lines(path, MAX_TEXT) if line.strip()), "")
    if not first.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _rewrite(path: Path, line: str, error: Exception | None = None) -> str:
    """What to do about a line that is not one JSON object: the file may be JSON in another layout."""
    if line.lstrip().startswith("["):
        return f": if the whole file is one list, rename it to {path.stem}.json"
    if line.strip() == "{" or "Extra data" in str(error):
        return _ONE_A_LINE
    return ""


def _of_record(record: Any, field: str, place: str) -> Iterator[str]:
    """Yield a text, or that of an object, unless the text is empty."""
    if isinstance(record, str):
        record = {field: record}
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: expected an object with {field!r}, got {json.dumps(record)[:40]}")
    if field not in record:
        raise CorpusError(f"{place}: no field {field!r}{nearest(field, record)}; choose with --field")
    text = text_in(record[field], f"{place}, field {field!r}")
    if text.strip():
        yield text
