"""The run key: what the members of a run share, and nobody else: it comes with every invite.

It opens the records in the DHT, and shows a node of the DHT that another one belongs to the run. The run hash is not
enough for either, because people publish it.
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
"""Bytes by which sealing makes something longer: a nonce and a tag."""
_NONCE_BYTES = 12
_SECRET = b"swarm-peer run key v1\n"
_PLACE = b"swarm-peer place v1\n"
_TOKEN = b"swarm-peer member v1\n"
_BOX = b"swarm-peer box v1\n"


class SealError(ValueError):
    """Bytes that were not sealed with this key, for this member and under these conditions."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """`secret`: KEY_BYTES bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a run key of {len(self.secret)} bytes; it has {KEY_BYTES}")

    @classmethod
    def derive(cls, organiser: Ed25519PrivateKey, run_hash: str) -> Self:
        """The key of the organiser's run. It is the same after every restart, and differs between runs."""
        secret = hmac.digest(organiser.private_bytes_raw(), _SECRET + run_hash.encode(), hashlib.sha256)
        return cls(secret)

    def place(self, peer: str) -> bytes:
        """The DHT key under which a member's record lies. Nobody without the run key can name it."""
        return self._derived(_PLACE, peer)

    def token(self, peer: str) -> bytes:
        """What a member shows to other nodes of the DHT. It is of no use to others: libp2p authenticates the peer."""
        return self._derived(_TOKEN, peer)

    def admits(self, peer: str, token: bytes) -> bool:
        """Whether `peer`, whom libp2p has authenticated, shows its token."""
        return hmac.compare_digest(self.token(peer), token)

    def seal(self, peer: str, bound: bytes, plain: bytes) -> bytes:
        """`plain` in a member's box. It opens only with the same `bound`."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._box(peer).encrypt(nonce, plain, bound)

    def open(self, peer: str, bound: bytes, sealed: bytes) -> bytes:
        """What `seal` was given. Raises SealError."""
        try:
            return self._box(peer).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise SealError(f"not sealed for {peer[:80]!r} with the key of this run") from None

    def _box(self, peer: str) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._derived(_BOX, peer))

    def _derived(self, purpose: bytes, peer: str) -> bytes:
        return hmac.digest(self.secret, purpose + peer.encode(), hashlib.sha256)
