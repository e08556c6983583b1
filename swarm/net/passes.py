"""Passes: signed permissions to take part in a run.

The organiser signs a *pass* for a number of devices. The pass contains the public half of a ticket key; its private
half is part of the invite. A device signs its peer id with the private half, which makes an *enrolment*. A coordinator
records the device and signs a *certificate* with its own libp2p key. Every actor of the run can check a certificate
offline.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from swarm.net.identity import Identity, IdentityError, peer_id_bytes, verify
from swarm.net.proto import passes_pb2 as pb

MAX_BYTES = 1024
"""Largest size of a signed pass, enrolment or certificate, bytes."""
MAX_DEVICES = 100_000
SERIAL_BYTES = 16
NEVER = 2**40
"""The expiry time, in Unix seconds, of a pass that never expires. It is the largest allowed expiry time."""
_KEY_BYTES = 32
_RUN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_PASS = b"swarm-peer pass v1\n"
_ENROLMENT = b"swarm-peer enrolment v1\n"
_CERTIFICATE = b"swarm-peer certificate v1\n"
_OWN = b"swarm-peer own pass v1\n"

P = TypeVar("P", bound=Proto)


class PassError(ValueError):
    """A pass, enrolment or certificate is malformed, out of bounds, or not validly signed."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The content of a pass.

    `run_hash`: hex; `serial`: its unique id; `devices`: how many devices may join with it; `expires_at`: Unix seconds.
    """

    run_hash: str
    serial: bytes
    name: str
    devices: int
    expires_at: int
    ticket: bytes
    """Ed25519 public key of the ticket."""
    observes: bool = False
    """True: its devices observe the run. False: they take part. A pass never allows both."""
    open: bool = False
    """Whether the invite may be published: each device then counts as having its own pass (`of_device`)."""

    def sealed(self, organiser: Ed25519PrivateKey) -> bytes:
        """The pass, signed by the organiser. Raises PassError if a field is out of bounds."""
        body = pb.Pass(
            run_hash=bytes.fromhex(self.run_hash),
            serial=self.serial,
            name=self.name,
            devices=self.devices,
            expires_at=self.expires_at,
            ticket=self.ticket,
            observes=self.observes,
            open=self.open,
        ).SerializeToString()
        _pass_of(body)
        return pb.Sealed(body=body, signature=organiser.sign(_PASS + body)).SerializeToString()

    def of_device(self, peer: str) -> Pass:
        """The pass that applies to a device: this one, or, if this pass is open, a derived pass for this device
        only.
        """
        if not self.open:
            return self
        serial = hashlib.sha256(_OWN + self.serial + peer.encode()).digest()[:SERIAL_BYTES]
        return replace(self, serial=serial, devices=1, open=False)

    @classmethod
    def read(cls, raw: bytes) -> Pass:
        """The content of a sealed pass; the signature is not checked. Raises PassError."""
        return _pass_of(_decoded(pb.Sealed, raw).body)

    @classmethod
    def verified(cls, raw: bytes, organiser: bytes) -> Pass:
        """The content of a sealed pass that the organiser with this public key has signed. Raises PassError."""
        sealed = _decoded(pb.Sealed, raw)
        if not _signed(organiser, sealed.signature, _PASS + sealed.body):
            raise PassError("the pass is not signed by the organiser of this run")
        return _pass_of(sealed.body)


@dataclass(frozen=True)
class Ticket:
    """A sealed pass and the private half of its ticket key. It is a secret."""

    sealed: bytes
    seed: bytes

    @classmethod
    def issue(
        cls,
        organiser: Ed25519PrivateKey,
        run_hash: str,
        name: str,
        devices: int,
        expires_at: int,
        *,
        observes: bool = False,
        open: bool = False,
    ) -> Self:
        """A new pass. Raises PassError when a field is out of bounds."""
        key = Ed25519PrivateKey.generate()
        serial, public = secrets.token_bytes(SERIAL_BYTES), key.public_key().public_bytes_raw()
        given = Pass(run_hash, serial, name, devices, expires_at, public, observes, open)
        return cls(given.sealed(organiser), key.private_bytes_raw())

    @property
    def given(self) -> Pass:
        """The content of the pass. Raises PassError."""
        return Pass.read(self.sealed)

    def check(self) -> None:
        """Raise PassError if the private key does not match the public key in the pass."""
        if len(self.seed) != _KEY_BYTES or self._key.public_key().public_bytes_raw() != self.given.ticket:
            raise PassError("the ticket key does not match the pass")

    def enrol(self, peer: str) -> bytes:
        """The sealed enrolment of the device `peer`."""
        signature = self._key.sign(_enrolled(self.given, peer))
        return pb.Enrolment(sealed_pass=self.sealed, signature=signature).SerializeToString()

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


def open_enrolment(raw: bytes, peer: str, organiser: bytes) -> Pass:
    """Verify the enrolment of the device `peer`; returns its pass. `organiser`: public key. Raises PassError."""
    enrolment = _decoded(pb.Enrolment, raw)
    given = Pass.verified(enrolment.sealed_pass, organiser)
    if not _signed(given.ticket, enrolment.signature, _enrolled(given, peer)):
        raise PassError("the enrolment is for another device")
    return given


@dataclass(frozen=True, slots=True)
class Certificate:
    """A coordinator's statement that it has enrolled a device. `issuer`: its peer id; times are Unix seconds."""

    run_hash: str
    serial: bytes
    name: str
    peer: str
    issuer: str
    issued_at: int
    expires_at: int
    observes: bool = False
    """True if the device observes the run, False if it takes part. The pass says the same."""

    def sealed(self, coordinator: Identity) -> bytes:
        """The certificate, signed by `coordinator`, which must be `issuer`.

        Raises PassError if a field is out of bounds.
        """
        body = pb.Certificate(
            run_hash=bytes.fromhex(self.run_hash),
            serial=self.serial,
            name=self.name,
            peer=self.peer,
            issuer=self.issuer,
            issued_at=self.issued_at,
            expires_at=self.expires_at,
            observes=self.observes,
        ).SerializeToString()
        _certificate_of(body)
        return pb.Sealed(body=body, signature=coordinator.key.sign(_CERTIFICATE + body)).SerializeToString()

    @classmethod
    def open(cls, raw: bytes) -> Certificate:
        """Verify that `issuer` has signed a certificate; returns its content. Raises PassError.

        The caller must check that `issuer` is a coordinator of the run.
        """
        sealed = _decoded(pb.Sealed, raw)
        found = _certificate_of(sealed.body)
        if not verify(found.issuer, sealed.signature, _CERTIFICATE + sealed.body):
            raise PassError(f"the certificate is not signed by its issuer {found.issuer}")
        return found


def check_name(name: str) -> str:
    """Returns `name` if it is a valid name for a pass, else raises PassError."""
    if not _NAME.fullmatch(name):
        raise PassError(f"{name[:40]!r} cannot name a pass: use 1 to 32 letters, digits, dots, dashes or underscores")
    return name


def _pass_of(body: bytes) -> Pass:
    proto = _decoded(pb.Pass, body)
    if not 1 <= proto.devices <= MAX_DEVICES:
        raise PassError(f"the pass is for {proto.devices} devices; it must be for 1 to {MAX_DEVICES}")
    _check(proto.run_hash, proto.serial, proto.name, proto.expires_at)
    if len(proto.ticket) != _KEY_BYTES:
        raise PassError(f"the ticket key has {len(proto.ticket)} bytes; it must have {_KEY_BYTES}")
    return Pass(
        proto.run_hash.hex(),
        proto.serial,
        proto.name,
        proto.devices,
        proto.expires_at,
        proto.ticket,
        proto.observes,
        proto.open,
    )


def _certificate_of(body: bytes) -> Certificate:
    proto = _decoded(pb.Certificate, body)
    _check(proto.run_hash, proto.serial, proto.name, proto.expires_at)
    if proto.issued_at > NEVER:
        raise PassError(f"{proto.issued_at} is not a valid time")
    try:
        peer_id_bytes(proto.peer)
        peer_id_bytes(proto.issuer)
    except IdentityError as error:
        raise PassError(str(error)) from None
    return Certificate(
        proto.run_hash.hex(),
        proto.serial,
        proto.name,
        proto.peer,
        proto.issuer,
        proto.issued_at,
        proto.expires_at,
        proto.observes,
    )


def _check(run_hash: bytes, serial: bytes, name: str, expires_at: int) -> None:
    if len(run_hash) != _RUN_BYTES or len(serial) != SERIAL_BYTES:
        raise PassError(
            f"the run hash has {len(run_hash)} bytes and the serial {len(serial)}; "
            f"they must have {_RUN_BYTES} and {SERIAL_BYTES}"
        )
    check_name(name)
    if expires_at > NEVER:
        raise PassError(f"{expires_at} is not a valid expiry time")


def _enrolled(given: Pass, peer: str) -> bytes:
    return _ENROLMENT + bytes.fromhex(given.run_hash) + given.serial + peer.encode()


def _decoded(kind: Callable[[], P], raw: bytes) -> P:
    if len(raw) > MAX_BYTES:
        raise PassError(f"it has {len(raw)} bytes; at most {MAX_BYTES} are allowed")
    proto = kind()
    try:
        proto.ParseFromString(raw)
    except DecodeError as error:
        raise PassError(f"it cannot be decoded: {error}") from None
    return proto


def _signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
