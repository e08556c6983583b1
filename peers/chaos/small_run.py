"""Makes the run of scenarios without a run file: a model of 85 thousand parameters in two stages, on made-up words."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

RUN = """\
[run]
name = "chaos"
steps = 12
[model]
vocab_size = 512
dim = 32
layers = 4
heads = 2
kv_heads = 1
ffn_dim = 64
context = 32
cuts = [2]
[batch]
microbatches = 8
sequences = 2
sequence_length = 32
[checkpoint]
every = 4
[evaluation]
every = 0
[timing]
recruit_after_s = 1.0
[audit]
every = 0
[data]
directory = "data"
"""


def write_run(folder: Path) -> tuple[Path, list[str]]:
    """Write RUN.toml and a text; returns the run's path, and the command that prepares the text for it."""
    text = write_words(folder, 600)
    path = folder / "RUN.toml"
    path.write_text(RUN)
    return path, ["prepare", "--input", str(text), "--out", str(folder / "data"), "--vocab-size", "400"]


def write_words(folder: Path, texts: int) -> Path:
    """A file of `texts` texts of 40 made-up words out of 200, the same every time."""
    draw = Random(0)
    words = ["".join(draw.choices("aeioulmnrst", k=draw.randint(2, 6))) for _ in range(200)]
    documents = (" ".join(draw.choices(words, k=40)) for _ in range(texts))
    path = folder / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": document}) for document in documents))
    return path
