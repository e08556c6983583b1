"""An archived run: manifest and tokenizer are stored with the checkpoints, so that the archive alone suffices to use
the model.

Imports numpy, not torch.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from swarm.atomic import atomic_file, write_whole
from swarm.data.corpus_error import CorpusError
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.shards import check_file
from swarm.events.wording import printable
from swarm.manifest import ManifestError, RunManifest, differences
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.folder import OnRefused, VersionFolder

MANIFEST_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    manifest: RunManifest
    archive: Archive
    version: int
    tokenizer: Path
    """The tokenizer file; only text runs have one."""


class Refused:
    """Collects the checkpoints of an archive that were skipped. Each is reported on stderr when found, and kept in
    `texts`.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, path: Path, reason: str) -> None:
        text = f"checkpoint {path} refused: {reason}"
        self.texts.append(text)
        print(f"warning: {printable(text)}", file=sys.stderr)


def changes(directory: Path, manifest: RunManifest) -> str:
    """How a run differs from the run that the archive in `directory` was made for, in brackets for a message:
    " (run.steps was 12, is 20)". Empty if nothing differs, or if the archive does not say. Raises OSError.
    """
    path = directory / MANIFEST_FILE
    told = differences(path.read_bytes(), manifest) if path.exists() else ""
    return f" ({told})" if told else ""


def check_archive(directory: Path, run_hash: str, changed: str = "") -> None:
    """Refuse an archive that contains training of another run, whose checkpoints would be pruned. Raises StateError,
    OSError.

    Version 0 alone does not count, because it contains no training. A damaged manifest file is no other run if the
    checkpoints are of this run: `describe_archive` then writes it anew. `changed`: from `changes`, for the message.
    """
    path = directory / MANIFEST_FILE
    if not path.exists():
        return
    folder = VersionFolder(directory, run_hash)
    trained = [version for version in folder.versions() if version]
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if trained and found != run_hash and not any(_is_of_this_run(folder, version) for version in trained):
        raise StateError(
            directory,
            f"holds checkpoints of run {found[:16]}…, RUN.toml resolves to {run_hash[:16]}…{changed}: a run never "
            "changes. Restore the RUN.toml, the --set and the corpus it was started with, or give the new run its own "
            "--home",
        )


def _is_of_this_run(folder: VersionFolder, version: int) -> bool:
    try:
        return bool(folder.committed(version))
    except StateError:  # it is of another run, or incomplete
        return False


def describe_archive(directory: Path, manifest: RunManifest, tokenizer: bytes | None) -> None:
    """Write the files that a reader of the archive in `directory` needs in addition to the checkpoints. Raises
    OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {} if tokenizer is None else {TOKENIZER_FILE: tokenizer}
    for name, content in (files | {MANIFEST_FILE: manifest.canonical()}).items():
        with atomic_file(directory / name) as file:
            write_whole(file, content)


def open_archived(directory: Path, version: int | None, on_refused: OnRefused) -> ArchivedRun:
    """Open the archive in `directory` at `version`, or at its newest complete version. Raises StateError.

    `on_refused` is called for newer checkpoints that are damaged.
    """
    path = directory / MANIFEST_FILE
    try:
        manifest = RunManifest.from_canonical(path.read_bytes())
        if manifest.data.kind == "text":
            check_file(directory / TOKENIZER_FILE, manifest.data.tokenizer_sha256)
    except FileNotFoundError:
        raise StateError(
            directory, "no archive here: name the --home of the coordinator of a run, or its --archive"
        ) from None
    except ManifestError as error:
        raise StateError(directory, f"not a usable archive: {error}") from None
    except CorpusError as error:
        raise StateError(
            directory, f"not a usable archive: {error}; or start the run's coordinator, which writes this file anew"
        ) from None
    archive = Archive(
        directory,
        manifest.hash,
        manifest.model.stages,
        manifest.checkpoint.keep,
        on_refused=on_refused,
    )
    found = archive.complete_versions()
    if version is None and (version := archive.newest()) is None:
        why = f"damaged versions: {', '.join(map(str, found))}" if found else "complete versions: none"
        raise StateError(directory, f"holds no complete checkpoint of run {manifest.hash[:16]}…; {why}")
    if version not in found:
        held = ", ".join(map(str, found)) or "none"
        raise StateError(
            directory, f"holds no complete version {version} of run {manifest.hash[:16]}…; complete versions: {held}"
        )
    return ArchivedRun(manifest, archive, version, directory / TOKENIZER_FILE)
