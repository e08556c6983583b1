"""The agreement of a group of coordinators before they start: its members, and one signed manifest.

One coordinator signs the manifest with its organiser's key. The others are started with an invite from that
coordinator: they fetch the manifest, check that it matches their own RUN.toml and data, and store it and the invite
for later starts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.run.home import OpenHome
from peers.runtime.organisers import fetch_from_any
from swarm.atomic import atomic_file, write_whole
from swarm.manifest import ManifestError, RunManifest, SignedManifest, differences
from swarm.net import invite as invites
from swarm.net.bulk import BulkError
from swarm.net.handshake import Channel, Introduction, Refused, Role
from swarm.net.host import DialError, Host
from swarm.net.identity import Identity
from swarm.net.invite import Invite
from swarm.protocol.ids import Actor


class CharterError(ValueError):
    """This machine cannot coordinate this run; the text says what to change."""


def check_place(manifest: RunManifest, home: OpenHome) -> None:
    """Check that this machine may coordinate the run. Raises CharterError if the manifest names a group that does not
    include this machine, or if the home has lost its identity, so that no invite would lead to this machine any more.
    """
    if home.decisions.exists() and not home.identity.exists():
        raise CharterError(
            f"{home.identity} is missing, but this home has coordinated a run: restore it from a backup. Without one, "
            f"make a new identity with `swarm-peer id --home {home.path}`; then all peers need new invites"
        )
    group, me = manifest.coordinator.group, Identity.load(home.identity).peer_id
    if group and me not in group:
        raise CharterError(
            f"this machine is {me} with --home {home.path}, which is not in coordinator.group of RUN.toml: list there "
            "the id that `swarm-peer id` prints on each of the organiser's machines"
        )


def way_in(home: OpenHome, given: Invite | None) -> Invite | None:
    """The invite of another coordinator: the one given now, or the one stored at an earlier start. Raises InviteError,
    CharterError, OSError.
    """
    path = home.path / "invite"
    if given is not None:
        if given.ticket is None:
            raise invites.InviteError(
                "an address is not an invite: give --invite the invite that the other coordinator printed"
            )
        if given.observes:
            raise invites.InviteError(
                "an observer's invite: give --invite the invite that the other coordinator printed"
            )
        return given
    if not path.exists():
        return None
    try:
        return invites.parse(path.read_text(encoding="ascii", errors="replace"))
    except invites.InviteError as error:
        raise CharterError(f"{path} is damaged ({error}): delete it and give --invite again") from None


async def signed_manifest(
    manifest: RunManifest, home: OpenHome, host: Host, invite: Invite | None, key: Ed25519PrivateKey
) -> SignedManifest:
    """With an invite: the manifest that another coordinator has signed. Otherwise: the manifest signed with `key`.

    Raises CharterError, ManifestError, DialError, Refused, BulkError.
    """
    path = home.path / "manifest.signed"
    kept = _decode(path.read_text(encoding="ascii", errors="replace")) if path.exists() else None
    if kept is not None and kept.manifest == manifest.canonical():
        kept.verify()
        return kept
    if invite is None:
        return SignedManifest.sign(manifest, key)
    if invite.run_hash is not None and invite.run_hash != manifest.hash:
        raise CharterError(
            f"RUN.toml and its data describe run {manifest.hash[:16]}…, but the invite is for run "
            f"{invite.run_hash[:16]}…{await _told_apart(manifest, kept, host, invite)}: all coordinators of a group "
            "need the same RUN.toml, the same --set and the same prepared data: copy them from one machine. If this "
            "is a new run, give --invite the invite that its first coordinator has printed"
        )
    signed = await _fetch(host, invite, manifest.hash)
    signed.verify(manifest.hash, invite.fingerprint)
    _keep(path, _encode(signed))
    _keep(home.path / "invite", invite.encode())
    return signed


async def _fetch(host: Host, invite: Invite, run_hash: str) -> SignedManifest:
    guest = Introduction(run_hash, Actor(host.peer_id, 0), Role.GUEST, None, Channel.BULK)
    return await fetch_from_any(host, invite, guest)


async def _told_apart(mine: RunManifest, kept: SignedManifest | None, host: Host, invite: Invite) -> str:
    """How this run differs from that of `invite`, in brackets for a message. Empty if neither the manifest `kept` in
    the home nor a coordinator can tell.
    """
    assert invite.run_hash is not None
    try:
        if kept is None or hashlib.sha256(kept.manifest).hexdigest() != invite.run_hash:
            kept = await _fetch(host, invite, invite.run_hash)
        kept.verify(invite.run_hash, invite.fingerprint)
    except (ManifestError, DialError, Refused, BulkError):
        return ""
    told = differences(kept.manifest, mine, "{key} is {before} there, {now} here")
    return f" ({told})" if told else ""


def _keep(path: Path, text: str) -> None:
    with atomic_file(path, private=True) as file:  # an invite contains a secret pass
        write_whole(file, f"{text}\n".encode())


def _encode(signed: SignedManifest) -> str:
    parts = {"manifest": signed.manifest, "public_key": signed.public_key, "signature": signed.signature}
    return json.dumps({name: base64.b64encode(value).decode() for name, value in parts.items()})


def _decode(text: str) -> SignedManifest:
    try:
        return SignedManifest(**{name: base64.b64decode(value) for name, value in json.loads(text).items()})
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ManifestError("manifest.signed in --home is damaged: delete it and give --invite again") from None
