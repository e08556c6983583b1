"""Passes: who may take part in a run, as the organiser and the coordinators sign it.

The organiser's key signs a *pass* for a number of devices. Whoever has the private half of its ticket key may use it:
the ticket signs the peer id of a device, which makes an *enrolment*. A coordinator records the device and signs a
*certificate* with its own libp2p key. Every actor of the run checks that one off line.
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
"""Of a pass, an enrolment or a certificate with their signatures."""
MAX_DEVICES = 100_000
SERIAL_BYTES = 16
NEVER = 2**40
"""Unix seconds: no time is later. What expires then never does."""
_KEY_BYTES = 32
_RUN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_PASS = b"swarm-peer pass v1\n"
_ENROLMENT = b"swarm-peer enrolment v1\n"
_CERTIFICATE = b"swarm-peer certificate v1\n"
_OWN = b"swarm-peer own pass v1\n"

P = TypeVar("P", bound=Proto)


class PassError(ValueError):
    """Not a pass, enrolment or certificate within the bounds, or badly signed."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What the organiser allows. `run_hash` in hex; `serial` names the pass; `expires_at` in Unix seconds."""

    run_hash: str
    serial: bytes
    name: str
    devices: int
    expires_at: int
    ticket: bytes
    """Ed25519 public key."""
    observes: bool = False
    """Whether its devices observe the run; else they take part. Never both."""
    open: bool = False
    """Whether everybody may have it: each device then gets a pass of its own (`of_device`)."""

    def sealed(self, organiser: Ed25519PrivateKey) -> bytes:
        """Under the organiser's signature. Raises PassError when a field is out of bounds."""
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
        """The pass that counts for a device: this one, or, if it is open, one for this device alone."""
        if not self.open:
            return self
        serial = hashlib.sha256(_OWN + self.serial + peer.encode()).digest()[:SERIAL_BYTES]
        return replace(self, serial=serial, devices=1, open=False)

    @classmethod
    def read(cls, raw: bytes) -> Pass:
        """What a sealed pass says, whoever signed it. Raises PassError."""
        return _pass_of(_decoded(pb.Sealed, raw).body)

    @classmethod
    def verified(cls, raw: bytes, organiser: bytes) -> Pass:
        """A sealed pass that the organiser with this public key signed. Raises PassError."""
        sealed = _decoded(pb.Sealed, raw)
        if not _signed(organiser, sealed.signature, _PASS + sealed.body):
            raise PassError("the organiser of this run has not signed that pass")
        return _pass_of(sealed.body)


@dataclass(frozen=True)
class Ticket:
    """A sealed pass and what it takes to use it. It is a secret."""

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
        """Raises PassError."""
        return Pass.read(self.sealed)

    def check(self) -> None:
        """Whether the two halves belong together. Raises PassError."""
        if len(self.seed) != _KEY_BYTES or self._key.public_key().public_bytes_raw() != self.given.ticket:
            raise PassError("the pass and the key in it do not belong together")

    def enrol(self, peer: str) -> bytes:
        """The enrolment of a device."""
        signature = self._key.sign(_enrolled(self.given, peer))
        return pb.Enrolment(sealed_pass=self.sealed, signature=signature).SerializeToString()

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


def open_enrolment(raw: bytes, peer: str, organiser: bytes) -> Pass:
    """The pass with which the device `peer` may enrol. `organiser`: public key. Raises PassError."""
    enrolment = _decoded(pb.Enrolment, raw)
    given = Pass.verified(enrolment.sealed_pass, organiser)
    if not _signed(given.ticket, enrolment.signature, _enrolled(given, peer)):
        raise PassError("that enrolment is of another device")
    return given


@dataclass(frozen=True, slots=True)
class Certificate:
    """A device that a coordinator has let in. `issuer`: the coordinator's peer id; times in Unix seconds."""

    run_hash: str
    serial: bytes
    name: str
    peer: str
    issuer: str
    issued_at: int
    expires_at: int
    observes: bool = False
    """As in the pass."""

    def sealed(self, coordinator: Identity) -> bytes:
        """Under the signature of `issuer`, who is `coordinator`. Raises PassError when a field is out of bounds."""
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
        """A certificate that its `issuer` has signed; whether that is a coordinator is for others to judge.

        Raises PassError.
        """
        sealed = _decoded(pb.Sealed, raw)
        found = _certificate_of(sealed.body)
        if not verify(found.issuer, sealed.signature, _CERTIFICATE + sealed.body):
            raise PassError(f"{found.issuer} has not signed that certificate")
        return found


def check_name(name: str) -> str:
    """Raises PassError for what is no name of a pass."""
    if not _NAME.fullmatch(name):
        raise PassError(f"{name[:40]!r} cannot name a pass: use 1 to 32 letters, digits, dots, dashes or underscores")
    return name


def _pass_of(body: bytes) -> Pass:
    proto = _decoded(pb.Pass, body)
    if not 1 <= proto.devices <= MAX_DEVICES:
        raise PassError(f"a pass for {proto.devices} devices; it is for 1 to {MAX_DEVICES}")
    _check(proto.run_hash, proto.serial, proto.name, proto.expires_at)
    if len(proto.ticket) != _KEY_BYTES:
        raise PassError(f"a ticket key of {len(proto.ticket)} bytes; it has {_KEY_BYTES}")
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
        raise PassError(f"{proto.issued_at} is no time")
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
        raise PassError(f"a run hash of {len(run_hash)} bytes and a serial of {len(serial)}")
    check_name(name)
    if expires_at > NEVER:
        raise PassError(f"{expires_at} is no time")


def _enrolled(given: Pass, peer: str) -> bytes:
    return _ENROLMENT + bytes.fromhex(given.run_hash) + given.serial + peer.encode()


def _decoded(kind: Callable[[], P], raw: bytes) -> P:
    if len(raw) > MAX_BYTES:
        raise PassError(f"{len(raw)} bytes; at most {MAX_BYTES} are taken")
    proto = kind()
    try:
        proto.ParseFromString(raw)
    except DecodeError as error:
        raise PassError(f"it cannot be read: {error}") from None
    return proto


def _signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
