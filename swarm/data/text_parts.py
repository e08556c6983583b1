"""Parts of a long text. To encode a text takes about 150 times its memory, so a long one is encoded part by part."""

from __future__ import annotations

from collections.abc import Iterator

PART_CHARACTERS = 1 << 20
"""Largest number of characters in a part. Shorter texts are never cut."""


def parts(text: str, longest: int = PART_CHARACTERS) -> Iterator[str]:
    """The parts of a text, of at most `longest` characters each. Joined, they are the text.

    A part ends before the last space between two words, because tokenizers keep a space with the word after it: the
    tokens are those of the whole text. Without such a space in its second half, a part ends anywhere.
    """
    begin = 0
    while len(text) - begin > longest:
        end = _last_gap(text, begin + longest // 2, begin + longest) or begin + longest
        yield text[begin:end]
        begin = end
    yield text[begin:] if begin else text


def _last_gap(text: str, low: int, high: int) -> int | None:
    """Where the last single space in text[low:high] is; None if there is none."""
    at = text.rfind(" ", low, high)
    while at > low and (text[at - 1].isspace() or text[at + 1 : at + 2].isspace()):
        at = text.rfind(" ", low, at)
    return at if at > low else None
