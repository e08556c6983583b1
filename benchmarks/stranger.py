"""A stranger that knows an address of a swarm, and nothing else. It floods the process there and records the answers.

    python -m benchmarks.stranger ADDRESS SECONDS [--rate BYTES_PER_S] [--connections PER_S] [--records NUMBER]

It opens TCP connections that send nothing or nonsense, and libp2p connections whose streams are half open, carry junk
or a hello without a pass. It sends records to the DHT, and asks the DHT for the records of others. It prints a JSON
line at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils import MSGPackSerializer

from swarm.manifest import PROTOCOL_VERSION
from swarm.net.addresses import components, split_peer
from swarm.net.bulk import MANIFEST, PROTOCOL
from swarm.net.daemon import _read_message
from swarm.net.dht_clock import get_dht_time
from swarm.net.host import Host
from swarm.net.identity import Identity, peer_id_bytes
from swarm.net.proto import link_pb2, messages_pb2
from swarm.net.run_key import RunKey
from swarm.net.stream import Stream

HOSTS = 3
"""Number of libp2p identities at a time. Each takes part in `--connections`."""
HELD_S = 5.0
"""Seconds for which a silent connection is kept open."""
STREAMS = 12
"""Number of streams of one libp2p connection."""
AT_ONCE = 50
"""Number of records in one request to store."""
_PIECE = 8 << 10


class Flood:
    """The actions of one stranger, and the answers that it gets."""

    def __init__(self, address: str, rate: float, connections: float, records: int, seconds: float) -> None:
        parts = dict(components(address))
        self._where = (parts["ip4"], int(parts["tcp"]))
        self._address = address
        peer = split_peer(address)[1]
        assert peer is not None, "the address ends in the peer's id"
        self._peer = peer
        self._rate, self._connections, self._records, self._seconds = rate, connections, records, seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._free_at = 0.0
        self.done: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        """The answers to what was sent, by their bytes in hex, or the text of a refusal."""
        self.met: set[str] = set()
        """Peers whose addresses our daemons know, apart from the one that was given."""

    async def run(self, folder: Path) -> None:
        until = asyncio.get_running_loop().time() + self._seconds
        self._free_at = asyncio.get_running_loop().time()
        each = self._connections / (2 * HOSTS)
        work = [self._every(1 / (self._connections / 2), until, self._knock)]
        for number in range(HOSTS):
            host = await Host.create(folder / f"stranger-{number}", ["/ip4/127.0.0.1/tcp/0"])
            work.append(self._every(1 / each, until, partial(self._visit, host)))
            work.append(self._store(host, until, self._records // HOSTS))
        await asyncio.gather(*work)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _every(self, pause_s: float, until: float, act: Callable[[], Awaitable[None]]) -> None:
        """Begin something again and again, whether the one before succeeds or not. At most a few seconds' worth at
        once.
        """
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        mine: set[asyncio.Task[None]] = set()
        while loop.time() < until:
            if len(mine) < 2 * HELD_S / pause_s:
                task = loop.create_task(self._tried(act))
                for tasks in (mine, self._tasks):
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            next_at = max(next_at + pause_s, loop.time())
            await asyncio.sleep(next_at - loop.time())

    async def _tried(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(2 * HELD_S):
                await act()
        except (OSError, ValueError, TimeoutError) as error:
            self.done[f"failed: {type(error).__name__}"] += 1

    async def _spend(self, nbytes: int) -> None:
        """Wait until this many bytes may be sent."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + nbytes / self._rate
        self.done["bytes"] += nbytes
        await asyncio.sleep(self._free_at - now)

    async def _knock(self) -> None:
        """Open a TCP connection that sends nothing, or nonsense, for a while."""
        _, writer = await asyncio.open_connection(*self._where)
        self.done["tcp connections"] += 1
        try:
            if random.random() < 0.5:
                await self._spend(_PIECE)
                writer.write(os.urandom(_PIECE))
            await asyncio.sleep(HELD_S)
        finally:
            writer.close()

    async def _visit(self, host: Host) -> None:
        """Open a libp2p connection with streams of all kinds. It is cut at the end, so that the next visit is a new
        one.
        """
        await host.connect(self._peer, [self._address])
        self.done["libp2p connections"] += 1
        await asyncio.gather(*(self._stream(host, kind) for kind in range(STREAMS)), return_exceptions=True)
        await self._look_round(host)
        cut = p2pd_pb2.DisconnectRequest(peer=peer_id_bytes(self._peer))
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=cut)
        stream, _ = await host._daemon._request(request, "disconnect", HELD_S)
        stream.close()

    async def _stream(self, host: Host, kind: int) -> None:
        stream = await host.open_stream(self._peer, PROTOCOL)
        self.done["streams"] += 1
        try:
            match kind % 4:
                case 0:  # half open
                    await asyncio.sleep(HELD_S)
                case 1:  # half a frame
                    await stream.write(struct.pack("<II", 4096, 0) + os.urandom(100))
                    await asyncio.sleep(HELD_S)
                case 2:  # a frame of junk
                    await self._spend(_PIECE)
                    await stream.write(struct.pack("<II", 4096, 0) + os.urandom(_PIECE))
                    await self._listen(stream)
                case _:  # a hello without a pass
                    await self._hello(host, stream)
        finally:
            stream.abort()

    async def _hello(self, host: Host, stream: Stream) -> None:
        me = messages_pb2.Actor(peer=host.peer_id, incarnation=random.getrandbits(30))
        hello = link_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            run_hash=os.urandom(32),
            sender=me,
            role=random.choice((link_pb2.ROLE_PEER, link_pb2.ROLE_COORDINATOR, link_pb2.ROLE_GUEST)),
            channel=random.choice((link_pb2.CHANNEL_CONTROL, link_pb2.CHANNEL_BULK)),
            certificate=os.urandom(200),
            enrolment=os.urandom(200),
        )
        await stream.write_frame(hello.SerializeToString())
        with contextlib.suppress(ConnectionError):
            await stream.write_frame(MANIFEST)
        await self._listen(stream)

    async def _listen(self, stream: Stream) -> None:
        """Record all answers, until the other side closes the stream."""
        heard = bytearray()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(HELD_S):
                while len(heard) < 1 << 20:
                    heard += await stream.read_exactly(1)
        self.told[bytes(heard).hex()] += 1

    async def _store(self, host: Host, until: float, records: int) -> None:
        """Send records to the DHT, and ask it for the records of others."""
        loop = asyncio.get_running_loop()
        requests = max(1, records // AT_ONCE)
        began = loop.time()
        for number in range(requests):
            await asyncio.sleep(max(0.0, began + number * (until - began) / requests - loop.time()))
            if loop.time() >= until:
                return
            stub = host.dht.protocol.get_stub(PeerID.from_base58(self._peer))
            node = host.dht.protocol.node_info
            keys = [DHTID.generate(os.urandom(20)).to_bytes() for _ in range(AT_ONCE)]
            store = dht_pb2.StoreRequest(keys=keys, peer=node)
            for key in keys:
                owner = Identity(Ed25519PrivateKey.generate(), Path())
                sealed = RunKey(os.urandom(32)).seal(owner.peer_id, key, os.urandom(300))
                store.subkeys.append(MSGPackSerializer.dumps(owner.peer_id))
                store.values.append(MSGPackSerializer.dumps(sealed))
                store.expiration_time.append(get_dht_time() + 60)
                store.in_cache.append(False)
            self.done["records"] += AT_ONCE
            await self._spend(store.ByteSize())
            for call, request in (
                (stub.rpc_store, store),
                (stub.rpc_find, dht_pb2.FindRequest(keys=keys[:10], peer=node)),
                (stub.rpc_ping, dht_pb2.PingRequest(peer=node)),
            ):
                try:
                    answer = await call(request, timeout=2 * HELD_S)
                    self.told[answer.SerializeToString().hex()] += 1
                except P2PHandlerError as error:
                    self.told[str(error)] += 1
                    self.done["dht refused"] += 1
                except (OSError, TimeoutError, P2PDaemonError, ValueError) as error:
                    self.done[f"failed: {type(error).__name__}"] += 1  # the connection was cut meanwhile

    async def _look_round(self, host: Host) -> None:
        """Record which peers our daemon has met through the attacked one."""
        listed = p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS)
        stream, response = await host._daemon._request(listed, "list peers", HELD_S)
        stream.close()
        self.met |= {PeerID(peer.id).to_base58() for peer in response.peers} - {self._peer}
        closest = p2pd_pb2.DHTRequest(type=p2pd_pb2.DHTRequest.GET_CLOSEST_PEERS, key=os.urandom(32), timeout=5)
        with contextlib.suppress(ConnectionError):
            stream, response = await host._daemon._request(
                p2pd_pb2.Request(type=p2pd_pb2.Request.DHT, dht=closest), "ask libp2p's DHT", HELD_S
            )
            while response.dht.type != p2pd_pb2.DHTResponse.END:
                found = p2pd_pb2.DHTResponse()
                await _read_message(stream, found)
                if found.type == p2pd_pb2.DHTResponse.END:
                    break
                self.met.add(PeerID(found.value).to_base58())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rate", type=float, default=1e6, help="Bytes a second at most.")
    parser.add_argument("--connections", type=float, default=50.0, help="Connections a second.")
    parser.add_argument("--records", type=int, default=20_000)
    words = parser.parse_args()
    flood = Flood(words.address, words.rate, words.connections, words.records, words.seconds)
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        uvloop.run(flood.run(Path(folder)))
    print(json.dumps({"done": flood.done, "told": flood.told, "met": sorted(flood.met)}), flush=True)


if __name__ == "__main__":
    main()
