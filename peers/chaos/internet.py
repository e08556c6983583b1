"""The emulated internet as the director sees it: hosts with addresses, links with shapes, cuts.

There are two kinds: `Namespaces`, where every host has its own network and packets pass the forwarder (root), and
`Relays`, where hosts share the loopback interface and bytes pass a relay for each link (anyone).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from peers.chaos.pipe import Shape
from peers.chaos.scenario import MTU, HostPlan, NetworkPlan, Scenario
from peers.chaos.table import ScenarioError

_NETWORK = "10.77"
PORT = 4001
"""The port on which every host listens."""

Pairs = Collection[tuple[str, str]]


class InternetError(RuntimeError):
    """The emulated internet broke, or cannot do the request; the message says what."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host's process is on the internet, and the command-line options that say so."""

    address: str
    """The IPv4 address under which other hosts see it."""
    namespace: str | None
    listening: tuple[str, ...]
    """Options for a coordinator."""
    joining: tuple[str, ...]
    """Options for a peer or a bootstrap node."""


class Internet(ABC):
    """An emulated internet. It is a context manager: its end removes everything in it. All methods raise
    InternetError.
    """

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._program: _Program | None = None
        self._hosts: list[str] = []

    def __enter__(self) -> Self:
        self._program = self._open(self._plan)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._program is not None:
            self._program.close()

    def add(self, host: HostPlan) -> Place:
        """Connect a host."""
        shapes = {"up": asdict(host.up), "down": asdict(host.down)}
        place = self._add({"do": "host", "name": host.name, **shapes, "nat": host.nat})
        for other in self._hosts:
            for pair in ((host.name, other), (other, host.name)):
                self.shape([pair], self._plan.shape(*pair))
        self._hosts.append(host.name)
        return place

    def started(self, host: str, pid: int) -> None:  # noqa: B027 - only some need to know
        """A process of this host runs now, in place of the one before."""

    def shape(self, pairs: Pairs, shape: Shape) -> None:
        """Give these links this shape."""
        for source, target in pairs:
            self._say({"do": "link", "from": source, "to": target, "shape": asdict(shape)})

    def cut(self, pairs: Pairs) -> None:
        """Cut these links: they carry nothing."""
        self._say({"do": "cut", "pairs": list(pairs)})

    def heal(self, pairs: Pairs) -> None:
        """Restore these links."""
        self._say({"do": "heal", "pairs": list(pairs)})

    def _say(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._program is not None
        return self._program.say(order)

    @abstractmethod
    def _open(self, plan: NetworkPlan) -> _Program: ...

    @abstractmethod
    def _add(self, order: dict[str, Any]) -> Place: ...


class Namespaces(Internet):
    """An internet of network namespaces. It needs root and /dev/net/tun."""

    def _open(self, plan: NetworkPlan) -> _Program:
        return _Program("peers.chaos.forwarder", str(plan.seed), str(plan.mtu), str(int(plan.slow_start)))

    def _add(self, order: dict[str, Any]) -> Place:
        number = len(self._hosts) + 1
        address = f"{_NETWORK}.{number // 250}.{number % 250 + 1}"
        namespace = self._say(order | {"address": address})["namespace"]
        return Place(address, namespace, (f"--listen=/ip4/{address}/tcp/{PORT}",), (f"--port={PORT}",))


class Relays(Internet):
    """An internet on the loopback interface, with each host behind a port of the relay (relay.py).

    TCP carries the bytes, so packets have no size and are not lost. `refuse_without_packets` refuses scenarios that
    need packets beforehand.
    """

    def _open(self, plan: NetworkPlan) -> _Program:
        return _Program("peers.chaos.relay", str(plan.seed))

    def _add(self, order: dict[str, Any]) -> Place:
        port = _free_port()
        front = self._say(order | {"port": port})["front"]
        announced = f"--announce=/ip4/127.0.0.1/tcp/{front}"
        listening = (f"--listen=/ip4/127.0.0.1/tcp/{port}", announced)
        return Place("127.0.0.1", None, listening, (f"--port={port}", announced))

    def started(self, host: str, pid: int) -> None:
        self._say({"do": "started", "name": host, "pid": pid})


def refuse_without_packets(scenario: Scenario) -> None:
    """Refuse a scenario that needs features which relays lack. Raises ScenarioError naming the feature."""
    shapes = {"network": scenario.network.default}
    shapes |= {f"link[{number}]": link.shape for number, link in enumerate(scenario.network.links, 1)}
    shapes |= {f"fault {fault.name!r}": fault.shape for fault in scenario.faults}
    for where, shape in shapes.items():
        if shape.loss:
            raise ScenarioError(
                f"{where}.loss: a relay never loses bytes; run the scenario as root, or remove this key"
            )
    if scenario.network.mtu != MTU:
        raise ScenarioError(
            "network.mtu: a relay passes bytes, not packets; run the scenario as root, or remove this key"
        )
    if not scenario.network.slow_start:
        raise ScenarioError(
            "network.slow_start_after_idle: a relay cannot change the system's TCP; run the scenario as root, or "
            "remove this key"
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def all_pairs(of: Sequence[str], others: Collection[str]) -> list[tuple[str, str]]:
    """The pairs between each of the hosts `of` and every other host, in both directions."""
    found = {(a, b) for a in of for b in others if a != b}
    return sorted(found | {(b, a) for a, b in found})


class _Program:
    """A helper process that takes orders as JSON lines and answers each."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent process
        )

    def say(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send an order and return its answer. Raises InternetError."""
        assert self._process.stdout is not None
        self._write(order)
        line = self._process.stdout.readline()
        if not line:
            raise InternetError(f"{self._name} ended with code {self._process.wait()} at the order {order}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InternetError(answer["error"])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _write(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise InternetError(f"{self._name} has ended") from None
