"""Who answers at an address: only a process with the right key counts."""

from __future__ import annotations

from pathlib import Path

from authority import Authority

from swarm.net.door import Door
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.identity import Identity
from swarm.net.knock import knock
from swarm.net.network import Network
from swarm.net.observer import NetworkObserver
from swarm.protocol.ids import Actor

RUN = "ab" * 32
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
WITHIN_S = 20.0
"""A hang guard: a refused answer comes earlier."""


async def test_only_a_process_with_the_key_answers(tmp_path: Path) -> None:
    me = Identity.load(tmp_path / "me.key").peer_id
    host = await Host.create(tmp_path / "me.key", LISTEN)
    stranger = await Host.create(tmp_path / "stranger.key", LISTEN)
    network = Network(
        host,
        Actor(me, 0),
        Door(RUN, (me,), Authority().public_key),
        Role.COORDINATOR,
        NetworkObserver(),
        max_payload=0,
        reconnect_grace_s=0.2,
        step_s=60.0,
    )
    try:
        where = await host.addresses()
        assert not await knock(me, where, RUN, WITHIN_S), "the daemon alone is no process that coordinates"
        await network.start()
        assert await knock(me, where, RUN, WITHIN_S)
        assert await knock(me, where, "cd" * 32, WITHIN_S), "whatever run it hosts"
        pretends = [address.replace(stranger.peer_id, me) for address in await stranger.addresses()]
        assert not await knock(me, pretends, RUN, WITHIN_S), "it has another key"
    finally:
        await network.close()
        await host.close()
        await stranger.close()
    assert not await knock(me, where, RUN, WITHIN_S), "nobody listens there"
