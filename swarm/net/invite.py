"""The invite: a token that a new volunteer pastes into the command line.

It contains the addresses of the coordinator, the hash of the run, the organiser's fingerprint, a pass, and the run key,
which decrypts the run's records in the DHT.

A token is base64url text with a checksum, so that a token that was cut off in a chat is detected. `parse` also accepts
a plain multiaddress. It contains no pass, so it is not sufficient to join.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from swarm.net import addresses
from swarm.net.identity import IdentityError, peer_id_bytes
from swarm.net.passes import PassError, Ticket
from swarm.net.proto import records_pb2
from swarm.net.run_key import RunKey

_HEAD = "swarm3-"
_OLD_HEADS = ("swarm1-", "swarm2-")
_CHECK_BYTES = 4
_MAX_TOKEN = 8192
_AROUND = "\ufeff\"'`<>“”„‘’«».,; \t\r\n"
"""What may stand in front of or after a token that was copied from a mail or a chat. No token ends with these."""
MAX_ADDRESSES = 16


class InviteError(ValueError):
    """The token or address is not a valid invite; the message gives the reason."""


@dataclass(frozen=True)
class Invite:
    """The content of an invite. `addresses`: where to start, each ending in /p2p/…; `coordinator`: its peer id.

    The other fields are empty if the invite is only an address.
    """

    addresses: tuple[str, ...]
    coordinator: str
    run_hash: str | None = None
    fingerprint: str | None = None
    ticket: Ticket | None = None
    key: RunKey | None = None
    """The run key. None for an observer, which must not see the addresses of members."""

    @property
    def observes(self) -> bool:
        """Whether the pass is for observing the run, not for taking part."""
        return self.ticket is not None and self.ticket.given.observes

    def encode(self) -> str:
        """The token. Raises InviteError when a field is missing or malformed."""
        _check(self)
        key = self.key is not None or self.observes
        if self.run_hash is None or self.fingerprint is None or self.ticket is None or not key:
            raise InviteError(
                "cannot encode an invite without the run hash, the organiser's fingerprint, a pass and the run key"
            )
        raw = records_pb2.Invite(
            addresses=self.addresses,
            coordinator=self.coordinator,
            run_hash=bytes.fromhex(self.run_hash),
            fingerprint=self.fingerprint,
            sealed_pass=self.ticket.sealed,
            seed=self.ticket.seed,
            key=b"" if self.key is None else self.key.secret,
        ).SerializeToString()
        return _HEAD + base64.urlsafe_b64encode(raw + _checksum(raw)).decode().rstrip("=")


def _tidied(text: str) -> str:
    """The token in a text, or the text itself if it contains none. The token's checksum shows whether it is whole."""
    found = re.search(r"swarm[0-9]+-", text)
    if found is None:
        return text.strip().strip(_AROUND)
    return re.sub(r"\s+(?:>\s*)*", "", text[found.start() :]).rstrip(_AROUND)


def parse(text: str) -> Invite:
    """The invite in a token or a bare multiaddress. What mail programs and chats put around and into a token is
    removed: line breaks, quotation marks, a dot at its end, the command in front of it. Raises InviteError.
    """
    text = _tidied(text)
    if text.startswith("/"):
        try:
            peer = addresses.split_peer(text)[1]
        except (addresses.AddressError, IdentityError) as error:
            raise InviteError(str(error)) from None
        if peer is None:
            raise InviteError(f"{text} does not end in /p2p/ and the coordinator's peer id")
        return Invite((text,), peer)
    if text.startswith(_OLD_HEADS):
        raise InviteError(
            f"this invite is from an earlier release ({text[:7]}…): ask the organiser for a new one, which "
            "`swarm-peer coordinate` or `swarm-peer invite` prints"
        )
    if not text.startswith(_HEAD):
        raise InviteError(f"{text[:40]!r} is neither an invite ({_HEAD}…) nor a multiaddress (/ip4/…)")
    if len(text) > _MAX_TOKEN:
        raise InviteError(f"the invite has {len(text)} characters; at most {_MAX_TOKEN} are allowed")
    body = text.removeprefix(_HEAD)
    try:
        # validate: by default, the decoder ignores invalid characters
        whole = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InviteError("the invite is cut off or has stray characters; copy the whole invite again") from None
    raw, check = whole[:-_CHECK_BYTES], whole[-_CHECK_BYTES:]
    if len(whole) <= _CHECK_BYTES or _checksum(raw) != check:
        raise InviteError("the invite is damaged or cut off (its checksum does not match); copy the whole invite again")
    try:
        proto = records_pb2.Invite.FromString(raw)
    except DecodeError as error:
        raise InviteError(f"the invite cannot be read: {error}") from None
    ticket = Ticket(proto.sealed_pass, proto.seed)
    try:
        key = RunKey(proto.key) if proto.key else None
    except ValueError as error:
        raise InviteError(f"the invite cannot be used: {error}") from None
    where = tuple(proto.addresses)
    invite = Invite(where, proto.coordinator, proto.run_hash.hex(), proto.fingerprint, ticket, key)
    _check(invite)
    if key is None and not invite.observes:
        raise InviteError("the invite cannot be used: it contains no run key")
    return invite


def _check(invite: Invite) -> None:
    if not 0 < len(invite.addresses) <= MAX_ADDRESSES:
        raise InviteError(f"the invite has {len(invite.addresses)} addresses; it must have 1 to {MAX_ADDRESSES}")
    try:
        peer_id_bytes(invite.coordinator)
        for address in invite.addresses:
            if addresses.split_peer(address)[1] is None:
                raise InviteError(f"{address} does not end in /p2p/ and a peer id")
    except (addresses.AddressError, IdentityError) as error:
        raise InviteError(str(error)) from None
    if invite.run_hash is not None and not re.fullmatch(r"[0-9a-f]{64}", invite.run_hash):
        raise InviteError(f"run hash {invite.run_hash!r} is not 64 hex digits")
    if invite.fingerprint is not None and not re.fullmatch(r"[0-9a-f]{4}(-[0-9a-f]{4}){3}", invite.fingerprint):
        raise InviteError(f"fingerprint {invite.fingerprint!r} is not of the form 0123-4567-89ab-cdef")
    if invite.ticket is not None:
        _check_pass(invite.ticket, invite.run_hash)


def _check_pass(ticket: Ticket, run_hash: str | None) -> None:
    try:
        ticket.check()
        of = ticket.given.run_hash
    except PassError as error:
        raise InviteError(f"the pass in the invite is invalid: {error}") from None
    if of != run_hash:
        raise InviteError(f"the pass in the invite is for run {of[:16]}…, but the invite is for run {run_hash}")


def _checksum(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()[:_CHECK_BYTES]
