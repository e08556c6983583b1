"""Both emulated internets between real sockets: what arrives when, and what a cut link does."""

from __future__ import annotations

import functools
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from peers.chaos.internet import Internet, Namespaces, Place, Relays, refuse_without_packets
from peers.chaos.namespace import enter, why_not
from peers.chaos.pipe import Shape
from peers.chaos.scenario import HostPlan, NetworkPlan, load
from peers.chaos.table import ScenarioError

DELAY_S = 0.1
RATE = 500_000
ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        while data := connection.recv(65536):
            connection.sendall(data)
"""
TALK = """
import socket, sys
talk = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
talk.settimeout(None)
talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("ready", flush=True)
for line in sys.stdin:
    count = int(line)
    talk.sendall(bytes(count))
    while count:
        count -= len(talk.recv(65536))
    print("back", flush=True)
"""


class Talk:
    """A connection from host a to an echo on host b."""

    def __init__(self, stack: ExitStack, internet: Internet, places: dict[str, Place], port: int, front: int) -> None:
        self._stack = stack
        self._start("b", places["b"], internet, ECHO, places["b"].address, port)
        self._talk = self._start("a", places["a"], internet, TALK, places["b"].address, front)

    def send(self, count: int) -> None:
        assert self._talk.stdin is not None
        self._talk.stdin.write(f"{count}\n")
        self._talk.stdin.flush()

    def wait(self) -> None:
        assert self._talk.stdout is not None
        assert self._talk.stdout.readline() == "back\n"

    def answers_within(self, seconds: float) -> bool:
        return bool(select.select([self._talk.stdout], [], [], seconds)[0])

    def there_and_back_s(self, count: int) -> float:
        began = time.monotonic()
        self.send(count)
        self.wait()
        return time.monotonic() - began

    def _start(
        self, host: str, place: Place, internet: Internet, program: str, *arguments: object
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=None if place.namespace is None else functools.partial(enter, place.namespace),
        )
        self._stack.callback(lambda: (process.kill(), process.communicate()))
        internet.started(host, process.pid)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process


@pytest.fixture(
    params=[
        pytest.param(
            Namespaces, marks=pytest.mark.skipif(why_not() is not None, reason=str(why_not())), id="namespaces"
        ),
        pytest.param(Relays, id="relay"),
    ]
)
def internet(request: pytest.FixtureRequest) -> Iterator[Internet]:
    with request.param(NetworkPlan(Shape(delay_s=DELAY_S))) as made:
        yield made


@pytest.fixture
def talk(internet: Internet) -> Iterator[Talk]:
    access = Shape(rate=RATE)
    yield from talking(internet, {name: HostPlan(name, up=access, down=access) for name in "ab"})


def talking(internet: Internet, hosts: dict[str, HostPlan]) -> Iterator[Talk]:
    places = {name: internet.add(host) for name, host in hosts.items()}
    port = int(next(word for word in places["b"].joining if word.startswith("--port=")).partition("=")[2])
    announced = [word for word in places["b"].joining if word.startswith("--announce=")]
    front = int(announced[0].rpartition("/")[2]) if announced else port
    with ExitStack() as stack:
        yield Talk(stack, internet, places, port, front)


def test_who_is_behind_a_router_reaches_others(internet: Internet) -> None:
    for talk in talking(internet, {"a": HostPlan("a", nat=True), "b": HostPlan("b")}):
        assert talk.there_and_back_s(RATE) < 5.0


def test_who_is_behind_a_router_is_not_reached(internet: Internet) -> None:
    with pytest.raises((AssertionError, OSError)):
        for talk in talking(internet, {"a": HostPlan("a"), "b": HostPlan("b", nat=True)}):
            talk.send(10)
            assert talk.answers_within(10 * DELAY_S)
            talk.wait()


def test_a_link_takes_its_time_and_carries_its_rate(talk: Talk) -> None:
    assert 2 * DELAY_S < talk.there_and_back_s(10) < 2 * DELAY_S + 0.3
    assert talk.there_and_back_s(RATE) > 1.0, "each byte waits for the rate at least once"


def test_a_cut_link_carries_nothing_until_it_heals(internet: Internet, talk: Talk) -> None:
    talk.there_and_back_s(10)
    internet.cut([("b", "a")])
    talk.send(10)
    assert not talk.answers_within(10 * DELAY_S)
    internet.heal([("b", "a")])
    assert talk.answers_within(10.0)


def test_a_link_can_become_another(internet: Internet, talk: Talk) -> None:
    internet.shape([("a", "b"), ("b", "a")], Shape(delay_s=0.0))
    talk.there_and_back_s(10)
    assert min(talk.there_and_back_s(10) for _ in range(5)) < DELAY_S


def test_hosts_vanish_with_who_made_them() -> None:
    if (missing := why_not()) is not None:
        pytest.skip(missing)
    with Namespaces(NetworkPlan()) as internet:
        place = internet.add(HostPlan("a"))
        assert place.namespace is not None and Path(place.namespace).exists()
    with suppress(OSError):
        assert not Path(place.namespace).exists()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("slow_start", [True, False])
def test_connections_of_a_host_slow_down_after_a_pause_as_at_home(slow_start: bool) -> None:
    """Some machines have BBR, which does not; a host has CUBIC or Reno, and Linux's default unless the plan says no."""
    with Namespaces(NetworkPlan(slow_start=slow_start)) as internet:
        place = internet.add(HostPlan("a"))
        assert place.namespace is not None
        settings = ("tcp_congestion_control", "tcp_slow_start_after_idle")
        there = subprocess.run(
            ["cat", *(f"/proc/sys/net/ipv4/{name}" for name in settings)],
            preexec_fn=functools.partial(enter, place.namespace),
            capture_output=True,
            text=True,
            check=True,
        )
    assert there.stdout in (f"cubic\n{slow_start:d}\n", f"reno\n{slow_start:d}\n")


def test_what_a_relay_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text('peers = 2\n[network]\nloss = "1%"\n')
    with pytest.raises(ScenarioError, match=r"network\.loss"):
        refuse_without_packets(load(path))
    path.write_text("peers = 2\n[network]\nslow_start_after_idle = false\n")
    with pytest.raises(ScenarioError, match="slow_start_after_idle"):
        refuse_without_packets(load(path))
    path.write_text("peers = 2\n[network]\nmtu = 9000\n")
    with pytest.raises(ScenarioError, match="mtu"):
        refuse_without_packets(load(path))
