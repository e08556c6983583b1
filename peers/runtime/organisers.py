"""The organiser's machines of a run: their ids, from the manifest, and their addresses, from an invite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from swarm.manifest import RunManifest, SignedManifest
from swarm.net.addresses import split_peer
from swarm.net.bulk import BulkError, fetch_certificate, fetch_manifest
from swarm.net.handshake import Introduction, Refused
from swarm.net.host import DialError, Host
from swarm.net.invite import Invite
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor

T = TypeVar("T")


def members_of(manifest: RunManifest) -> tuple[Actor, ...]:
    """The coordinators named by the manifest as a group; empty if one machine coordinates alone."""
    return tuple(Actor(peer, COORDINATOR_INCARNATION) for peer in manifest.coordinator.group)


def addresses_by_peer(addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The addresses of an invite by peer id; an invite may name several machines."""
    found: dict[str, tuple[str, ...]] = {}
    for address in addresses:
        peer = split_peer(address)[1]
        if peer is not None:
            found[peer] = (*found.get(peer, ()), address)
    return found


async def fetch_from_any(host: Host, invite: Invite, guest: Introduction) -> SignedManifest:
    """Fetch the signed manifest from any of an invite's machines; the coordinator that the invite names is asked
    first.

    Raises the errors of `fetch_manifest` for the last machine asked.
    """
    return await _from_any(invite, lambda peer, maddrs: fetch_manifest(host, peer, maddrs, guest))


async def certificate_from_any(host: Host, invite: Invite, guest: Introduction) -> bytes:
    """Fetch the certificate of this device, in the same order. Raises the errors of `fetch_certificate`."""
    return await _from_any(invite, lambda peer, maddrs: fetch_certificate(host, peer, maddrs, guest))


async def _from_any(invite: Invite, ask: Callable[[str, tuple[str, ...]], Awaitable[T]]) -> T:
    by_peer = addresses_by_peer(invite.addresses)
    order = sorted(by_peer, key=lambda peer: peer != invite.coordinator)
    for peer in order[:-1]:
        try:
            return await ask(peer, by_peer[peer])
        except (BulkError, DialError, Refused):
            continue
    return await ask(order[-1], by_peer[order[-1]])
