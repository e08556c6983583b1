"""The folder of a prepared corpus: shards, a tokenizer where there is one, and `corpus.json`, all of it by hash.

Everything is written to a side folder first and `corpus.json` last, so that a run that is killed leaves no
corpus.json, or the one that was there.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from swarm.data.corpus import CorpusError
from swarm.manifest import DataSection

CORPUS_FILE = "corpus.json"
TOKENIZER_FILE = "tokenizer.json"
_SIDE_FOLDER = ".preparing"


def read_corpus(directory: Path) -> DataSection:
    """The description `prepare` left in `directory`. Raises CorpusError. `CorpusReader` checks the files it names."""
    path = directory / CORPUS_FILE
    try:
        return DataSection.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise CorpusError(
            f"no prepared corpus in {directory}: make one with `swarm-peer prepare --out {directory}`"
        ) from None
    except (ValidationError, ValueError, RecursionError) as error:
        raise CorpusError(f"{path} cannot be read ({error}): run `swarm-peer prepare` again") from None


def open_side_folder(out_dir: Path) -> Path:
    """A fresh folder inside `out_dir`, to write a corpus to. Raises CorpusError, OSError."""
    if out_dir.exists() and not out_dir.is_dir():
        raise CorpusError(f"{out_dir} is a file: name a folder to write the corpus to")
    foreign = [] if not out_dir.is_dir() else [p for p in out_dir.iterdir() if not _is_ours(p.name)]
    if foreign:
        raise CorpusError(f"{out_dir} holds other files ({foreign[0].name}): name an empty folder with --out")
    side = out_dir / _SIDE_FOLDER
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir(parents=True)
    return side


def _is_ours(name: str) -> bool:
    return name in (CORPUS_FILE, TOKENIZER_FILE, _SIDE_FOLDER) or (
        name.startswith(("train-", "heldout-")) and name.endswith(".bin")
    )


def publish(side: Path, out_dir: Path, section: DataSection) -> None:
    """Swap the new corpus in. From the first unlink to the last rename the folder has no corpus.json."""
    description = side / CORPUS_FILE
    with description.open("w", encoding="utf-8") as file:
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
    _sync_folder(out_dir)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
