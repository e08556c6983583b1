"""Event: one fact in a process's log. A kind of event is one class: its fields, its severity, its sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from swarm.events.wording import printable

Severity = Literal["info", "warning"]
"""`warning`: an event that needs the attention of the person who looks after the run."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. Fields are JSON values; actors, passes and keys are given as text."""

    severity: ClassVar[Severity] = "info"

    @property
    def kind(self) -> str:
        return type(self).__name__

    def sentence(self) -> str:
        """The event in words. It may hold raw text of peers: show people `describe()` instead."""
        raise NotImplementedError

    def describe(self) -> str:
        """The sentence as one printable line, whatever text peers contributed."""
        return printable(self.sentence())


def kinds() -> dict[str, type[Event]]:
    """All kinds of events, by name, since a dataclass with slots leaves a second class without slots behind."""
    return {cls.__name__: cls for cls in Event.__subclasses__()}


def to_record(event: Event, at: float) -> dict[str, Any]:
    return {"at": at, "kind": event.kind, **dataclasses.asdict(event)}


def from_record(record: dict[str, Any]) -> Event | None:
    """The event of a log record, None for kinds and fields of another release."""
    cls = kinds().get(str(record.get("kind")))
    if cls is None:
        return None
    names = {f.name for f in dataclasses.fields(cls)}
    try:
        return cls(**{k: v for k, v in record.items() if k in names})
    except TypeError:
        return None
