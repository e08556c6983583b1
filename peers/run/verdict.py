"""The verdict: compares a swarm's archived state with the reference's, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.run.archived_run import changes, check_archive
from peers.run.home import Home
from swarm.manifest import RunManifest
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.folder import OnRefused


@dataclass(frozen=True)
class Verdict:
    equal: bool
    text: str


def archived_digests(
    home: Path, manifest: RunManifest, on_refused: OnRefused = lambda path, reason: None
) -> tuple[int, tuple[str, ...]]:
    """The newest complete version in a coordinator's archive, and the state digest of each stage. Raises StateError.

    `on_refused` is called for newer checkpoints that are damaged.
    """
    folder = Home(home).archive
    if not folder.is_dir():
        raise StateError(folder, "no archive here: name the --home of the coordinator of this run")
    check_archive(folder, manifest.hash, changes(folder, manifest))
    archive = Archive(folder, manifest.hash, manifest.model.stages, manifest.checkpoint.keep, on_refused=on_refused)
    version = archive.newest()
    if version is None:
        raise StateError(folder, f"holds no complete checkpoint of run {manifest.hash[:16]}…")
    return version, tuple(archive.checkpoint(stage, version).digest for stage in range(archive.stages))


def compare(swarm: Sequence[str], reference: Sequence[str], refused: Sequence[str] = ()) -> Verdict:
    """Compare digests of parameters and optimizer state, by stage. `refused`: damaged checkpoints in the archive."""
    beside = f"; damaged, so not compared: {'; '.join(refused)}" if refused else ""
    different = [stage for stage, pair in enumerate(zip(swarm, reference, strict=True)) if pair[0] != pair[1]]
    if not different:
        return Verdict(True, f"EQUAL: all {len(swarm)} stages have the digests of the single-process run{beside}")
    lines = [f"stage {s}: swarm {swarm[s][:16]}…, reference {reference[s][:16]}…" for s in different]
    return Verdict(False, "DIFFERENT: " + "; ".join(lines) + beside)
