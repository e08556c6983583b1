"""The folder of a prepared corpus: shards, a tokenizer (for text), and `corpus.json` with the hashes of all files.

All files are first written to a side folder inside it (swarm/side_folder.py), and `corpus.json` is moved last, so that
a killed process leaves either no corpus.json or the previous one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from swarm.atomic import atomic_file, write_whole
from swarm.data.corpus_error import CorpusError
from swarm.manifest import DataSection
from swarm.side_folder import SideFolder, side_folder

CORPUS_FILE = "corpus.json"
TOKENIZER_FILE = "tokenizer.json"
_SIDE_FOLDER = ".preparing"
_LIKE_OURS = re.compile(r"corpus\.json|tokenizer\.json|(train|heldout)-\d{5,}\.bin")


def read_corpus(directory: Path) -> DataSection:
    """Read the description of the corpus in a prepared folder. Raises CorpusError. `CorpusReader` checks the files."""
    path = directory / CORPUS_FILE
    try:
        return DataSection.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise CorpusError(
            f"no prepared corpus in {directory}: make one with `swarm-peer prepare --out {directory}`"
        ) from None
    except (ValidationError, ValueError, RecursionError) as error:
        raise CorpusError(f"{path} cannot be read ({error}): run `swarm-peer prepare --force` again") from None


@contextlib.contextmanager
def corpus_folder(out_dir: Path, name: str, force: bool) -> Iterator[SideFolder]:
    """A side folder inside `out_dir` for the files of corpus `name`, which `publish` moves into place.

    Raises CorpusError, OSError. An existing corpus with another name is refused here, before any work, unless `force`
    is set. So is a second `prepare` that writes to `out_dir` meanwhile.
    """
    if out_dir.exists() and not out_dir.is_dir():
        raise CorpusError(f"{out_dir} is a file: name a folder to write the corpus to")
    with side_folder(out_dir, _SIDE_FOLDER) as side:
        _replaceable(out_dir, force)
        if not force and (held := _held(out_dir)) is not None and held.name != name:
            raise _another(out_dir, held)
        yield side


def _replaceable(out_dir: Path, force: bool) -> list[str]:
    """The files in `out_dir` that a new corpus replaces, corpus.json first. Raises CorpusError if there are others.

    These are the files that a corpus.json names. With `force`, also others that are called like those of a corpus.
    """
    found = [path for path in out_dir.iterdir() if path.name != _SIDE_FOLDER] if out_dir.is_dir() else []
    if foreign := [path.name for path in found if not (_LIKE_OURS.fullmatch(path.name) and path.is_file())]:
        raise CorpusError(f"{out_dir} contains other files ({min(foreign)}): name an empty folder with --out")
    held = _held(out_dir)
    named = set() if held is None else {CORPUS_FILE, *_files(held)}
    if not force and (unnamed := [path.name for path in found if path.name not in named]):
        known = "but no corpus.json that can be read" if held is None else "but a corpus.json that does not name it"
        raise CorpusError(
            f"{out_dir} contains {min(unnamed)}, {known}: name an empty folder with --out, or replace it with --force"
        )
    return sorted((path.name for path in found), key=lambda name: name != CORPUS_FILE)


def _held(out_dir: Path) -> DataSection | None:
    """The description of an existing corpus in the folder; None if there is no valid one."""
    with contextlib.suppress(CorpusError):
        return read_corpus(out_dir)
    return None


def _another(out_dir: Path, held: DataSection) -> CorpusError:
    tokens = sum(shard.tokens for shard in (*held.train, *held.heldout))
    return CorpusError(
        f"{out_dir} contains another corpus, {held.name} with {tokens:,} ids, which a run may need: choose another "
        "--out, or replace it with --force"
    )


def publish(side: SideFolder, out_dir: Path, section: DataSection, force: bool) -> None:
    """Move the new corpus into place, `corpus.json` last.

    Raises CorpusError if `out_dir` contains another corpus and `force` is not set; OSError.
    """
    if not force and (held := _held(out_dir)) is not None and held != section:
        raise _another(out_dir, held)
    with atomic_file(side.new / CORPUS_FILE) as file:
        write_whole(file, (json.dumps(section.model_dump(mode="json"), indent=2) + "\n").encode())
    side.publish([*_files(section), CORPUS_FILE], _replaceable(out_dir, force))


def _files(section: DataSection) -> list[str]:
    """The names of a corpus's files, without that of its description."""
    tokenizer = [TOKENIZER_FILE] if section.kind == "text" else []
    return [*tokenizer, *(shard.file for shard in itertools.chain(section.train, section.heldout))]
