"""A folder of versions, on which checkpoints and the archive are built. It does not import torch.

    <directory>/00000010/stage-2.safetensors   written first
    <directory>/00000010/manifest.json         written last: only the shards that it names are committed

Only one process writes to a folder, with one or more threads; other processes may read it at the same time.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from swarm.atomic import atomic_file, sync_folder, torn, write_whole
from swarm.state.error import StateError

MANIFEST = "manifest.json"

_MAX_MANIFEST_BYTES = 4 << 20
_HEX = re.compile(r"[0-9a-f]{64}")

OnRefused = Callable[[Path, str], None]
"""Called with an ignored file and the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The entry of a committed shard: one stage at one version."""

    stage: int
    version: int
    path: Path
    digest: str
    """Digest of the state, as given by the peer that saved it."""
    hash: str
    """BLAKE3 of the file, hex."""
    nbytes: int


class VersionFolder:
    """Committed shards of one run, by version and stage."""

    def __init__(self, directory: Path, run_hash: str) -> None:
        """Create `directory` if needed. Incomplete files of a crash are ignored, and removed with their version.

        Raises OSError.
        """
        self.directory = directory
        self.run_hash = run_hash
        self._lock = threading.RLock()
        directory.mkdir(parents=True, exist_ok=True)

    def versions(self) -> list[int]:
        """All versions that have a folder, committed or not, oldest first."""
        names = [entry.name for entry in self.directory.iterdir() if entry.is_dir() and entry.name.isdecimal()]
        return sorted(int(name) for name in names)

    def path(self, stage: int, version: int) -> Path:
        return self._folder(version) / f"stage-{stage}.safetensors"

    def new_path(self, stage: int, version: int) -> Path:
        """The path for a new shard, whose folder is created. Raises OSError."""
        folder = self._folder(version)
        if not folder.exists():
            folder.mkdir()
            sync_folder(self.directory)
        return self.path(stage, version)

    def committed(self, version: int) -> dict[int, Checkpoint]:
        """The checkpoints of `version` by stage. Raises StateError if the manifest is missing or damaged."""
        path = self._folder(version) / MANIFEST
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise StateError(path, "is missing: the checkpoint is incomplete") from None
        except OSError as error:
            raise StateError(path, f"cannot be read: {error.strerror}") from None
        try:
            tree = json.loads(raw)
            body, check = tree["checkpoint"], tree["blake3"]
            if blake3(_canonical(body)).hexdigest() != check:
                raise ValueError("its own hash does not match")
            run_hash = body["run_hash"]
            if body["version"] != version:
                raise ValueError(f"it belongs to version {body['version']}")
            found = {entry["stage"]: self._entry(version, entry) for entry in body["shards"]}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(path, f"is damaged: {error}") from None
        if run_hash != self.run_hash:
            raise StateError(path, f"belongs to run {str(run_hash)[:16]}…, expected {self.run_hash[:16]}…")
        return found

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commit a written shard by adding it to its version's manifest. Raises OSError."""
        with self._lock:
            kept = self._known(checkpoint.version)
            kept[checkpoint.stage] = checkpoint
            self._write_manifest(checkpoint.version, kept)

    def remove(self, stage: int, version: int) -> None:
        """Remove a shard. Its entry is removed from the manifest first, so that after a crash the shard does not seem
        to be committed.
        """
        with self._lock:
            kept = self._known(version)
            if kept and stage not in kept:
                return
            kept.pop(stage, None)
            if not kept:
                self.remove_version(version)
                return
            self._write_manifest(version, kept)
            self.path(stage, version).unlink(missing_ok=True)

    def remove_version(self, version: int) -> None:
        """Remove a version with its files. The folder stays if it contains other files."""
        with self._lock:
            folder = self._folder(version)
            (folder / MANIFEST).unlink(missing_ok=True)
            for path in (*folder.glob("stage-*.safetensors*"), *torn(folder / MANIFEST)):
                path.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()

    def _known(self, version: int) -> dict[int, Checkpoint]:
        try:
            return self.committed(version)
        except StateError:  # the manifest is missing or damaged: write it anew, without the old entries
            return {}

    def _write_manifest(self, version: int, kept: dict[int, Checkpoint]) -> None:
        body = {
            "run_hash": self.run_hash,
            "version": version,
            "shards": [
                {"stage": c.stage, "file": c.path.name, "blake3": c.hash, "bytes": c.nbytes, "state_digest": c.digest}
                for _, c in sorted(kept.items())
            ],
        }
        text = json.dumps({"checkpoint": body, "blake3": blake3(_canonical(body)).hexdigest()}, indent=1)
        with atomic_file(self._folder(version) / MANIFEST) as file:
            write_whole(file, text.encode())

    def _entry(self, version: int, entry: dict[str, object]) -> Checkpoint:
        stage, nbytes, digest, hash_ = entry["stage"], entry["bytes"], entry["state_digest"], entry["blake3"]
        if type(stage) is not int or type(nbytes) is not int or not isinstance(digest, str):
            raise ValueError("an entry has the wrong type")
        if not isinstance(hash_, str) or not _HEX.fullmatch(hash_):
            raise ValueError(f"{hash_!r} is not a BLAKE3 hash")
        return Checkpoint(stage, version, self.path(stage, version), digest, hash_, nbytes)

    def _folder(self, version: int) -> Path:
        return self.directory / f"{version:08d}"


def _canonical(body: object) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
