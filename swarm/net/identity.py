"""The identity of a peer: an Ed25519 key in a file. The libp2p peer id contains the public key, so one key suffices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm.atomic import drop_unfinished, sync_folder, unfinished_file, write_whole

# libp2p's serialized key: protobuf {1: key type Ed25519 = 1, 2: bytes}; a key this short is not hashed for the peer id
_PRIVATE_HEAD = bytes([0x08, 0x01, 0x12, 0x40])
_PUBLIC_HEAD = bytes([0x08, 0x01, 0x12, 0x20])
_IDENTITY_HASH = bytes([0x00, len(_PUBLIC_HEAD) + 32])


class IdentityError(ValueError):
    """An identity file or a peer id is invalid."""


@dataclass(frozen=True)
class Identity:
    """The key behind a peer id and the file that libp2p reads it from."""

    key: Ed25519PrivateKey
    path: Path

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the key, or make one (mode 0600) when there is no such file. Raises IdentityError, OSError."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path)
            sync_folder(path.parent)  # others will know this identity, so it must survive a power failure
        raw = path.read_bytes()
        if len(raw) != len(_PRIVATE_HEAD) + 64 or not raw.startswith(_PRIVATE_HEAD):
            raise IdentityError(f"{path} is not an Ed25519 identity; move the file away to get a new identity")
        key = Ed25519PrivateKey.from_private_bytes(raw[len(_PRIVATE_HEAD) :][:32])
        if key.public_key().public_bytes_raw() != raw[-32:]:
            raise IdentityError(f"{path} is damaged: its public key does not match its private key")
        return cls(key, path)

    @property
    def peer_id(self) -> str:
        public = self.key.public_key().public_bytes_raw()
        return base58.b58encode(_IDENTITY_HASH + _PUBLIC_HEAD + public).decode()


def _make(path: Path) -> None:
    """Write a new key, unless another process has done so meanwhile. Raises OSError naming `path`."""
    key = Ed25519PrivateKey.generate()
    temporary, file = unfinished_file(path, private=True)
    with file:
        try:
            write_whole(file, _PRIVATE_HEAD + key.private_bytes_raw() + key.public_key().public_bytes_raw())
            os.fsync(file.fileno())
            try:
                os.link(temporary, path)  # two processes that make a key at once get the same one
            except FileExistsError:
                pass
            except OSError:  # this disk has no hard links
                temporary.replace(path)
        except OSError as error:  # such as a full disk, whose errors do not name the file
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            drop_unfinished(temporary, file)


def peer_id_bytes(peer_id: str) -> bytes:
    """The multihash that a base58 peer id encodes. Raises IdentityError."""
    try:
        raw = base58.b58decode(peer_id.encode("ascii"))
    except ValueError:
        raise IdentityError(f"{peer_id[:80]!r} is not a peer id (base58)") from None
    if len(raw) < 2 or len(raw) != 2 + raw[1] or len(raw) > 66:
        raise IdentityError(f"{peer_id[:80]!r} is not a peer id: it looks cut off or mistyped")
    return raw


def verify(peer_id: str, signature: bytes, message: bytes) -> bool:
    """Whether the owner of `peer_id` signed `message`. False also for peer ids that hold no Ed25519 key."""
    try:
        raw = peer_id_bytes(peer_id)
    except IdentityError:
        return False
    head = _IDENTITY_HASH + _PUBLIC_HEAD
    if len(raw) != len(head) + 32 or not raw.startswith(head):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(raw[len(head) :]).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
