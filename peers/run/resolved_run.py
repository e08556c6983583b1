"""A run as an organiser starts it: RUN.toml with its overrides, the corpus that it names, and the manifest."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.events.wording import printable
from swarm.manifest import RunManifest, load_run_file

if TYPE_CHECKING:
    from swarm.state.initial import InitialParameters


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    manifest: RunManifest
    corpus: Path
    """Folder of the prepared corpus, on this machine."""
    initial: InitialParameters | None = None
    """The parameters of version 0, if they are imported."""


def resolve_run(path: Path, overrides: Iterable[str] = ()) -> ResolvedRun:
    """Read RUN.toml at `path`; directories in it are relative to it.

    Raises ManifestError, CorpusError, StateError, codecs.UnknownCodec. Imported parameters are fully checked against
    their hash, which takes seconds per gigabyte, and the corpus must have their tokens. Imported parameters without a
    record of their [model] are reported on stderr.
    """
    from swarm.data import read_corpus

    run = load_run_file(path, overrides)
    corpus = path.parent / run.data.directory
    section = read_corpus(corpus)
    if not run.initial.sha256:
        manifest = run.resolve(section)
        _check_codecs(manifest)
        return ResolvedRun(manifest, corpus)

    from peers.run.first_version import first_digests
    from swarm.state.import_record import check_record, check_vocabulary
    from swarm.state.initial import InitialParameters

    directory = path.parent / run.initial.directory
    record = check_record(directory, run.model, run.initial.sha256)
    if record is not None:
        check_vocabulary(record, directory, corpus, section)
    initial = InitialParameters(directory, run.model, run.initial.sha256)
    if record is None:
        print(
            f"warning: {printable(str(directory))} has no record of the [model] that it was imported with, because an "
            "earlier release wrote it: if you have edited [model] since, import the model again and compare",
            file=sys.stderr,
        )
    manifest = run.resolve(section, first_digests(initial, run.model))
    _check_codecs(manifest)
    return ResolvedRun(manifest, corpus, initial)


def _check_codecs(manifest: RunManifest) -> None:
    """Check the names of codecs before a home is locked or a key is made. Raises UnknownCodec."""
    from swarm import codecs
    from swarm.codecs import ladder

    for forward, backward in itertools.product(*ladder.names(manifest)):
        codecs.pair(forward, backward)
    if manifest.sums.compresses and not manifest.sums.rank:  # low rank is not a codec
        codecs.averaging(manifest.sums.averaging)
