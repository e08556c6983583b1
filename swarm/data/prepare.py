"""Prepares a corpus: converts text to a tokenizer, token shards and `corpus.json`, which contains their hashes.

The same input always gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from swarm.atomic import atomic_file, write_whole
from swarm.data.corpus import Source
from swarm.data.corpus_error import CorpusError
from swarm.data.folder import TOKENIZER_FILE, corpus_folder, publish
from swarm.data.shards import ShardWriter, dtype_for
from swarm.data.split import check_fraction, is_heldout, unigram_entropy
from swarm.data.text_parts import parts
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import DataSection, Shard

SHARD_TOKENS = 1 << 27
"""Default size limit of a shard, tokens: 256 MiB as uint16."""

TRAINING_CHARACTERS = 1 << 28
"""Largest number of characters on which the tokenizer is trained, from the start of the training split."""

_BATCH_CHARACTERS = 1 << 20
_BATCH_PORTIONS = 1 << 14
"""Texts that are encoded at once: each takes about a kilobyte, however short it is."""
_LOST_SHOWN = 8

Progress = Callable[[str, int, int | None], None]
"""Called with (activity, documents done, total number of documents if known)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What people should look at to notice a wrong input before a model is trained on it."""

    documents: int
    unknown: float
    """Fraction of ids that are the unknown token, which replaces text without a token."""
    lost: float
    """Fraction of the characters that encoding and decoding loses or changes."""
    lost_characters: tuple[str, ...]
    """The most frequent of these characters."""
    first_line: str
    """The start of the first training text, decoded from its ids."""
    named_special: int
    """Number of documents with the name of a special token, such as `<|im_start|>`, that is encoded as characters."""
    special_name: str
    """The first of these names; empty if there is none."""


def prepare(
    source: Source,
    out_dir: Path,
    *,
    vocab_size: int = 4096,
    tokenizer: Path | None = None,
    end: str | None = None,
    special_tokens: bool = False,
    heldout_fraction: float = 0.02,
    shard_tokens: int = SHARD_TOKENS,
    force: bool = False,
    on_progress: Progress = lambda what, done, total: None,
    on_sight: Callable[[Sight], None] = lambda sight: None,
) -> DataSection:
    """Convert `source` to a corpus in `out_dir`; returns its description.

    `tokenizer`: a tokenizer.json to use; None: train one. `end`: the token that ends a text, if the files in the folder
    of `tokenizer` do not name it. `special_tokens`: whether the names of its special tokens within texts become these
    tokens; otherwise they are plain characters. A document belongs to the held-out split if its hash is below
    `heldout_fraction`, so equal documents are always on the same side. Another corpus in `out_dir` is replaced only
    with `force`. Raises CorpusError, OSError.
    """
    check_fraction(heldout_fraction)
    with corpus_folder(out_dir, source.name, force) as side:
        total: int | None = None
        if tokenizer is not None:
            used = Tokenizer.of_model(tokenizer, end, special_tokens)
        else:
            texts = _TrainingTexts(source, heldout_fraction, on_progress)
            used = Tokenizer.train(texts, vocab_size)
            total = texts.documents if texts.complete else None
        with atomic_file(side.new / TOKENIZER_FILE) as file:
            write_whole(file, used.raw)
        section = _encode(source, side.new, used, heldout_fraction, shard_tokens, total, on_progress, on_sight)
        publish(side, out_dir, section, force)
    return section


class _TrainingTexts:
    """Yields the texts of the training split up to TRAINING_CHARACTERS, and counts the documents of both splits."""

    def __init__(self, source: Source, heldout_fraction: float, on_progress: Progress) -> None:
        self._source = source
        self._fraction = heldout_fraction
        self._on_progress = on_progress
        self.documents = 0
        self.complete = False

    def __iter__(self) -> Iterator[str]:
        characters = 0
        for text in self._source.documents():
            self.documents += 1
            if self.documents % 256 == 0:
                self._on_progress("training the tokenizer", self.documents, None)
            if not is_heldout(text.encode("utf-8"), self._fraction):
                characters += len(text)
                yield from parts(text)
            if characters >= TRAINING_CHARACTERS:
                return
        self.complete = True


def _encode(
    source: Source,
    side: Path,
    tokenizer: Tokenizer,
    heldout_fraction: float,
    shard_tokens: int,
    total: int | None,
    on_progress: Progress,
    on_sight: Callable[[Sight], None],
) -> DataSection:
    dtype = dtype_for(tokenizer.vocab_size)
    writers = {held: ShardWriter(side, "heldout" if held else "train", dtype, shard_tokens) for held in (False, True)}
    counts = {held: np.zeros(tokenizer.vocab_size, dtype=np.int64) for held in (False, True)}
    heldout_bytes = 0
    done = 0
    first_line = ""
    read = 0
    lost: Counter[str] = Counter()
    name, special_name, named_special = "", "", 0
    try:
        for batch in _batches(_portions(source.documents(), heldout_fraction)):
            encoded = tokenizer.encode([portion.text for portion in batch])
            decoded = tokenizer.decode_all(encoded)
            for (text, held, is_first, is_last), ids, again in zip(batch, encoded, decoded, strict=True):
                begin = tokenizer.separators if is_first else ()
                tokens = np.asarray([*begin, *ids, *((tokenizer.end_of_text,) if is_last else ())], dtype=np.int64)
                writers[held].write(tokens)
                counts[held] += np.bincount(tokens, minlength=tokenizer.vocab_size)
                heldout_bytes += len(text.encode("utf-8")) if held else 0
                read += len(text)
                if again != text:
                    lost += Counter(text) - Counter(again)
                if not (held or first_line):
                    first_line = next((line for line in again.splitlines() if line.strip()), "")
                name = name or tokenizer.special_in(text) or ""
                special_name = special_name or name
                done += is_last
                if is_last:
                    named_special += bool(name)
                    name = ""
            on_progress("encoding", done, total)
        train, heldout = writers[False].close(), writers[True].close()
    finally:
        for writer in writers.values():
            writer.abandon()
    for split, shards in (("training", train), ("held-out", heldout)):
        if not shards:
            raise CorpusError(
                f"the {split} split is empty: {source.name} has {done} {'document' if done == 1 else 'documents'} "
                f"and the held-out fraction is {heldout_fraction}; {_mend(split, done)}"
            )
    seen = counts[False] + counts[True]
    unknown = 0 if tokenizer.unknown is None else int(seen[tokenizer.unknown])
    characters = tuple(character for character, _ in lost.most_common(_LOST_SHOWN))
    fractions = unknown / int(seen.sum()), lost.total() / max(read, 1)
    on_sight(Sight(done, *fractions, characters, first_line, named_special, special_name))
    return DataSection(
        name=source.name,
        licence=source.licence,
        tokenizer_sha256=tokenizer.sha256,
        special_tokens=tokenizer.special_tokens,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype,
        train=train,
        heldout=heldout,
        unigram_entropy=unigram_entropy(counts[True], counts[False]),
        bytes_per_token=round(heldout_bytes / _tokens(heldout), 6),
    )


def _mend(empty: str, documents: int) -> str:
    """What to do about an empty split."""
    if documents < 2:
        return (
            "each split needs a document: add some. A long text is split at the ends of its lines, and a line of more "
            "than 64 kB also within it"
        )
    change = "lower" if empty == "training" else "raise"
    return f"add documents or {change} --heldout. Documents with the same text are all in one split"


class _Portion(NamedTuple):
    """A text, or a part of a long one."""

    text: str
    held: bool
    """Whether the text belongs to the held-out split."""
    is_first: bool
    is_last: bool


def _portions(texts: Iterable[str], heldout_fraction: float) -> Iterator[_Portion]:
    for text in texts:
        held = is_heldout(text.encode("utf-8"), heldout_fraction)
        left = len(text)
        for part in parts(text):
            is_first = left == len(text)
            left -= len(part)
            yield _Portion(part, held, is_first, is_last=not left)


def _batches(portions: Iterable[_Portion]) -> Iterator[list[_Portion]]:
    batch: list[_Portion] = []
    characters = 0
    for portion in portions:
        batch.append(portion)
        characters += len(portion.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PORTIONS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _tokens(shards: Iterable[Shard]) -> int:
    return sum(shard.tokens for shard in shards)
