"""The corpus that a benchmark trains on: one that is there, or the Wikipedia leads, all or some, prepared anew."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.local_swarm import PEERS
from swarm.data import Source, prepare, read_corpus, wikipedia_leads
from swarm.data.folder import TOKENIZER_FILE


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


def prepare_some_leads(whole: Path, out: Path, tokens: int, heldout_tokens: int) -> None:
    """Every n-th of the leads that `whole` was prepared from, with its tokenizer: about `tokens` to train on.

    As much is held out as evaluations of `heldout_tokens` need, with a half to spare.
    """
    leads = wikipedia_leads()
    section = read_corpus(whole)
    heldout = heldout_tokens * 1.5
    nth = max(1, int(sum(shard.tokens for shard in (*section.train, *section.heldout)) / (tokens + heldout)))
    some = Source(f"{leads.name}-{nth}", leads.licence, lambda: itertools.islice(leads.documents(), 0, None, nth))
    prepare(some, out, tokenizer=whole / TOKENIZER_FILE, heldout_fraction=heldout / (tokens + heldout))
