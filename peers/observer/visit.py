"""An observer's connection to the coordinators of a run. It asks one of them; if that one fails, it asks the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from peers.run.home import OBSERVER_HOMES, Home
from peers.runtime.core_loop import RunFailed
from peers.runtime.observer_request import MAX_FACTS_BYTES, MAX_TOKENIZER_BYTES, TOKENIZER, ObserverRequest
from peers.runtime.organisers import addresses_by_peer, members_of
from peers.stage.admission import Admitted, be_admitted
from swarm.manifest import RunManifest
from swarm.net.bulk import BulkError
from swarm.net.door import Door
from swarm.net.handshake import Refusal, Refused, Role
from swarm.net.host import Host
from swarm.net.invite import Invite, InviteError
from swarm.net.network import Network
from swarm.net.observer import NetworkObserver
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor

T = TypeVar("T")

_ANY_PORT = ("/ip4/0.0.0.0/tcp/0",)
_FINAL = (Refusal.SHUT_OUT, Refusal.PASS_VOID, Refusal.OTHER_ROLE)
"""Refusals that every coordinator of the run would repeat."""


class Visit:
    """`ask` and `with_any` try the coordinators in turn, beginning with the last one that answered. Made by
    `visiting`.
    """

    def __init__(self, host: Host, network: Network, admitted: Admitted, coordinators: tuple[str, ...]) -> None:
        self.host = host
        self.manifest: RunManifest = admitted.manifest
        self.coordinators = coordinators
        self._network = network
        self._current = 0

    async def ask(self, request: bytes, max_bytes: int = MAX_FACTS_BYTES) -> bytes:
        """A whole answer from any coordinator. Raises the errors of `with_any`."""
        return await self.with_any(lambda peer: self.ask_one(peer, request, max_bytes))

    async def ask_one(self, peer: str, request: bytes, max_bytes: int = MAX_FACTS_BYTES) -> bytes:
        """A whole answer from one coordinator. Raises the errors of `Network.fetch`."""
        transfer = await self._network.bulk.fetch(peer, request, max_bytes)
        return bytes(await transfer.read())

    async def chunks(self, peer: str, request: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """An answer, piece by piece. Raises the errors of `Network.fetch`."""
        transfer = await self._network.bulk.fetch(peer, request, max_bytes)
        async with aclosing(transfer.chunks):
            async for chunk in transfer.chunks:
                yield bytes(chunk)

    async def with_any(self, work: Callable[[str], Awaitable[T]]) -> T:
        """The result of `work(peer id)` for the first coordinator with which it succeeds.

        Raises RunFailed if this observer is refused for good; otherwise the last coordinator's error: ConnectionError
        or TimeoutError.
        """
        count = len(self.coordinators)
        failed: Exception = ConnectionError("this run has no coordinator")
        for number in range(self._current, self._current + count):
            try:
                result = await work(self.coordinators[number % count])
            except Refused as error:
                if error.refusal in _FINAL:
                    raise RunFailed(f"the coordinator refuses this observer: {error}") from None
                failed = error
            except (ConnectionError, TimeoutError) as error:
                failed = error
            else:
                self._current = number % count
                return result
        raise failed

    def go_on(self) -> None:
        """Make later calls begin with the next coordinator, because this one failed."""
        self._current = (self._current + 1) % len(self.coordinators)

    async def tokenizer(self) -> bytes | None:
        """The tokenizer's file; None: the run has none. Raises the errors of `with_any`."""
        request = ObserverRequest(TOKENIZER).encode()
        return await self.ask(request, MAX_TOKENIZER_BYTES) or None


def home_of(invite: Invite, path: Path | None) -> Path:
    """The folder for an observer's key and copies: `path`, or by default one folder per run. Raises InviteError."""
    if not invite.observes or invite.run_hash is None:
        raise InviteError(
            "this invite is for taking part, not for observing: ask the organiser for one that "
            "`swarm-peer invite --role observe` makes"
        )
    return OBSERVER_HOMES / invite.run_hash[:16] if path is None else path


@asynccontextmanager
async def visiting(invite: Invite, home: Home) -> AsyncIterator[Visit]:
    """A visit with an observer's invite. `home` keeps the identity and the certificate.

    Raises RunFailed if the pass is no longer valid, HostError, DialError, BulkError.
    """
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    host = await Host.create(home.identity, _ANY_PORT, invite.addresses, key=invite.key)
    try:
        admitted = await _admitted(host, home, invite)
        manifest = admitted.manifest
        coordinators = tuple(member.peer for member in members_of(manifest)) or (invite.coordinator,)
        network = Network(
            host,
            Actor(host.peer_id, 0),
            Door(manifest.hash, coordinators),
            Role.OBSERVER,
            NetworkObserver(),
            max_payload=0,
            reconnect_grace_s=0.0,
            step_s=60.0,
            certificate=admitted.certificate,
        )
        known = addresses_by_peer(invite.addresses)
        for peer in coordinators:
            network.learn(Actor(peer, COORDINATOR_INCARNATION), known.get(peer, ()))
        try:
            yield Visit(host, network, admitted, coordinators)
        finally:
            await network.close()
    finally:
        await host.close()


async def _admitted(host: Host, home: Home, invite: Invite) -> Admitted:
    try:
        return await be_admitted(host, home, invite)
    except Refused as error:
        raise BulkError(f"the coordinator refuses this observer: {error}") from None
