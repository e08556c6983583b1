"""The token that ends a text, taken from a model's own files and written into its tokenizer.json.

A tokenizer.json lists special tokens without their purpose; config.json, generation_config.json and
tokenizer_config.json in the same folder give the purpose. Names are not reliable: a Llama may have `</s>`,
`<|endoftext|>` and `<|im_end|>` at once, or end its texts with a token that no other model has. The result is stored as
`"end_of_text": true` at this token in tokenizer.json, which other programs ignore. So this one file is sufficient.

Models that chat have several end tokens, such as one for a text and one for a turn. One of them ends texts; at the
others, which have `"also_ends": true`, only `generate` stops.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.data.corpus_error import CorpusError
from swarm.data.lfs_pointer import pointer_advice

MARK = "end_of_text"
ALSO = "also_ends"
_MAX_JSON_BYTES = 64 << 20
_MAKE = (
    "transformers' `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)` makes a tokenizer.json from the "
    "files of older tokenizers"
)
_BY_ID = ("config.json", "generation_config.json")
_BY_NAME = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class EndOfText:
    token: str
    number: int
    told_by: str
    """The name of the file that names the token."""
    others: tuple[int, ...] = ()
    """The numbers of the other end tokens, at which the model stops too."""


def marked(tree: dict[str, Any]) -> int | None:
    """The number of the marked token in a tokenizer.json; None if no token is marked."""
    found = [added["id"] for added in _added(tree) if added.get(MARK) is True]
    return found[0] if found else None


def also_marked(tree: dict[str, Any]) -> tuple[int, ...]:
    """The numbers of the other marked end tokens in a tokenizer.json. Earlier releases marked none."""
    return tuple(added["id"] for added in _added(tree) if added.get(ALSO) is True)


def mark(raw: bytes, number: int, others: Collection[int] = ()) -> bytes:
    """The tokenizer.json with marks at the special token `number`, which ends a text, and at the other end tokens."""
    tree = json.loads(raw)
    if marked(tree) == number and set(also_marked(tree)) == set(others):
        return raw
    for added in _without_marks(tree):
        if added["id"] == number:
            added[MARK] = True
        elif added["id"] in others:
            added[ALSO] = True
    return json.dumps(tree, ensure_ascii=False).encode("utf-8")


def unmarked(raw: bytes) -> bytes:
    """The tokenizer.json without the marks, for other programs, which read the end of text from other files."""
    tree = json.loads(raw)
    if marked(tree) is None and not also_marked(tree):
        return raw
    _without_marks(tree)
    return json.dumps(tree, ensure_ascii=False).encode("utf-8")


def named(token: str, raw: bytes, origin: str) -> EndOfText:
    """The end of text that the user names. Raises CorpusError if the tokenizer.json has no such special token."""
    for each in specials(raw, origin):
        if each.token == token:
            return EndOfText(token, each.number, "--end-of-text")
    raise CorpusError(f"--end-of-text {token}: {origin} has no such special token")


def told_beside(path: Path, raw: bytes) -> EndOfText | None:
    """The end of text, according to the other files in the folder of a tokenizer.json. None if they do not name it.

    Raises CorpusError.
    """
    return told_in(path.parent, raw, str(path))


def told_in(folder: Path, raw: bytes, origin: str) -> EndOfText | None:
    """The end of text, according to the files in a model folder. If they name several end tokens, it is the one that
    tokenizer_config.json names; if it names none of them, the first in the order of the files.

    A number that is not a special token is ignored, because configurations contain many unused defaults. Raises
    CorpusError if files name tokens, but none of them is a special token.
    """
    known = _specials(raw, origin)
    name = _name(_read(folder / _BY_NAME).get("eos_token"))
    by_name = next((number for number, token in known.items() if token == name), None)
    ends: dict[int, str] = {}  # with the first file that names them
    unfit = []
    for file in _BY_ID:
        told = _read(folder / file).get("eos_token_id")
        numbers = [each for each in (told if isinstance(told, list) else [told]) if type(each) is int]
        fit = [number for number in numbers if number in known]
        for number in fit:
            ends.setdefault(number, file)
        unfit += [f"{file}: eos_token_id = {told}"] if numbers and not fit else []
    if by_name is not None and not ends:
        ends[by_name] = _BY_NAME
    if ends:
        end = by_name if by_name in ends else next(iter(ends))
        assert end is not None
        return EndOfText(known[end], end, ends[end], tuple(number for number in ends if number != end))
    unfit += [f"{_BY_NAME}: eos_token = {name!r}"] if name is not None else []
    if name is not None:
        raise CorpusError(
            f"{origin} has no such special token ({', '.join(unfit)}): name the right tokenizer, or list the token "
            "under added_tokens in tokenizer.json"
        )
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


def _without_marks(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The added tokens of a tokenizer.json, after their marks have been removed."""
    found = _added(tree)
    for added in found:
        added.pop(MARK, None)
        added.pop(ALSO, None)
    return found


def _tree(raw: bytes, origin: str) -> dict[str, Any]:
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{origin} is not a tokenizer.json: {pointer_advice(raw) or f'{error}; {_MAKE}'}") from None
    if not isinstance(tree, dict) or "model" not in tree:
        raise CorpusError(f"{origin} is not a tokenizer.json: it has no 'model'; {_MAKE}")
    return tree


def _name(told: object) -> str | None:
    content = told.get("content") if isinstance(told, dict) else told
    return content if isinstance(content, str) else None


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if the file does not exist or contains something else."""
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(_MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}
