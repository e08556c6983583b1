"""The corpus on which a benchmark trains: a given one, or some or all of the Wikipedia leads, prepared now."""

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
    """A temporary folder with a prepared corpus in `data`. `given`: use this corpus."""
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
    """Prepare every n-th of the leads from which `whole` was prepared, with its tokenizer, for about `tokens` training
    tokens.

    The held-out split has half more tokens than evaluations of `heldout_tokens` need.
    """
    leads = wikipedia_leads()
    section = read_corpus(whole)
    heldout = heldout_tokens * 1.5
    nth = max(1, int(sum(shard.tokens for shard in (*section.train, *section.heldout)) / (tokens + heldout)))
    some = Source(f"{leads.name}-{nth}", leads.licence, lambda: itertools.islice(leads.documents(), 0, None, nth))
    prepare(some, out, tokenizer=whole / TOKENIZER_FILE, heldout_fraction=heldout / (tokens + heldout))
