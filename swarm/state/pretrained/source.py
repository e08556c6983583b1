"""Opens a pretrained model: a Hugging Face folder or a GGUF file, recognised by its content."""

from __future__ import annotations

import re
from pathlib import Path

from swarm.data.lfs_pointer import pointer_advice
from swarm.state.error import StateError
from swarm.state.pretrained.folder import open_folder
from swarm.state.pretrained.gguf import MAGIC
from swarm.state.pretrained.gguf_llama import open_gguf
from swarm.state.pretrained.model import NO_PICKLE, PretrainedModel

_LOOK = 256
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def open_pretrained(source: Path, tokenizer: Path | None = None, end: str | None = None) -> PretrainedModel:
    """Open the model at `source`. No tensor is read yet.

    `tokenizer`: a tokenizer.json in place of its own. `end`: the special token that ends a text; None: the one that the
    model's files name.

    Raises StateError naming the unsupported property; CorpusError for a tokenizer; OSError.
    """
    if source.is_dir():
        return open_folder(source, tokenizer, end)
    if not source.exists() and _HUB_NAME.fullmatch(str(source)):
        raise StateError(
            source,
            "there is no such folder. If this is a model's name on a hub, download the model first, such as with "
            f"`hf download {source} --local-dir FOLDER`, and name the folder",
        )
    with source.open("rb") as file:
        start = file.read(_LOOK)
    magic = start[: len(MAGIC)]
    if magic == MAGIC:
        return open_gguf(source, tokenizer, end)
    if advice := pointer_advice(start):
        raise StateError(source, advice)
    if source.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
        raise StateError(source, NO_PICKLE)
    inside = f": name its folder, {source.parent}" if source.suffix in (".safetensors", ".json") else ""
    raise StateError(source, f"is neither a folder nor a GGUF file, since it begins with {magic!r}{inside}")
