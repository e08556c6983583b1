"""The kinds of events that need an organiser's attention, and the text of any record."""

from __future__ import annotations

from peers.fold.reading import MOST_TEXT, Record
from swarm.events import from_record, kinds
from swarm.events.wording import printable

TROUBLE_KINDS = frozenset(name for name, kind in kinds().items() if kind.severity == "warning")


def in_words(record: Record) -> str:
    """The record in words: one printable line of at most MOST_TEXT characters, whatever the record contains."""
    kind = str(record.get("kind"))[:40]
    short = {key: value[:MOST_TEXT] if type(value) is str else value for key, value in record.items()}
    try:
        event = from_record(short)
        words = event.describe() if event is not None else kind
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError):
        words = printable(kind)  # the fields do not fit the kind
    return words if len(words) <= MOST_TEXT else words[: MOST_TEXT - 1] + "…"
