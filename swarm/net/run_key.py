"""The run key: a secret that all members of a run share. They get it with their invites.

It decrypts the records in the DHT, and proves to a DHT node that another node belongs to the run. The run hash cannot
serve for this, because people publish it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY_BYTES = 32
SEALED_MORE = 28
"""Bytes that sealing adds to the plain text: a nonce and a tag."""
_NONCE_BYTES = 12
_SECRET = b"swarm-peer run key v1\n"
_BLIND = b"swarm-peer blind v1\n"
_TOKEN = b"swarm-peer member v1\n"
_BOX = b"swarm-peer box v1\n"


def place_of(blind: bytes, peer: str) -> bytes:
    """The DHT key of a peer's record. No other peer has the same one, whatever its `blind` (KEY_BYTES bytes) is."""
    return blind + peer.encode()


class SealError(ValueError):
    """The bytes were not sealed with this key for this member and this associated data."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """The shared key of a run. `secret`: KEY_BYTES bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"the run key has {len(self.secret)} bytes; it must have {KEY_BYTES}")

    @classmethod
    def derive(cls, organiser: Ed25519PrivateKey, run_hash: str) -> Self:
        """The key of the organiser's run. It is the same after every restart, and differs between runs."""
        secret = hmac.digest(organiser.private_bytes_raw(), _SECRET + run_hash.encode(), hashlib.sha256)
        return cls(secret)

    def place(self, peer: str) -> bytes:
        """The DHT key under which a member's record is stored. Computing it requires the run key."""
        return place_of(self.blind(peer), peer)

    def blind(self, peer: str) -> bytes:
        """The secret part of `place`. A record contains it, which proves that its DHT key belongs to its peer."""
        return self._derived(_BLIND, peer)

    def token(self, peer: str) -> bytes:
        """The token by which other DHT nodes recognise the member `peer`.

        A stolen token is useless, because it is valid only for this peer id, which libp2p authenticates.
        """
        return self._derived(_TOKEN, peer)

    def admits(self, peer: str, token: bytes) -> bool:
        """Whether `token` is the right token of `peer`, which libp2p has authenticated."""
        return hmac.compare_digest(self.token(peer), token)

    def seal(self, peer: str, bound: bytes, plain: bytes) -> bytes:
        """Encrypt `plain` for the member `peer`. `bound`: associated data, which is needed again to decrypt it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._box(peer).encrypt(nonce, plain, bound)

    def open(self, peer: str, bound: bytes, sealed: bytes) -> bytes:
        """Decrypt the result of `seal`. Raises SealError."""
        try:
            return self._box(peer).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise SealError(f"not sealed for {peer[:80]!r} with the key of this run") from None

    def _box(self, peer: str) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._derived(_BOX, peer))

    def _derived(self, purpose: bytes, peer: str) -> bytes:
        return hmac.digest(self.secret, purpose + peer.encode(), hashlib.sha256)
