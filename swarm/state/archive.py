"""The archive: the coordinator's verified copy of each stage. Resuming, export and generate read it.

Transfers (swarm/state/transfer.py) write shards directly to the disk; torch is imported only to open one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from blake3 import blake3

from swarm.atomic import drop_unfinished, sync_folder, unfinished_file, write_whole
from swarm.protocol.soundness import to_keep
from swarm.state.error import StateError, how_to_make_room
from swarm.state.folder import Checkpoint, OnRefused, VersionFolder
from swarm.state.layout import LENGTH, Shapes, ShardMeta, check_meta, from_metadata, head_length, parse_head
from swarm.state.room import need_room
from swarm.state.transfer import ChunkReader, TransferHeader

if TYPE_CHECKING:
    from swarm.state.shard import Shard

MAX_SHARD_BYTES = 256 << 30
"""Largest shard if the model is not known, bytes: enough for 20 billion parameters in a stage."""

_READ_BYTES = 4 << 20


class Archive:
    """Stores one copy of each stage's shard for the newest `keep` complete versions.

    `shard_limits`: largest size of each stage's shard in bytes, which follows from the model. `keep_first`: also keep
    version 0, because it cannot be initialised from a seed.
    """

    def __init__(
        self,
        directory: Path,
        run_hash: str,
        stages: int,
        keep: int,
        shard_limits: Sequence[int] = (),
        keep_first: bool = False,
        on_refused: OnRefused = lambda path, reason: None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep}: at least one version must be kept")
        self._folder = VersionFolder(directory, run_hash)
        self._keep = keep
        self._keep_first = keep_first
        self._limits = tuple(shard_limits)
        self._on_refused = on_refused
        self._damaged: set[tuple[int, int]] = set()
        """(stage, version) of the shards that `newest` found damaged. They count as missing until they are archived
        again.
        """
        self.proven: int | None = None
        """The newest version that is known to be good (`to_keep`); None: unknown."""
        self.run_hash = run_hash
        self.stages = stages
        self.directory = directory

    def receive(self, stage: int, version: int, file_hash: str) -> ArchiveWriter:
        """A writer for the transfer of one shard from any donor.

        `file_hash`: BLAKE3 of the shard file (`Checkpoint.hash`), on which the replicas agree. The received bytes are
        checked against it, so the donor need not be trusted. Raises StateError if the run has no such stage.
        """
        if not 0 <= stage < self.stages:
            raise StateError(self._folder.directory, f"no stage {stage}: the run has {self.stages}")
        return ArchiveWriter(self, self._folder, stage, version, file_hash, self.limit(stage))

    def limit(self, stage: int) -> int:
        """Largest size of a stage's shard in bytes."""
        return self._limits[stage] if self._limits else MAX_SHARD_BYTES

    def complete_versions(self) -> list[int]:
        """Versions with a committed shard for every stage, oldest first.

        The files are not checked; `newest` does this.
        """
        return [version for version in self._folder.versions() if len(self._committed(version)) == self.stages]

    def holds(self, stage: int, version: int, file_hash: str | None = None) -> bool:
        """True if a shard is committed. With `file_hash`, it must be this file, not one from before a rollback."""
        found = self._committed(version).get(stage)
        return found is not None and file_hash in (None, found.hash)

    def checkpoint(self, stage: int, version: int) -> Checkpoint:
        """The entry of a committed shard, to send its file. Raises StateError if the shard is not in the archive."""
        found = self._folder.committed(version)
        if stage not in found:
            raise StateError(self._folder.path(stage, version), "not in the archive")
        return found[stage]

    def open_shard(self, stage: int, version: int, shapes: Shapes | None = None) -> Shard:
        """Read and verify one shard. Raises StateError naming the file."""
        from swarm.state.checkpoints import read_checkpoint

        return read_checkpoint(self.checkpoint(stage, version), self.run_hash, shapes)

    def newest(self) -> int | None:
        """The newest complete version with intact files, to resume from. Damaged ones are reported to `on_refused`, and
        count as missing from then on, so that they are fetched again.
        """
        for version in reversed(self._folder.versions()):
            try:
                found = self._folder.committed(version)
            except StateError as error:
                self._on_refused(Path(error.where), error.reason)
                continue
            if len(found) == self.stages and all([self._is_intact(each) for each in found.values()]):
                return version
        return None

    def _is_intact(self, checkpoint: Checkpoint) -> bool:
        try:
            verify_file(checkpoint)
        except StateError as error:
            self._on_refused(Path(error.where), error.reason)
            self._damaged.add((checkpoint.stage, checkpoint.version))
            return False
        return True

    def renewed(self, checkpoint: Checkpoint) -> None:
        """A shard has been committed, perhaps in place of a damaged one."""
        self._damaged.discard((checkpoint.stage, checkpoint.version))

    def prune(self) -> None:
        """Remove all versions except the newest `keep` complete ones, the one to go back to, and a kept version 0.

        Older incomplete versions are removed too. A version that cannot be removed is reported to `on_refused`, and
        tried again in the next call.
        """
        complete = self.complete_versions()
        kept, newest = to_keep(complete, self._keep, self.proven), complete[-self._keep :]
        for version in self._folder.versions():
            if newest and version < newest[0] and version not in kept and not (version == 0 and self._keep_first):
                self._remove(version, "is old")

    def forget_after(self, version: int) -> None:
        """Remove all versions newer than `version`, from which the run continues.

        Versions that cannot be removed are reported to `on_refused`.
        """
        for later in self._folder.versions():
            if later > version:
                self._remove(later, "belongs to a history that was rolled back")

    def _remove(self, version: int, why: str) -> None:
        try:
            self._folder.remove_version(version)
        except OSError as error:
            self._on_refused(self.directory / f"{version:08d}", f"{why} and cannot be removed: {error.strerror}")

    def _committed(self, version: int) -> dict[int, Checkpoint]:
        try:
            found = self._folder.committed(version)
        except StateError:
            return {}
        return {s: c for s, c in found.items() if s < self.stages and (s, version) not in self._damaged}


class NotStored(StateError):
    """This machine's disk could not take a shard. Its sender is not at fault."""


class ArchiveWriter:
    """Receives the chunks of one transfer. Nothing is archived until `commit`. Call `abort` after any failure."""

    def __init__(
        self,
        archive: Archive,
        folder: VersionFolder,
        stage: int,
        version: int,
        file_hash: str,
        limit: int,
    ) -> None:
        self._archive = archive
        self._folder = folder
        self._stage, self._version, self._file_hash = stage, version, file_hash
        self._where = f"the sender of stage {stage} version {version}"
        self._sink = _FileSink(folder, stage, version)
        self._reader = ChunkReader(folder.run_hash, stage, version, limit, self._sink, self._where)

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the transfer. Raises StateError for a bad transfer, and NotStored as soon as it is
        known that the disk has no room for the shard.
        """
        try:
            self._reader.feed(chunk)
        except OSError as error:
            raise self._disk_error(error) from error

    def commit(self) -> Checkpoint:
        """Check everything, then commit the shard. Raises StateError, NotStored: then nothing was stored."""
        header = self._reader.finish()
        if header.hash != self._file_hash:
            raise StateError(self._where, f"BLAKE3 is {header.hash[:16]}…, the replicas have {self._file_hash[:16]}…")
        path = self._folder.path(self._stage, self._version)
        try:
            self._sink.sync()
            meta = _check_content(self._sink.temporary, header, self._where)
            checkpoint = Checkpoint(meta.stage, meta.version, path, meta.digest, header.hash, header.size)
            self._sink.publish()
            self._folder.commit(checkpoint)
        except OSError as error:
            raise self._disk_error(error) from error
        self._archive.renewed(checkpoint)
        self._archive.prune()
        return checkpoint

    def abort(self) -> None:
        """Drop the received data. May be called at any time; after `commit` it has no effect."""
        self._sink.drop()

    def _disk_error(self, error: OSError) -> NotStored:
        self._sink.drop()
        return NotStored(
            self._sink.temporary,
            f"not archived: {error.strerror}; archived versions are intact, {how_to_make_room(error)}",
        )


class _FileSink:
    """Writes the bytes of a shard to a temporary file in the folder of its final place."""

    def __init__(self, folder: VersionFolder, stage: int, version: int) -> None:
        self._folder = folder
        self._stage, self._version = stage, version
        self._path = folder.path(stage, version)
        self._file: BinaryIO | None = None
        self.temporary = self._path

    def open(self, size: int) -> None:
        self._folder.new_path(self._stage, self._version)
        need_room(self._path.parent, size)
        self.temporary, self._file = unfinished_file(self._path)

    def write(self, part: memoryview) -> None:
        assert self._file is not None
        write_whole(self._file, part)

    def sync(self) -> None:
        assert self._file is not None
        os.fsync(self._file.fileno())

    def publish(self) -> None:
        assert self._file is not None
        self.temporary.replace(self._path)
        self._file.close()
        self._file = None
        sync_folder(self._path.parent)

    def drop(self) -> None:
        if self._file is not None:
            drop_unfinished(self.temporary, self._file)
            self._file.close()
            self._file = None


def verify_file(checkpoint: Checkpoint) -> None:
    """Check the hash of a committed file.

    Raises StateError, naming the file, if it is missing, incomplete or corrupt.
    """
    hasher = blake3()
    try:
        with checkpoint.path.open("rb", buffering=0) as file:
            while part := file.read(_READ_BYTES):
                hasher.update(part)
    except OSError as error:
        raise StateError(checkpoint.path, f"cannot be read: {error.strerror}") from None
    if (actual := hasher.hexdigest()) != checkpoint.hash:
        raise StateError(
            checkpoint.path, f"BLAKE3 is {actual[:16]}…, the manifest says {checkpoint.hash[:16]}…: the file is corrupt"
        )


def _check_content(path: Path, header: TransferHeader, where: str) -> ShardMeta:
    """Check a shard beyond its hash: its run, stage and version, a layout without gaps, finite values."""
    with path.open("rb") as file:
        length = head_length(file.read(LENGTH.size), where)
        layout = parse_head(file.read(length), where)
        meta = from_metadata(layout.metadata, where)
        check_meta(meta, where, run_hash=header.run_hash, stage=header.stage, version=header.version)
        if (whole := LENGTH.size + length + layout.values_bytes) != header.size:
            raise StateError(where, f"the shard has {header.size} bytes, but its head describes {whole}")
        while part := file.read(_READ_BYTES):
            if not np.isfinite(np.frombuffer(part, dtype="<f4")).all():
                raise StateError(where, "the state contains NaN or infinity")
    return meta
