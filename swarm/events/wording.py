"""Formatting of numbers, lists and untrusted texts for people. Events, commands and reports share it."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_WORD, _HEAD, _TAIL = 400, 80, 40
LONGEST_MESSAGE, _MESSAGE_HEAD, _MESSAGE_TAIL = 4000, 800, 400
_EACH_UP_TO = 10


def worth_telling(count: int) -> bool:
    """Return True for the 1st to 10th, 100th, 1,000th … repetition of an event: the others are not logged."""
    return count <= _EACH_UP_TO or str(count).strip("0") == "1"


def printable(text: str) -> str:
    """`text` in one line, with U+FFFD in place of every character that is not printable.

    Some of these characters control terminals (titles, colours, text direction), and lone surrogates cannot be printed.
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))


def shortened(text: str) -> str:
    """`text`, with the middle of each very long word left out, and then the middle of all if it is still very long: an
    error repeats what somebody has pasted by mistake.
    """
    short = " ".join(_ends(word, LONGEST_WORD, _HEAD, _TAIL) for word in text.split(" "))
    return _ends(short, LONGEST_MESSAGE, _MESSAGE_HEAD, _MESSAGE_TAIL)


def _ends(text: str, longest: int, head: int, tail: int) -> str:
    return text if len(text) <= longest else f"{text[:head]}…{text[-tail:]}"


def printable_lines(text: str) -> str:
    """`text` with its lines and tabs, and with U+FFFD in place of every other character that is not printable.

    For texts of a model: whoever trains it can teach it to write what controls terminals.
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def replicas(counts: Sequence[int]) -> str:
    """Peers per stage, such as 2·2·1·2."""
    return "·".join(map(str, counts))


def amount(nbytes: float) -> str:
    """A number of bytes for people, such as 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" or abs(nbytes) >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def rate(bytes_per_s: float) -> str:
    """A link rate in bits per second, as providers state it, such as 20 Mbit/s."""
    return f"{amount(8 * bytes_per_s)[:-1]}bit/s"


def stage_name(stage: int | None) -> str:
    return "the standbys" if stage is None else f"stage {stage}"


def microbatch_list(numbers: Sequence[int]) -> str:
    """A sorted list with consecutive numbers joined, such as "microbatches 0–3, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    listed = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs) or "none"
    return f"microbatch {listed}" if len(numbers) == 1 else f"microbatches {listed}"
