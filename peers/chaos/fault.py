"""Faults of a scenario: their kind, target, moment and duration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peers.chaos import quantity
from peers.chaos.moment import Moment, read_moment
from peers.chaos.pipe import UNLIMITED, Shape
from peers.chaos.table import ScenarioError, Table, host_names, names, nearest

KINDS: dict[str, str] = {
    "kill": "the process ends at once (SIGKILL), and its machine closes the connections",
    "power_off": "the machine's links are cut and its process is killed, so no other machine is told",
    "restart": "the process starts again in its home; also after kill, power_off and leave",
    "stop": "the process is suspended (SIGSTOP), but its libp2p daemon runs on",
    "continue": "SIGCONT",
    "slow": "the process gets 1/factor of the CPU time that it would get without the fault",
    "leave": "Ctrl-C",
    "join": "a new host joins",
    "cut": "links carry nothing",
    "heal": "cut links work again; without `who` and `between`, all links",
    "link": "links get the properties delay, jitter, loss and rate",
    "fill": "the disk is filled until only `leave` is free",
    "skew": "the wall clock is changed by `by`",
}
UNDONE_BY: dict[str, str] = {
    "kill": "restart",
    "power_off": "restart",
    "leave": "restart",
    "stop": "continue",
    "slow": "slow",
    "cut": "heal",
    "link": "link",
    "fill": "fill",
    "skew": "skew",
}
_ON_LINKS = ("cut", "heal", "link")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of a scenario. `who`: hosts. For links: all links of `who`, or those `between` two groups, both ways or
    only from the first group.
    """

    name: str
    kind: str
    when: Moment
    who: tuple[str, ...] = ()
    between: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    one_way: bool = False
    for_s: float | None = None
    """Seconds after which the fault is undone."""
    shape: Shape = UNLIMITED
    factor: float = 1.0
    leave: int = 0
    by_s: float = 0.0
    takes_back: str | None = None
    """The fault that this one reverses, on the hosts of that fault."""

    @property
    def undoes(self) -> bool:
        """True if this fault reverses another fault of its kind."""
        return self.takes_back is not None and UNDONE_BY.get(self.kind) == self.kind

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset((*self.who, *(self.between[0] + self.between[1] if self.between else ())))

    def undone(self) -> PlannedFault:
        """The fault that reverses it."""
        return PlannedFault(
            f"{self.name}, over",
            UNDONE_BY[self.kind],
            Moment(after=self.name, plus_s=self.for_s or 0.0),
            self.who,
            self.between,
            self.one_way,
            takes_back=self.name,
        )

    def __str__(self) -> str:
        if self.undoes:
            return f"{self.kind} {', '.join(self.who)} no longer"
        if self.between is not None:
            sign = "→" if self.one_way else "↔"
            return f"{self.kind} {'+'.join(self.between[0])} {sign} {'+'.join(self.between[1])}"
        more = {"slow": f" {self.factor:g}×", "skew": f" {self.by_s:+g} s", "fill": f" to {self.leave} bytes"}
        return f"{self.kind} {', '.join(self.who) or 'all'}{more.get(self.kind, '')}"


def read_fault(table: Table, number: int) -> PlannedFault:
    """Read one [[fault]] table. Raises ScenarioError."""
    kind = table.need("do", _kind, f"name the kind of fault: {', '.join(KINDS)}")
    name = table.take("name", quantity.text, f"{kind} {number}")
    on_links = kind in _ON_LINKS
    who = table.take("who", host_names if kind == "join" else names, ())
    between = table.take("between", _groups) if on_links else None
    one_way = table.take("one_way", quantity.yes, False) if on_links else False
    if not who and between is None and kind != "heal":
        raise ScenarioError(f"{table.where}.who is missing: name the hosts that {kind!r} strikes")
    if who and between is not None:
        raise ScenarioError(f"{table.where}: give either `who` (all links of a host) or `between` (some links)")
    if one_way and between is None:
        raise ScenarioError(f"{table.where}.one_way needs `between`: name the sender and the receiver")
    lasts = table.take("for", quantity.span)
    if lasts is not None and kind not in UNDONE_BY:
        raise ScenarioError(f"{table.where}.for: {kind!r} cannot be undone, so it takes no duration: remove `for`")
    fault = PlannedFault(
        name,
        kind,
        read_moment(table),
        who,
        between,
        one_way,
        lasts,
        read_shape(table) if kind == "link" else UNLIMITED,
        table.need("factor", quantity.factor, "how many times slower") if kind == "slow" else 1.0,
        table.take("leave", quantity.size, 0) if kind == "fill" else 0,
        table.need("by", quantity.seconds, "how far the clock is off, such as 5min or -5min") if kind == "skew" else 0,
    )
    table.close()
    return fault


def read_shape(table: Table, default: Shape = UNLIMITED) -> Shape:
    """Read a link's shape from the keys `rate`, `delay`, `jitter`, `loss`."""
    return Shape(
        table.take("rate", quantity.rate, default.rate),
        table.take("delay", quantity.span, default.delay_s),
        table.take("jitter", quantity.span, default.jitter_s),
        table.take("loss", quantity.share, default.loss),
    )


def groups(table: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    read: Callable[[object], tuple[tuple[str, ...], tuple[str, ...]]] = _groups
    return table.need("between", read, 'such as ["p0", "p1"] or [["p0", "p1"], ["p2"]]')


def between(sources: tuple[str, ...], targets: tuple[str, ...], one_way: bool) -> list[tuple[str, str]]:
    """The pairs (from, to) of two groups."""
    there = [(a, b) for a in sources for b in targets if a != b]
    return there if one_way else there + [(b, a) for a, b in there]


def _kind(value: object) -> str:
    kind = quantity.text(value)
    if kind not in KINDS:
        raise ScenarioError(f"there is no fault {value!r}{nearest(kind, KINDS)}")
    return kind


def _groups(value: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(value, list) or len(value) != 2:
        raise ScenarioError(f'between = {value!r}: write ["p0", "p1"] or [["p0", "p1"], ["p2"]]')
    return names(value[0]), names(value[1])
