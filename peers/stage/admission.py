"""Admission: a device shows its pass to a coordinator, and gets the run's manifest and its own certificate.

The certificate is kept in the home, for later starts with the same pass. The device shows it to all other members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from peers.run.home import Home, HomeError
from peers.runtime.core_loop import RunFailed
from peers.runtime.organisers import certificate_from_any, fetch_from_any, members_of
from peers.stage.patience import Patience
from swarm.atomic import atomic_file, write_whole
from swarm.events import Event
from swarm.manifest import RunManifest, SignedManifest
from swarm.net.addresses import split_peer
from swarm.net.bulk import BulkError, Busy
from swarm.net.handshake import Channel, Introduction, Refusal, Refused, Role
from swarm.net.host import DialError, Host
from swarm.net.invite import Invite, InviteError
from swarm.net.passes import MAX_BYTES, Certificate, PassError, Ticket
from swarm.net.records import lookup
from swarm.protocol.ids import Actor

_PAUSE_S = 1.0
_BUSY_S = 120.0
"""Seconds for which a device tries again while no coordinator can record its admission, for example without a leader.
"""


class Admitted(NamedTuple):
    signed: SignedManifest
    manifest: RunManifest
    certificate: bytes


def check_identity(home: Home) -> None:
    """Check that a home that was admitted to a run still has its identity. Raises HomeError, because it would silently
    become another peer, which takes the place of one more device of the pass.
    """
    if home.certificate.exists() and not home.identity.exists():
        raise HomeError(
            f"{home.identity} is missing, but this home has taken part in a run: restore it from a backup. Without "
            f"one, delete {home.certificate}: the home then joins as another peer, which its pass counts as one more "
            "device"
        )


async def be_admitted(host: Host, home: Home, invite: Invite) -> Admitted:
    """Use the stored certificate, or ask a coordinator for a new one.

    Raises RunFailed if the device or its pass is shut out; InviteError, ManifestError, DialError, Refused, BulkError.
    """
    try:
        return await _admitted(host, home, invite)
    except Refused as error:
        if error.refusal is Refusal.SHUT_OUT:
            raise RunFailed(f"the coordinator refuses this peer: {error}") from None
        raise


async def be_admitted_somewhere(
    host: Host, home: Home, invite: Invite, patience: Patience | None, tell: Callable[[Event], object]
) -> tuple[Invite, Admitted]:
    """Like `be_admitted`, but if no coordinator can be dialled, the DHT is asked where they are now. Returns the invite
    with the addresses that were found.

    `patience`: of a peer that was in the run before; it waits while no coordinator can be reached. None: it does not
    wait. Raises the errors of `be_admitted` and `Patience.wait`.
    """
    while True:
        try:
            admitted = await be_admitted(host, home, invite)
        except DialError as error:
            found = await found_again(host, invite)
            if found != invite:
                invite = found
                continue
            why = f"{error}: is the coordinator running? If it has moved, its organiser has a new invite"
            if patience is None:
                raise DialError(why) from None
            await patience.wait(why, tell)
        else:
            if patience is not None and (back := patience.look(None, asyncio.get_running_loop().time())) is not None:
                tell(back)
            return invite, admitted


async def found_again(host: Host, invite: Invite) -> Invite:
    """The invite, with the addresses that its machines have published in the DHT."""
    machines = {peer for peer in (split_peer(address)[1] for address in invite.addresses) if peer is not None}
    published = dict.fromkeys(invite.addresses)
    for record in [] if invite.run_hash is None else await lookup(host, invite.run_hash, machines):
        for address in record.addresses:
            full = address if split_peer(address)[1] else f"{address}/p2p/{record.actor.peer}"
            if split_peer(full)[1] == record.actor.peer:
                published.setdefault(full)
    return replace(invite, addresses=tuple(published))


def says_shut_out(refusal: str) -> bool:
    """True if a coordinator refuses this device because the device or its pass is shut out of the run."""
    return refusal.startswith(Refusal.SHUT_OUT.value)


async def _admitted(host: Host, home: Home, invite: Invite) -> Admitted:
    if invite.ticket is None or invite.run_hash is None:
        raise InviteError(
            "an address is not enough to join: ask the organiser for an invite (swarm3-…); `swarm-peer "
            "invite` makes one"
        )
    guest = Introduction(invite.run_hash, Actor(host.peer_id, 0), Role.GUEST, None, Channel.BULK)
    kept = _kept(home.certificate, invite.ticket, host.peer_id)
    if kept is not None:
        try:
            signed = await fetch_from_any(host, invite, replace(guest, certificate=kept))
            return Admitted(signed, signed.verify(invite.run_hash, invite.fingerprint), kept)
        except Refused as error:
            if error.refusal is not Refusal.NO_PASS:  # otherwise its signer has left
                raise
    guest = replace(guest, enrolment=invite.ticket.enrol(host.peer_id))
    signed = await fetch_from_any(host, invite, guest)
    manifest = signed.verify(invite.run_hash, invite.fingerprint)
    certificate = await _certificate(host, invite, guest)
    coordinators = [member.peer for member in members_of(manifest)] or [invite.coordinator]
    try:
        found = Certificate.open(certificate)
    except PassError as error:
        raise BulkError(f"the coordinator sends no certificate: {error}") from None
    if found.peer != host.peer_id or found.run_hash != manifest.hash or found.issuer not in coordinators:
        raise BulkError("the coordinator sends a certificate of another device, run or coordinator")
    with atomic_file(home.certificate, private=True) as file:
        write_whole(file, certificate)
    return Admitted(signed, manifest, certificate)


async def _certificate(host: Host, invite: Invite, guest: Introduction) -> bytes:
    loop = asyncio.get_running_loop()
    until = loop.time() + _BUSY_S
    while True:
        try:
            return await certificate_from_any(host, invite, guest)
        except Busy:
            if loop.time() >= until:
                raise
        await asyncio.sleep(_PAUSE_S)


def _kept(path: Path, ticket: Ticket, peer: str) -> bytes | None:
    """The stored certificate, if it was issued for this pass."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        found = Certificate.open(raw)
    except (FileNotFoundError, PassError):
        return None
    given = ticket.given.of_device(peer)
    return raw if (found.serial, found.run_hash, found.peer) == (given.serial, given.run_hash, peer) else None
