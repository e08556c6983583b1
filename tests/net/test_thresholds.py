"""Until how many bytes a connection grows fast, as the kernel tells it."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo

from peers.chaos.internet import Namespaces
from peers.chaos.namespace import enter, why_not
from peers.chaos.pipe import Shape
from peers.chaos.scenario import HostPlan, NetworkPlan
from swarm.net.host import Host
from swarm.net.thresholds import Thresholds

LOSSY = Shape(delay_s=0.02, loss=0.1)
HOST = """
import asyncio, sys
from pathlib import Path
from swarm.net.host import Host
async def read(stream, peer):
    await stream.read_exactly(400_000)
    await stream.write(b"!")
    await stream.wait_ended()
async def main(home, own, to="", address=""):
    host = await Host.create(Path(home), [own])
    await host.handle_streams("/test/bulk", read)
    print(host.peer_id, flush=True)
    if to:
        await host.connect(to, [address])
        await host.thresholds.look()
        print(host.thresholds.of(to), flush=True)
        stream = await host.open_stream(to, "/test/bulk")
        await stream.write(bytes(400_000))
        await stream.read_exactly(1)
        await host.thresholds.look()
        print(host.thresholds.of(to), flush=True)
    await asyncio.Event().wait()
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_losses_end_the_fast_growth(tmp_path: Path) -> None:
    with Namespaces(NetworkPlan()) as internet, ExitStack() as stack:
        places = {name: internet.add(HostPlan(name)) for name in ("sender", "receiver")}
        own = {name: f"/ip4/{place.address}/tcp/4001" for name, place in places.items()}

        def start(name: str, *arguments: str) -> Callable[[], str]:
            namespace = places[name].namespace
            assert namespace is not None
            process = subprocess.Popen(
                [sys.executable, "-c", HOST, str(tmp_path / name), own[name], *arguments],
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=functools.partial(enter, namespace),
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            internet.started(name, process.pid)
            out = process.stdout
            assert out is not None
            return lambda: out.readline().strip()

        peer_id = start("receiver")()
        internet.shape([("sender", "receiver"), ("receiver", "sender")], LOSSY)
        said = start("sender", peer_id, own["receiver"])
        assert said()
        before, after = said(), said()
        assert before == "None" or int(before) > 0, "a packet of the handshake may have been lost"
        assert 2 * 536 <= int(after) < 100_000


async def test_a_peer_that_is_unknown_or_has_lost_nothing_has_none(
    make_host: Callable[..., Awaitable[Host]],
) -> None:
    one, two = await make_host(), await make_host()
    await one.connect(two.peer_id, await two.addresses())
    try:
        await one.thresholds.look()
    except OSError as error:
        pytest.skip(f"this system does not let a process work on a child's sockets: {error}")
    assert one.thresholds.of(two.peer_id) is None and one.thresholds.of("nobody") is None


async def test_it_ends_where_it_is_forbidden_and_goes_on_without_free_descriptors(socket_failures: list[int]) -> None:
    async def peers() -> list[PeerInfo]:
        return []

    async with asyncio.timeout(10):
        await Thresholds(os.getpid(), peers).watch(every_s=0.0)
    assert not socket_failures
