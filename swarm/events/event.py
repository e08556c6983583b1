"""The base class of events. Each kind of event is a class with fields, a severity and a sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from swarm.events.wording import printable

Severity = Literal["info", "warning"]
"""`warning`: the operator of the run should look at this event."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. Fields are JSON values; actors, passes and keys are given as text."""

    severity: ClassVar[Severity] = "info"

    @property
    def kind(self) -> str:
        return type(self).__name__

    def sentence(self) -> str:
        """The event in words. It may contain unfiltered text from peers: to show it to people, use `describe()`."""
        raise NotImplementedError

    def describe(self) -> str:
        """The sentence as one line of printable characters, also if it contains text from peers."""
        return printable(self.sentence())


def kinds() -> dict[str, type[Event]]:
    """All kinds of events, by name. (A dataclass with slots exists twice; the copy without slots is left out.)"""
    return {cls.__name__: cls for cls in Event.__subclasses__()}


def to_record(event: Event, at: float) -> dict[str, Any]:
    return {"at": at, "kind": event.kind, **dataclasses.asdict(event)}


def from_record(record: dict[str, Any]) -> Event | None:
    """The event of a log record; None if its kind or fields are those of another release."""
    cls = kinds().get(str(record.get("kind")))
    if cls is None:
        return None
    names = {f.name for f in dataclasses.fields(cls)}
    try:
        return cls(**{k: v for k, v in record.items() if k in names})
    except TypeError:
        return None
