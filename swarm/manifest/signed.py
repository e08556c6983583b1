"""A manifest with the organiser's signature."""

from __future__ import annotations

import hashlib
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm.manifest.run_manifest import RunManifest
from swarm.manifest.section import ManifestError, Section


class SignedManifest(Section):
    """A manifest with the organiser's signature over its canonical bytes."""

    manifest: bytes
    public_key: bytes
    signature: bytes

    @classmethod
    def sign(cls, manifest: RunManifest, key: Ed25519PrivateKey) -> Self:
        raw = manifest.canonical()
        return cls(manifest=raw, public_key=key.public_key().public_bytes_raw(), signature=key.sign(_SIGNED + raw))

    def verify(self, run_hash: str | None = None, fingerprint: str | None = None) -> RunManifest:
        """Check signature, organiser (`fingerprint`) and `run_hash`, then parse. Raises ManifestError."""
        actual = hashlib.sha256(self.manifest).hexdigest()
        if run_hash is not None and actual != run_hash:
            raise ManifestError(f"the manifest has the hash {actual[:16]}…, but the invite names run {run_hash[:16]}…")
        if fingerprint is not None and fingerprint != key_fingerprint(self.public_key):
            raise ManifestError(
                f"the manifest is signed by {key_fingerprint(self.public_key)}, but the invite names organiser "
                f"{fingerprint}"
            )
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(self.signature, _SIGNED + self.manifest)
        except (InvalidSignature, ValueError):
            raise ManifestError(
                f"the manifest {actual[:16]}… has no valid signature of the key {key_fingerprint(self.public_key)}"
            ) from None
        return RunManifest.from_canonical(self.manifest)


def key_fingerprint(public_key: bytes) -> str:
    """The fingerprint that people compare: 16 hex digits of SHA-256 over the raw public key, in groups of four."""
    digest = hashlib.sha256(public_key).hexdigest()[:16]
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


_SIGNED = b"swarm-peer manifest v1\n"
