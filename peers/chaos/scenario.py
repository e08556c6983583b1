"""Scenarios: a swarm, its internet, its faults and the expectations, read from a TOML file (docs/chaos.md)."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from peers.chaos import quantity
from peers.chaos.churn import ChurnPlan, read_churn
from peers.chaos.fault import PlannedFault, between, groups, read_fault, read_shape
from peers.chaos.holders import LEADER, stage_named
from peers.chaos.moment import COORDINATOR, Sight, read_sight
from peers.chaos.pipe import UNLIMITED, Shape
from peers.chaos.table import ScenarioError, Table, host_names, names, nearest
from swarm.compute.least_pace import LeastPace
from swarm.manifest.tables import MAX_COORDINATORS

BOOTSTRAP = "bootstrap"
MAX_HOSTS = 200
DEFAULT_PATIENCE_S = 120.0
MTU = 1500
LEAST_MTU, MOST_MTU = 576, 65_535
LEAST_DISK = 1 << 20
"""Minimum size of a disk in bytes. A file system in memory of size 0 would be unlimited."""
_FILES = ("prepare", "reference", "invite")
"""Files in a play's folder besides its hosts."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A machine: its access to the internet, its disk, the options its process starts with."""

    name: str
    up: Shape = UNLIMITED
    down: Shape = UNLIMITED
    nat: bool = False
    """True if the host is behind a router: it can open connections to other hosts, but they cannot open any to it."""
    disk: int | None = None
    """Size of its disk in bytes. None: it uses the real disk."""
    clock_s: float = 0.0
    """Offset of its wall clock at the start, in seconds."""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkPlan:
    pairs: frozenset[tuple[str, str]]
    """The links: (from, to)."""
    shape: Shape


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The links between hosts. The last entry of `links` that contains a pair counts; without one, `default`."""

    default: Shape = UNLIMITED
    links: tuple[LinkPlan, ...] = ()
    mtu: int = MTU
    seed: int = 1
    slow_start: bool = True
    """Whether a TCP connection sends slowly again after a pause, as by default in Linux."""

    def shape(self, source: str, target: str) -> Shape:
        found = self.default
        for link in self.links:
            if (source, target) in link.pairs:
                found = link.shape
        return found


@dataclass(frozen=True, slots=True)
class Expected:
    """An event that must, or must never, be seen."""

    sight: Sight
    after: str | None
    """The fault after which the event is expected. None: at any time."""
    within_s: float | None
    count: int
    never: bool


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """A process that must end by itself, within a time after a fault, with this exit code."""

    who: str
    after: str
    within_s: float
    code: int


@dataclass(frozen=True, slots=True)
class Expectations:
    """What must be true at the end. `finish`, `equal`: the run ends, with the digests of `reference`. The others are
    bounds; None: no bound.
    """

    finish: bool = True
    equal: bool = True
    gap_s: float | None = None
    """The longest time between two decisions."""
    slowest_step: float | None = None
    """The slowest step in which a fault happened ÷ the usual step."""
    goodput: float | None = None
    """Committed tokens/s from the first fault on ÷ before it."""
    memory_growth: int | None = None
    """Largest growth of a process's memory in bytes, from its first minutes to the end."""
    descriptor_growth: int | None = None
    """The same for open descriptors, threads, and tasks of a peer's event loop."""
    may_end: tuple[str, ...] = ()
    """Hosts whose process may end by itself, with an error."""
    events: tuple[Expected, ...] = ()
    ends: tuple[ExpectedEnd, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    rows: tuple[int, ...]
    """Rows of the fault matrix that it shows (docs/faults.md)."""
    run_file: Path | None
    """The run file. None: a small run, made for this purpose."""
    sets: tuple[str, ...]
    coordinators: tuple[str, ...]
    """The names of the coordinators: `coordinator`, and in a group `coordinator2`, `coordinator3`, …."""
    peers: tuple[str, ...]
    """Peers that join before the first step, in this order."""
    hosts: dict[str, HostPlan]
    network: NetworkPlan
    faults: tuple[PlannedFault, ...]
    churn: ChurnPlan | None
    expect: Expectations
    ends_s: float | None
    """Seconds after the first step at which the play ends. None: when the run ends."""
    patience_s: float
    """If no coordinator logs anything for this number of seconds, the play is given up."""
    pace: LeastPace | None = None
    """The fastest pace at which peers may compute. None: as fast as they can."""

    @property
    def bootstrap(self) -> bool:
        return BOOTSTRAP in self.hosts


def load(path: Path) -> Scenario:
    """Read and check a scenario. Raises ScenarioError, OSError."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the parser also raises others than TOMLDecodeError
        raise ScenarioError(f"{path} is not TOML: {error}") from None
    try:
        return read(Table(raw, ""), path)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def read(table: Table, path: Path) -> Scenario:
    run_file = table.take("run", quantity.text)
    peers = table.need("peers", _peers, "how many peers join, or a list of their names")
    network = table.table("network")
    up, down = network.take("up", quantity.rate), network.take("down", quantity.rate)
    mtu = network.take("mtu", _mtu, MTU)
    seed = network.take("seed", quantity.count, 1)
    slow_start = network.take("slow_start_after_idle", quantity.yes, True)
    default = read_shape(network)
    network.close()
    faults = _faults(table.tables("fault"))
    churn = read_churn(table.table("churn")) if "churn" in table else None
    joining = tuple(name for fault in faults if fault.kind == "join" for name in fault.who)
    spare = churn.names(peers) if churn is not None else ()
    coordinators = table.take("coordinators", _coordinators, (COORDINATOR,))
    others = (BOOTSTRAP,) if table.take("bootstrap", quantity.yes, False) else ()
    plans = _hosts(table.table("hosts"), (*coordinators, *others, *peers, *joining, *spare), up, down)
    scenario = Scenario(
        name=path.stem,
        about=table.take("about", quantity.text, ""),
        rows=table.take("rows", _rows, ()),
        run_file=None if run_file is None else (path.parent / run_file).resolve(),
        sets=table.take("set", names, ()),
        coordinators=coordinators,
        peers=peers,
        hosts=plans,
        network=NetworkPlan(default, tuple(_link(row) for row in table.tables("link")), mtu, seed, slow_start),
        faults=faults,
        churn=churn,
        expect=_expectations(table.table("expect")),
        ends_s=table.take("ends", quantity.span),
        patience_s=table.take("patience", quantity.span, DEFAULT_PATIENCE_S),
        pace=table.take("pace", _pace),
    )
    table.close()
    _check(scenario)
    return scenario


def _faults(tables: list[Table]) -> tuple[PlannedFault, ...]:
    found: list[PlannedFault] = []
    for number, table in enumerate(tables, 1):
        fault = read_fault(table, number)
        found.append(fault)
        if fault.for_s is not None:
            found.append(fault.undone())
    return tuple(found)


def _hosts(table: Table, known: tuple[str, ...], up: int | None, down: int | None) -> dict[str, HostPlan]:
    for name, times in Counter(known).items():
        if times > 1:
            raise ScenarioError(f"{times} hosts are named {name!r}: give each host a different name")
    plans = {name: HostPlan(name, Shape(up), Shape(down)) for name in known}
    for name, raw in table.items():
        if name not in plans:
            raise ScenarioError(f"hosts.{name} is not a host of this scenario{nearest(name, plans)}")
        row = Table(raw, f"hosts.{name}")
        plans[name] = HostPlan(
            name,
            Shape(row.take("up", quantity.rate, up)),
            Shape(row.take("down", quantity.rate, down)),
            row.take("nat", quantity.yes, False),
            row.take("disk", _disk),
            row.take("clock", quantity.seconds, 0.0),
            row.take("options", names, ()),
        )
        row.close()
    if len(plans) > MAX_HOSTS:
        raise ScenarioError(f"{len(plans)} hosts; at most {MAX_HOSTS} are emulated")
    return plans


def _link(table: Table) -> LinkPlan:
    sources, targets = groups(table)
    one_way = table.take("one_way", quantity.yes, False)
    shape = read_shape(table)
    table.close()
    return LinkPlan(frozenset(between(sources, targets, one_way)), shape)


def _expectations(table: Table) -> Expectations:
    events = []
    for row in table.tables("event"):
        sight = read_sight(row)
        if sight is None:
            raise ScenarioError(f"{row.where}.event is missing: name the event that is expected")
        after, within = row.take("after", quantity.text), row.take("within", quantity.span)
        if within is not None and after is None:
            raise ScenarioError(f"{row.where}.within needs `after`: the fault from which it counts")
        never = row.take("never", quantity.yes, False)
        events.append(Expected(sight, after, within, row.take("count", quantity.count, 1), never))
        row.close()
    found = Expectations(
        table.take("finish", quantity.yes, True),
        table.take("equal", quantity.yes, True),
        table.take("gap", quantity.span),
        table.take("slowest_step", quantity.factor),
        table.take("goodput", quantity.share),
        table.take("memory_growth", quantity.size),
        table.take("descriptor_growth", quantity.count),
        table.take("may_end", names, ()),
        tuple(events),
        tuple(_expected_end(row) for row in table.tables("end")),
    )
    table.close()
    return found


def _expected_end(row: Table) -> ExpectedEnd:
    found = ExpectedEnd(
        row.need("who", quantity.text, "the host whose process ends"),
        row.need("after", quantity.text, "the fault that makes it end"),
        row.need("within", quantity.span, "within what time, such as 10s"),
        row.take("code", quantity.whole, 0),
    )
    row.close()
    return found


def _check(scenario: Scenario) -> None:
    """Check that the tables fit together. Raises ScenarioError."""
    if scenario.run_file is not None and not scenario.run_file.is_file():
        raise ScenarioError(f"run: there is no file {scenario.run_file}")
    known = list(scenario.hosts)
    named: list[tuple[str, Collection[str]]] = [(f"fault {fault.name!r}", fault.hosts) for fault in scenario.faults]
    named += [(f"link {number}", {a for a, _ in link.pairs}) for number, link in enumerate(scenario.network.links, 1)]
    named += [(f"link {number}", {b for _, b in link.pairs}) for number, link in enumerate(scenario.network.links, 1)]
    named += [(f"expect.event {e.sight}", {e.sight.of}) for e in scenario.expect.events]
    named += [("expect.end", {end.who}) for end in scenario.expect.ends]
    named.append(("expect.may_end", scenario.expect.may_end))
    named += [(f"fault {f.name!r}", {f.when.sight.of}) for f in scenario.faults if f.when.sight is not None]
    for where, hosts in named:
        for host in hosts:
            if host not in known and not (
                where.startswith("fault") and (host == LEADER or stage_named(host) is not None)
            ):
                raise ScenarioError(f"{where}: {host!r} is not a host{nearest(host, known)}")
    faults = [fault.name for fault in scenario.faults]
    for fault in scenario.faults:
        if faults.count(fault.name) > 1:
            raise ScenarioError(f"two faults are named {fault.name!r}: give each fault a different name")
        if fault.when.after is not None and fault.when.after not in faults:
            others = [name for name in faults if name != fault.name]
            hint = nearest(fault.when.after, others)
            raise ScenarioError(f"fault {fault.name!r} comes after {fault.when.after!r}, which is not a fault{hint}")
        if fault.when.after == fault.name:
            raise ScenarioError(f"fault {fault.name!r} waits for itself, so it never begins")
        for host in fault.who if fault.kind == "fill" else ():
            if host not in scenario.hosts:
                raise ScenarioError(f"fault {fault.name!r}: name the host whose disk is filled, not {host!r}")
            if scenario.hosts[host].disk is None:
                raise ScenarioError(f"fault {fault.name!r} would fill the real disk: give hosts.{host} a `disk`")
        if fault.kind == "join":
            _refuse_taken(fault.who, f"fault {fault.name!r}")
    for name in (*scenario.coordinators, BOOTSTRAP):
        if name in scenario.hosts and scenario.hosts[name].nat:
            raise ScenarioError(f"hosts.{name}.nat: all peers dial this host, so it must be reachable: remove `nat`")
    afters = [expected.after for expected in scenario.expect.events] + [end.after for end in scenario.expect.ends]
    for after in afters:
        if after is not None and after not in faults:
            raise ScenarioError(f"expect: after = {after!r} is not a fault{nearest(after, faults)}")


def _peers(value: object) -> tuple[str, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_HOSTS:
        return tuple(f"p{number}" for number in range(value))
    if not isinstance(value, list):
        raise ScenarioError(f"peers = {value!r}: write a number from 1 to {MAX_HOSTS}, or a list of names")
    found = host_names(value)
    _refuse_taken(found, "peers")
    return found


def _refuse_taken(hosts: Collection[str], where: str) -> None:
    for host in hosts:
        if host.startswith(COORDINATOR) or host in (BOOTSTRAP, LEADER, *_FILES):
            raise ScenarioError(f"{where}: {host!r} is a reserved name; choose another name")


def _coordinators(value: object) -> tuple[str, ...]:
    number = quantity.count(value)
    if number % 2 == 0 or number > MAX_COORDINATORS:
        raise ScenarioError(
            f"coordinators = {number}: write an odd number up to {MAX_COORDINATORS}, because a majority decides"
        )
    return (COORDINATOR, *(f"{COORDINATOR}{n}" for n in range(2, number + 1)))


def _mtu(value: object) -> int:
    found = quantity.count(value)
    if not LEAST_MTU <= found <= MOST_MTU:
        raise quantity.QuantityError(f"{found} is not between {LEAST_MTU} and {MOST_MTU} bytes")
    return found


def _disk(value: object) -> int:
    found = quantity.size(value)
    if found < LEAST_DISK:
        raise quantity.QuantityError(f"{value!r} is less than 1 MiB")
    return found


def _pace(value: object) -> LeastPace:
    if not isinstance(value, list) or len(value) != 2:
        raise ScenarioError(
            f"pace = {value!r}: write the times of a forward and a backward, such as ['100ms', '200ms']"
        )
    forward_s, backward_s = (quantity.span(part) for part in value)
    try:
        return LeastPace(forward_s, backward_s)
    except ValueError as error:
        raise ScenarioError(f"pace = {value!r}: {error}") from None


def _rows(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(row, int) and 1 <= row <= 18 for row in value):
        raise ScenarioError(f"rows = {value!r}: write numbers of rows of the fault matrix, such as [2, 3]")
    return tuple(value)
