"""The corpus that a benchmark trains on: one that is there, or the Wikipedia leads, prepared anew."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.local_swarm import PEERS


@contextmanager
def folder_with_corpus(name: str, given: Path | None = None, *, vocab_size: int | None = None) -> Iterator[Path]:
    """A folder for the time being, with a prepared corpus in `data`. `given`: it is that one."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as made:
        folder = Path(made)
        if given is None:
            words = [*PEERS, "prepare", "--out", str(folder / "data")]
            if vocab_size is not None:
                words += ["--vocab-size", str(vocab_size)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        else:
            (folder / "data").symlink_to(given.resolve())
        yield folder
