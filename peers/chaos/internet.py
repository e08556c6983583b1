"""The emulated internet as the director sees it: hosts with addresses, links with shapes, cuts.

Two kinds: `Namespaces`, where every host has a network of its own and packets pass the forwarder (root), and `Relays`,
where hosts share the loopback interface and bytes pass a relay for each link (anyone).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from peers.chaos.pipe import Shape
from peers.chaos.scenario import HostPlan, Scenario

_NETWORK = "10.77"
PORT = 4001
"""Of who has a lasting address: coordinators and the bootstrap node."""

Pairs = Collection[tuple[str, str]]


class InternetError(RuntimeError):
    """The emulated internet broke, or cannot do what is asked; the message says what."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host's process lives, and how it is told to."""

    address: str
    """IPv4, as other hosts see it."""
    namespace: str | None
    listening: tuple[str, ...]
    """Options of a process with a lasting address."""
    joining: tuple[str, ...]
    """Options of a peer."""


class Internet(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def add(self, host: HostPlan) -> Place:
        """Connect a host. Raises InternetError."""
        ...

    def shape(self, pairs: Pairs, shape: Shape) -> None: ...
    def cut(self, pairs: Pairs) -> None: ...
    def heal(self, pairs: Pairs) -> None: ...
    def started(self, host: str, pid: int) -> None:
        """A process of this host runs."""
        ...


class Namespaces:
    """Network namespaces; needs root and /dev/net/tun. Everything vanishes with this process."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._program: _Program | None = None
        self._hosts: list[str] = []

    def __enter__(self) -> Self:
        self._program = _Program("peers.chaos.forwarder", str(self._scenario.seed), str(self._scenario.mtu))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._program is not None:
            self._program.close()

    def add(self, host: HostPlan) -> Place:
        number = len(self._hosts) + 1
        address = f"{_NETWORK}.{number // 250}.{number % 250 + 1}"
        order = {"do": "host", "name": host.name, "address": address, "up": asdict(host.up), "down": asdict(host.down)}
        namespace = self._say(order)["namespace"]
        for other in self._hosts:
            for pair in ((host.name, other), (other, host.name)):
                self.shape([pair], link_shape(self._scenario, *pair))
        self._hosts.append(host.name)
        return Place(address, namespace, (f"--listen=/ip4/{address}/tcp/{PORT}",), ())

    def shape(self, pairs: Pairs, shape: Shape) -> None:
        for source, target in pairs:
            self._say({"do": "link", "from": source, "to": target, "shape": asdict(shape)})

    def cut(self, pairs: Pairs) -> None:
        self._say({"do": "cut", "pairs": list(pairs)})

    def heal(self, pairs: Pairs) -> None:
        self._say({"do": "heal", "pairs": list(pairs)})

    def started(self, host: str, pid: int) -> None:
        pass

    def _say(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._program is not None
        return self._program.say(order)


def link_shape(scenario: Scenario, source: str, target: str) -> Shape:
    """What the link is like where no fault has changed it: the last [[link]] that speaks of it, else [network]."""
    shape = scenario.default_link
    for link in scenario.links:
        if (source, target) in link.pairs:
            shape = link.shape
    return shape


def all_pairs(of: Sequence[str], others: Collection[str]) -> list[tuple[str, str]]:
    """Both ways, between each of `of` and every other host."""
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
            start_new_session=True,  # Ctrl-C is for who made it
        )

    def say(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Raises InternetError."""
        assert self._process.stdout is not None
        self._write(order)
        line = self._process.stdout.readline()
        if not line:
            raise InternetError(f"{self._name} ended with {self._process.wait()} at {order}")
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
