"""The folder of a prepared corpus: shards, a tokenizer (for text), and `corpus.json` with the hashes of all files.

All files are first written to a temporary folder inside it, and `corpus.json` is moved last, so that a killed process
leaves either no corpus.json or the previous one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from swarm.atomic import sync_folder
from swarm.data.corpus_error import CorpusError
from swarm.data.shards import naming
from swarm.manifest import DataSection

CORPUS_FILE = "corpus.json"
TOKENIZER_FILE = "tokenizer.json"
_SIDE_FOLDER = ".preparing"


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
        raise CorpusError(f"{path} cannot be read ({error}): run `swarm-peer prepare` again") from None


def open_side_folder(out_dir: Path, name: str, force: bool) -> Path:
    """Create a new temporary folder inside `out_dir` for the files of corpus `name`. Raises CorpusError, OSError.

    Unless `force` is set, an existing corpus with another name is refused here, before any work.
    """
    if out_dir.exists() and not out_dir.is_dir():
        raise CorpusError(f"{out_dir} is a file: name a folder to write the corpus to")
    foreign = [] if not out_dir.is_dir() else [p for p in out_dir.iterdir() if not _is_ours(p.name)]
    if foreign:
        raise CorpusError(f"{out_dir} contains other files ({foreign[0].name}): name an empty folder with --out")
    if not force and (held := _held(out_dir)) is not None and held.name != name:
        raise _another(out_dir, held)
    side = out_dir / _SIDE_FOLDER
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir(parents=True)
    return side


def _is_ours(name: str) -> bool:
    return name in (CORPUS_FILE, TOKENIZER_FILE, _SIDE_FOLDER) or (
        name.startswith(("train-", "heldout-")) and name.endswith(".bin")
    )


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


def publish(side: Path, out_dir: Path, section: DataSection, force: bool) -> None:
    """Move the new corpus into place. From the first unlink to the last rename, the folder has no corpus.json.

    Raises CorpusError if `out_dir` contains another corpus and `force` is not set; OSError.
    """
    if not force and (held := _held(out_dir)) is not None and held != section:
        raise _another(out_dir, held)
    description = side / CORPUS_FILE
    with naming(out_dir / CORPUS_FILE), description.open("w", encoding="utf-8") as file:
        json.dump(section.model_dump(mode="json"), file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    (out_dir / CORPUS_FILE).unlink(missing_ok=True)
    for old in [*out_dir.glob("train-*.bin"), *out_dir.glob("heldout-*.bin"), out_dir / TOKENIZER_FILE]:
        old.unlink(missing_ok=True)
    names = [shard.file for shard in itertools.chain(section.train, section.heldout)]
    for name in (*([TOKENIZER_FILE] if section.kind == "text" else ()), *names, CORPUS_FILE):
        (side / name).replace(out_dir / name)
    sync_folder(out_dir)
