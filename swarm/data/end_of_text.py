"""The token that ends a text, taken from a model's own files and written into its tokenizer.json.

A tokenizer.json lists special tokens without their purpose; config.json, generation_config.json and
tokenizer_config.json beside it give it. Names are no guide: a Llama may have `</s>`, `<|endoftext|>` and `<|im_end|>`
at once, or end its texts with a token that no other model has. The result is kept as `"end_of_text": true` at that
token of tokenizer.json, which other programs ignore. So one file contains everything, wherever it is copied to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.data.corpus_error import CorpusError

MARK = "end_of_text"
_MAX_JSON_BYTES = 64 << 20
_BY_ID = ("config.json", "generation_config.json")
_BY_NAME = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class EndOfText:
    token: str
    number: int
    told_by: str
    """The file that says so."""


def marked(tree: dict[str, Any]) -> int | None:
    """The token that a tokenizer.json has marked."""
    found = [added["id"] for added in _added(tree) if added.get(MARK) is True]
    return found[0] if found else None


def mark(raw: bytes, number: int) -> bytes:
    """A tokenizer.json that marks the special token that ends a text."""
    tree = json.loads(raw)
    if marked(tree) == number:
        return raw
    for added in _added(tree):
        added.pop(MARK, None)
        if added["id"] == number:
            added[MARK] = True
    return json.dumps(tree, ensure_ascii=False).encode("utf-8")


def unmarked(raw: bytes) -> bytes:
    """Without the mark, for programs that do not know it; the files beside it say the same."""
    tree = json.loads(raw)
    if marked(tree) is None:
        return raw
    for added in _added(tree):
        added.pop(MARK, None)
    return json.dumps(tree, ensure_ascii=False).encode("utf-8")


def told_beside(path: Path, raw: bytes) -> EndOfText | None:
    """The end of text according to the files beside a tokenizer.json; None if they do not say. Raises CorpusError."""
    return told_in(path.parent, raw, str(path))


def told_in(folder: Path, raw: bytes, origin: str) -> EndOfText | None:
    """The end of text according to a model folder's files, in their order of precedence.

    A number that is not a special token is ignored: configurations are full of unused defaults. Raises CorpusError if
    files name a token, but none is a special token.
    """
    known = _specials(raw, origin)
    named = _name(_read(folder / _BY_NAME).get("eos_token"))
    by_name = next((number for number, token in known.items() if token == named), None)
    unfit = []
    for file in _BY_ID:
        told = _read(folder / file).get("eos_token_id")
        numbers = [each for each in (told if isinstance(told, list) else [told]) if type(each) is int]
        fit = [number for number in numbers if number in known]
        if fit:
            number = by_name if by_name in fit else fit[0]
            assert number is not None
            return EndOfText(known[number], number, file)
        unfit += [f"{file}: eos_token_id = {told}"] if numbers else []
    if by_name is not None:
        return EndOfText(known[by_name], by_name, _BY_NAME)
    unfit += [f"{_BY_NAME}: eos_token = {named!r}"] if named is not None else []
    if named is not None:
        raise CorpusError(f"{' and '.join(unfit)}, which is not a special token of {origin}: name the right tokenizer")
    return None


def specials(raw: bytes, origin: str) -> list[EndOfText]:
    """All special tokens of a tokenizer.json."""
    return [EndOfText(token, number, origin) for number, token in _specials(raw, origin).items()]


def _specials(raw: bytes, origin: str) -> dict[int, str]:
    return {int(added["id"]): str(added["content"]) for added in _added(_tree(raw, origin))}


def _added(tree: dict[str, Any]) -> list[dict[str, Any]]:
    found = tree.get("added_tokens")
    entries = found if isinstance(found, list) else []
    return [each for each in entries if isinstance(each, dict) and type(each.get("id")) is int and "content" in each]


def _tree(raw: bytes, origin: str) -> dict[str, Any]:
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{origin} is not a tokenizer.json: {error}") from None
    if not isinstance(tree, dict):
        raise CorpusError(f"{origin} is not a tokenizer.json: it is not a JSON object")
    return tree


def _name(told: object) -> str | None:
    content = told.get("content") if isinstance(told, dict) else told
    return content if isinstance(content, str) else None


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file, or it is something else."""
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(_MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}
