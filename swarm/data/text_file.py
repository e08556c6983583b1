"""Files of plain text: their lines, and the documents that a long file is divided into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from swarm.data import formats
from swarm.data.corpus_error import CorpusError
from swarm.events.wording import amount

DOCUMENT_CHARACTERS = 4096
"""A longer text file is split into documents: at the first blank line after this many characters, or at any line after
4 times as many.
"""
ZERO_BYTES = "contains zero bytes, as a file does whose writer or disk failed: copy or write the file again"
_LINE_BYTES = 1 << 16
"""A longer line of a text file is split, at a space if there is one: whole files may be one line."""


def read_text(path: Path) -> Iterator[str]:
    """The documents of a text file. Raises CorpusError if it is not UTF-8."""
    held: list[str] = []
    size = 0
    for _, line in lines(path, _LINE_BYTES):
        blank = not line.strip()
        if held or not blank:
            held.append(line)
            size += len(line)
        if size >= (DOCUMENT_CHARACTERS if blank else 4 * DOCUMENT_CHARACTERS):
            yield "".join(held).strip()
            held, size = [], 0
    if size:
        yield "".join(held).strip()


def lines(path: Path, longest: int = -1, divide: bool = True) -> Iterator[tuple[int, str]]:
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
                raise CorpusError(f"{path}, line {number}: {ZERO_BYTES}")
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
