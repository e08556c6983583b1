"""Moments at which faults happen, and events that are expected. Both refer to the swarm's own event logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from peers.chaos import quantity
from peers.chaos.table import ScenarioError, Table, nearest
from swarm import events
from swarm.events import Event

COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Sight:
    """An event in the log of `of` with these field values. `coordinator` stands for any coordinator of a group.

    A value that ends in `*` is a prefix, a number that ends in `+` a lower bound. A host's name stands for its actors,
    in any of their starts.
    """

    kind: type[Event]
    of: str = COORDINATOR
    where: tuple[tuple[str, str], ...] = ()

    def is_of_group(self, host: str) -> bool:
        """True if this host coordinates, so that the event may be in its log."""
        return self.of == COORDINATOR and host.startswith(COORDINATOR)

    def matches(self, event: Event, actors: Callable[[str], frozenset[str]]) -> bool:
        """`actors(host)`: the actor names of all processes of a host in logs."""
        return isinstance(event, self.kind) and all(
            _fits(getattr(event, name), wanted, actors) for name, wanted in self.where
        )

    def __str__(self) -> str:
        narrowed = "".join(f", {name} = {value}" for name, value in self.where)
        return f"{self.kind.__name__} of {self.of}{narrowed}"


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment when all conditions have become true, plus `plus_s` seconds."""

    sight: Sight | None = None
    count: int = 1
    """The number of the event among all matching ones, from 1."""
    after: str | None = None
    """Another fault, from which events and times count. None: they count from the opening of the first step."""
    plus_s: float = 0.0

    def __str__(self) -> str:
        parts = [] if self.after is None else [f"after {self.after}"]
        if self.sight is not None:
            parts.append(f"{self.sight}, number {self.count}" if self.count > 1 else str(self.sight))
        if self.plus_s:
            parts.append(f"{self.plus_s:g} s later")
        return ", ".join(parts) or "at once"


def read_moment(table: Table) -> Moment:
    """Read a moment from the keys `at`, `after_step`, `event`, `of`, `where`, `count`, `after`. Raises
    ScenarioError.
    """
    at = table.take("at", quantity.span)
    after = table.take("after", quantity.text)
    step = table.take("after_step", quantity.count)
    sight = read_sight(table)
    if step is not None and sight is not None:
        raise ScenarioError(f"{table.where}: `after_step` is an event too: leave one of the two out")
    if step is not None:
        sight = Sight(events.StepDecided, where=(("step", f"{step - 1}+"),))
    return Moment(sight, table.take("count", quantity.count, 1), after, at or 0.0)


def read_sight(table: Table) -> Sight | None:
    """Read an event from the keys `event`, `of`, `where`. Return None if there is no `event`. Raises ScenarioError."""
    kind = table.take("event", _kind)
    of = table.take("of", quantity.text)
    where = table.table("where")
    if kind is None:
        if of is not None or list(where.items()):
            raise ScenarioError(f"{table.where}: `of` and `where` need an `event`: name it, or leave them out")
        return None
    known = [field.name for field in fields(kind)]
    found: Mapping[str, object] = dict(where.items())
    for name in found:
        if name not in known:
            raise ScenarioError(f"{where.where}.{name} is not a field of {kind.__name__}{nearest(name, known)}")
    return Sight(kind, of or COORDINATOR, tuple((name, str(value)) for name, value in found.items()))


def _kind(value: object) -> type[Event]:
    kinds = {cls.__name__: cls for cls in Event.__subclasses__()}
    kind = quantity.text(value)
    if kind not in kinds:
        raise ScenarioError(f"event {value!r} is unknown{nearest(kind, kinds)}")
    return kinds[kind]


def _fits(value: object, wanted: str, actors: Callable[[str], frozenset[str]]) -> bool:
    found = str(value)
    if found in actors(wanted):
        return True
    if isinstance(value, int) and wanted.endswith("+") and wanted[:-1].isdigit():
        return value >= int(wanted[:-1])
    return found.startswith(wanted[:-1]) if wanted.endswith("*") else found == wanted
