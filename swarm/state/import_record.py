"""The record of an import: the [model] with which imported parameters compute what their source computed, and the
tokens that they were trained with.

Most of these values leave no trace in the shapes of the parameters. If one of them is edited later, the model computes
something else with parameters that were trained for the old value, and nothing fails. Neither does anything if the
corpus has the ids of another tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from swarm.atomic import atomic_file, write_whole
from swarm.data.corpus_error import CorpusError
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.shards import check_file
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import DataSection, ModelSection
from swarm.state.error import StateError

RECORD_FILE = "import.json"
"""In the folder of the parameters."""
MAX_RECORD_BYTES = 1 << 16

FREE = ("cuts", "context", "anchor")
"""Keys of [model] that may be edited after an import. An anchor that has an effect is refused with the manifest."""


@dataclass(frozen=True, slots=True)
class ImportRecord:
    vocabulary: str | None
    """`Tokenizer.vocabulary_sha256` of the imported model; None if an earlier release wrote the record."""


def write_record(directory: Path, model: ModelSection, sha256: str, vocabulary: str) -> None:
    """Record that the parameters in `directory`, with the hash `sha256`, are those of `model`, and that `vocabulary` is
    the hash of its tokens. Raises OSError.
    """
    record = {"sha256": sha256, "vocabulary": vocabulary, "model": model.model_dump(mode="json")}
    with atomic_file(directory / RECORD_FILE) as file:
        write_whole(file, f"{json.dumps(record, indent=1)}\n".encode())


def check_record(directory: Path, model: ModelSection, sha256: str) -> ImportRecord | None:
    """Compare `model`, the [model] of RUN.toml, with the record in `directory`, if it is of the parameters `sha256`.

    Returns None if there is no such record: an earlier release wrote none. Raises StateError if the two differ in
    what they compute, or if the record is damaged.
    """
    path = directory / RECORD_FILE
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(MAX_RECORD_BYTES))
        of, imported = record["sha256"], ModelSection.model_validate(record["model"])
        vocabulary = record.get("vocabulary")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(path, f"cannot be read: {error.strerror}") from None
    except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
        raise StateError(path, "is damaged, or of a later release: import the model again") from None
    if of != sha256:
        return None
    keys = [
        key for key in ModelSection.model_fields if key not in FREE and getattr(model, key) != getattr(imported, key)
    ]
    if keys:
        told = "; ".join(f"model.{key} was {_shown(key, imported)}, is {_shown(key, model)}" for key in keys)
        raise StateError(
            directory,
            f"the parameters were imported with another [model] ({told}), so they would not compute what they were "
            f"trained for: restore the old value in RUN.toml or --set. If you mean the change, make it in {path} too",
        )
    return ImportRecord(vocabulary)


def check_vocabulary(record: ImportRecord, directory: Path, corpus: Path, data: DataSection) -> None:
    """Refuse a corpus with other tokens than those of the model that was imported to `directory`. Raises CorpusError.

    `corpus`: the folder that `data` describes. A record of an earlier release does not tell the tokens.
    """
    if record.vocabulary is None or data.kind != "text":
        return
    path = corpus / TOKENIZER_FILE
    check_file(path, data.tokenizer_sha256)
    if Tokenizer.load(path).vocabulary_sha256 == record.vocabulary:
        return
    imported = directory.parent / TOKENIZER_FILE
    raise CorpusError(
        f"{path} has other tokens than {imported}, with which the imported model was trained, so the model would read "
        "the corpus as another text: prepare it again with "
        f"`swarm-peer prepare --input TEXT --tokenizer {imported} --out {corpus} --force`"
    )


def _shown(key: str, model: ModelSection) -> str:
    return json.dumps(getattr(model, key))
