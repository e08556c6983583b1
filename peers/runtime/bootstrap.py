"""A bootstrap node: a DHT node without a peer or coordinator. It keeps its identity and port across restarts, and so
its address.

With a run's key, it serves the members of this run and checks every record. Without one, it serves everybody: it stores
sealed records that it cannot read, within limits, and gives out the address of no other node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from peers.run.home import OpenHome
from peers.runtime import lasting_port
from peers.runtime.core_loop import INTERRUPTED
from peers.runtime.signals import leaving_signals
from swarm.net.flood_guard import FloodListener
from swarm.net.host import Host, HostError, PortTaken
from swarm.net.run_key import RunKey


async def serve(
    home: OpenHome,
    listen: Sequence[str],
    announce: Sequence[str],
    key: RunKey | None,
    on_addresses: Callable[[list[str]], None],
    on_flood: FloodListener,
) -> str:
    """Run until a signal asks the node to leave; returns why it ended. `on_addresses` gets the addresses to publish.
    `on_flood` gets each flood of connections.

    Raises HostError, AddressError.
    """
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in leaving_signals():
        loop.add_signal_handler(number, leave.set)
    try:
        where = lasting_port.at_last_port(listen, home)
        host = await Host.create(home.identity, where, announce=announce or None, key=key)
        lasting_port.keep(host.listen, home)
        host.flood_guard.on_flood = on_flood
    except PortTaken as error:
        raise lasting_port.explained(error, listen, home) from None
    except HostError:
        if leave.is_set():  # the daemon received the signal too
            return INTERRUPTED
        raise
    try:
        on_addresses(await host.addresses())
        left = asyncio.create_task(leave.wait())
        await asyncio.wait((left, host.died), return_when=asyncio.FIRST_COMPLETED)
        if not left.done():
            left.cancel()
            raise HostError(host.died.result())
        return INTERRUPTED
    finally:
        await host.close()
