"""A process that carries packets between hosts with the delay, rate and loss of their links.

    python -m peers.chaos.forwarder SEED MTU     (by internet.py; orders are JSON lines on stdin, answers on stdout)

It makes the hosts (namespace.py): each has one TUN device, which this process reads. A packet passes three pipes: the
sender's uplink, the pair's link, the receiver's downlink. So kernels without `netem` can emulate an internet too.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from peers.chaos.namespace import make_host
from peers.chaos.pipe import Pipe, Shape
from peers.chaos.router import HOME, Router
from peers.launching.process import die_with_parent

_BATCH = 64
"""Number of packets that are read from one device before the other devices have their turn."""


@dataclass(slots=True)
class ForwardedHost:
    name: str
    device: int
    namespace: int
    up: Pipe
    down: Pipe
    router: Router | None = None
    """The router in front of the host. None: the host is on the internet itself."""


class Forwarder:
    """Carries the packets of all hosts. `tick` moves packets; `order` changes the internet. `forwarded` and `dropped`
    count packets.
    """

    def __init__(
        self, seed: int, mtu: int, clock: Callable[[], float] = time.monotonic, *, slow_start: bool = True
    ) -> None:
        self._random = Random(seed)
        self._mtu = mtu
        self._slow_start = slow_start
        self._clock = clock
        self._hosts: dict[bytes, ForwardedHost] = {}
        """The hosts, by address."""
        self._by_device: dict[int, ForwardedHost] = {}
        self._by_name: dict[str, ForwardedHost] = {}
        self._links: dict[tuple[str, str], Pipe] = {}
        self._poll = select.epoll()
        self._on_the_way: list[tuple[float, int, bool, ForwardedHost, bytes]] = []
        """The packets on their way: (time, count, whether the downlink is passed, receiver, packet)."""
        self._count = 0

    def order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one order; returns its answer. Raises KeyError, OSError."""
        match order["do"]:
            case "host":
                shapes = Shape(**order["up"]), Shape(**order["down"])
                return self._add(order["name"], order["address"], *shapes, order["nat"])
            case "link":
                self._link(order["from"], order["to"]).shape = Shape(**order["shape"])
            case "cut" | "heal":
                for source, target in order["pairs"]:
                    self._link(source, target).cut = order["do"] == "cut"
            case unknown:
                raise KeyError(unknown)
        return {}

    def watch(self, descriptor: int) -> None:
        """Let `tick` return True when this descriptor is readable."""
        self._poll.register(descriptor, select.EPOLLIN)

    def tick(self) -> bool:
        """Wait until a packet can be moved, and move it."""
        wait = -1.0
        if self._on_the_way:
            wait = max(0.0, self._on_the_way[0][0] - self._clock())
        watched = False
        for descriptor, _ in self._poll.poll(wait):
            host = self._by_device.get(descriptor)
            if host is None:
                watched = True
            else:
                self._read(host)
        self._deliver()
        return watched

    # ------------------------------------------------------------

    def _add(self, name: str, address: str, up: Shape, down: Shape, nat: bool) -> dict[str, Any]:
        namespace, device = make_host(HOME if nat else address, self._mtu, slow_start=self._slow_start)
        router = Router(address) if nat else None
        host = ForwardedHost(name, device, namespace, Pipe(up, self._random), Pipe(down, self._random), router)
        self._hosts[socket.inet_aton(address)] = self._by_device[device] = self._by_name[name] = host
        self._poll.register(device, select.EPOLLIN)
        return {"namespace": f"/proc/{os.getpid()}/fd/{namespace}"}

    def _link(self, source: str, target: str) -> Pipe:
        pipe = self._links.get((source, target))
        if pipe is None:
            pipe = self._links[source, target] = Pipe(Shape(), self._random)
        return pipe

    def _read(self, host: ForwardedHost) -> None:
        for _ in range(_BATCH):
            try:
                packet = os.read(host.device, 65_535)
            except BlockingIOError:
                return
            to = self._hosts.get(packet[16:20])
            if to is None:  # multicast, IPv6, a private address: there is no such host
                continue
            now = self._clock()
            if host.router is not None or to.router is not None:
                routed = _routed(packet, host.router, to.router, now)
                if routed is None:
                    continue
                packet = routed
            left = host.up.admit(now, len(packet))
            arrives = None if left is None else self._link(host.name, to.name).admit(left, len(packet))
            if arrives is None:  # lost
                continue
            if arrives <= now and to.down.plain:
                _write(to, packet)
            else:
                self._later(arrives, to.down.plain, to, packet)

    def _deliver(self) -> None:
        now = self._clock()
        while self._on_the_way and self._on_the_way[0][0] <= now:
            at, _, through, to, packet = heapq.heappop(self._on_the_way)
            arrives = at if through else to.down.admit(at, len(packet))
            if arrives is None:
                continue
            if arrives <= now:
                _write(to, packet)
            else:
                self._later(arrives, True, to, packet)

    def _later(self, at: float, through: bool, to: ForwardedHost, packet: bytes) -> None:
        self._count += 1
        heapq.heappush(self._on_the_way, (at, self._count, through, to, packet))


def _write(to: ForwardedHost, packet: bytes) -> None:
    with suppress(OSError):  # its queue is full: a router drops too
        os.write(to.device, packet)


def _routed(packet: bytes, near: Router | None, far: Router | None, now: float) -> bytes | None:
    """Return the packet as it arrives at the other end; None if a router drops it."""
    outside = packet if near is None else near.out(packet, now)
    return outside if outside is None or far is None else far.into(outside, now)


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    forwarder = Forwarder(int(sys.argv[1]), int(sys.argv[2]), slow_start=bool(int(sys.argv[3])))
    orders = sys.stdin.fileno()
    forwarder.watch(orders)
    rest = b""
    while True:
        if not forwarder.tick():
            continue
        more = os.read(orders, 65_536)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        for line in lines:
            try:
                answer = forwarder.order(json.loads(line))
            except OSError as error:
                answer = {"error": str(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
