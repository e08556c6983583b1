"""The organiser's machines of a run: their ids, from the manifest, and their addresses, from an invite."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.manifest import RunManifest, SignedManifest
from swarm.net.addresses import split_peer
from swarm.net.bulk import BulkError, fetch_manifest
from swarm.net.handshake import Refused
from swarm.net.host import DialError, Host
from swarm.net.invite import Invite
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor


def members_of(manifest: RunManifest) -> tuple[Actor, ...]:
    """The group that the manifest names; empty if one machine coordinates alone."""
    return tuple(Actor(peer, COORDINATOR_INCARNATION) for peer in manifest.coordinator.group)


def addresses_by_peer(addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The addresses of an invite by peer id; an invite may name several machines."""
    found: dict[str, tuple[str, ...]] = {}
    for address in addresses:
        peer = split_peer(address)[1]
        if peer is not None:
            found[peer] = (*found.get(peer, ()), address)
    return found


async def fetch_from_any(host: Host, invite: Invite) -> SignedManifest:
    """The signed manifest, from any of an invite's machines; the named coordinator is asked first.

    Raises the errors of `fetch_manifest` for the last one asked.
    """
    by_peer = addresses_by_peer(invite.addresses)
    order = sorted(by_peer, key=lambda peer: peer != invite.coordinator)
    for peer in order[:-1]:
        try:
            return await fetch_manifest(host, peer, by_peer[peer], invite.run_hash)
        except (BulkError, DialError, Refused):
            continue
    return await fetch_manifest(host, order[-1], by_peer[order[-1]], invite.run_hash)
