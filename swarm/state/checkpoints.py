"""Checkpoints: the newest `keep` shards of each stage that a peer has saved on its own disk."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from swarm.atomic import sync_folder
from swarm.protocol.soundness import to_keep
from swarm.state.draft import Draft, Source, sync, write_draft
from swarm.state.error import StateError, how_to_make_room
from swarm.state.folder import Checkpoint, OnRefused, VersionFolder
from swarm.state.layout import Shapes, check_meta
from swarm.state.shard import Shard, WrittenFile, open_shard, read_shard

_DRAFT = ".draft"


class CheckpointStore:
    """Saves, loads and removes the checkpoints of one process in one folder. `draft` and `save` may run in threads
    beside `load`.
    """

    def __init__(
        self, directory: Path, run_hash: str, keep: int, on_refused: OnRefused = lambda path, reason: None
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep}: at least one checkpoint must be kept")
        self._folder = VersionFolder(directory, run_hash)
        self._keep = keep
        self._on_refused = on_refused
        self._drafts = count()
        for left in directory.glob(f"*{_DRAFT}"):  # left by another process
            left.unlink(missing_ok=True)

    def draft(self, stage: int, source: Source) -> Draft:
        """Write the state of `source` to a draft for `save`. Raises StateError (disk), and the errors of `source`."""
        path = self._folder.directory / f"{stage}-{source.version}-{next(self._drafts)}{_DRAFT}"
        try:
            return write_draft(path, source, self._folder.run_hash, stage)
        except OSError as error:
            raise self._not_written(path, source.version, error) from error

    def save(self, draft: Draft, proven: int | None = None) -> Checkpoint:
        """Commit a draft, then prune; the newest checkpoint up to version `proven` is kept.

        Replicas with equal states get equal hashes, which they compare, and which the archive checks. Raises StateError
        if the disk is full or fails; then the draft is removed, and existing checkpoints stay intact. An old or
        rolled-back checkpoint that cannot be removed is reported to `on_refused`, and tried again in a later save.
        """
        stage, version = draft.meta.stage, draft.meta.version
        path = self._folder.path(stage, version)
        try:
            hash_ = draft.hash()
            sync(draft.path)
            draft.path.replace(self._folder.new_path(stage, version))
            sync_folder(path.parent)
            checkpoint = Checkpoint(stage, version, path, draft.meta.digest, hash_, draft.nbytes)
            self._folder.commit(checkpoint)
        except OSError as error:
            draft.remove()
            raise self._not_written(path, version, error) from error
        self._prune(stage, version, proven)
        return checkpoint

    @staticmethod
    def _not_written(path: Path, version: int, error: OSError) -> StateError:
        if not error.errno:
            return StateError(path, str(error))
        return StateError(
            path,
            f"the checkpoint of version {version} was not written: {error.strerror}; "
            f"older checkpoints are intact, {how_to_make_room(error)}",
        )

    def versions(self, stage: int) -> list[int]:
        """Committed versions of `stage`, oldest first. The files are checked only when they are loaded."""
        return [version for version in self._folder.versions() if stage in self._readable(version)]

    def checkpoint(self, stage: int, version: int) -> Checkpoint:
        """The entry of a committed shard, without reading the shard. Raises StateError if it is not committed."""
        found = self._folder.committed(version)
        if stage not in found:
            raise StateError(self._folder.path(stage, version), "not committed")
        return found[stage]

    def load(self, stage: int, version: int, shapes: Shapes | None = None) -> Shard:
        """Open and verify a checkpoint; its tensors are read on access. Raises StateError, naming the file."""
        found = self.checkpoint(stage, version)
        shard = open_shard(found.path, str(found.path), shapes=shapes, written=WrittenFile(found.hash, found.nbytes))
        check_meta(shard.meta, str(found.path), run_hash=self._folder.run_hash, stage=stage, version=version)
        return shard

    def _readable(self, version: int) -> dict[int, Checkpoint]:
        try:
            return self._folder.committed(version)
        except StateError:
            return {}

    def _prune(self, stage: int, saved: int, proven: int | None) -> None:
        """Remove old checkpoints. Keep the newest versions up to `saved`, and one to go back to.

        Versions above `saved` were rolled back, so they are removed too.
        """
        there = [version for version in self.versions(stage) if version <= saved]
        kept = to_keep(there, self._keep, proven)
        for version in self._folder.versions():
            if version in kept or there[-self._keep :][0] <= version <= saved:
                continue
            try:
                self._folder.remove(stage, version)
            except OSError as error:
                path = self._folder.path(stage, version)
                self._on_refused(path, f"is no longer needed and cannot be removed: {error.strerror}")


def read_checkpoint(checkpoint: Checkpoint, run_hash: str, shapes: Shapes | None = None) -> Shard:
    """Read a committed shard and check it against its entry. Raises StateError naming the file."""
    return read_shard(
        checkpoint.path,
        run_hash=run_hash,
        stage=checkpoint.stage,
        version=checkpoint.version,
        shapes=shapes,
        written=WrittenFile(checkpoint.hash, checkpoint.nbytes),
    )
