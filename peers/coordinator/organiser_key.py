"""The organiser's key: it signs the run's manifest."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.run.home import Home
from swarm.atomic import atomic_file, write_whole


class KeyDamaged(ValueError):
    """The organiser's key cannot be read, or is missing although passes were signed with it."""


def organiser_key(home: Home) -> Ed25519PrivateKey:
    """The key that signs the run's manifest. It is made at first use. Whoever has this key controls the run: back it
    up.

    Raises KeyDamaged, OSError. A lost key is not replaced while the home has passes: the new key would make them, and
    all invites, useless.
    """
    path = home.organiser_key
    if path.exists():
        try:
            return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
        except ValueError:
            raise KeyDamaged(
                f"{path} is not an Ed25519 key: restore it from your backup. Without one, move this file and "
                f"{home.passes} away: {_THEN}"
            ) from None
    if any(home.passes.glob("*.json")):
        raise KeyDamaged(
            f"{path} is missing, but it signed {home.passes}: restore it from your backup. Without one, move "
            f"{home.passes} away: {_THEN}"
        )
    key = Ed25519PrivateKey.generate()
    with atomic_file(path, private=True) as file:
        write_whole(file, key.private_bytes_raw())
    return key


_THEN = "the next start makes a new key, and all peers need new invites"
