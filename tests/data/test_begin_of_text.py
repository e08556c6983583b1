"""A model whose texts begin with a token of their own is trained and asked with it, as its tokenizer.json says."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import processors

from swarm.data import CorpusError, Source, Tokenizer, prepare
from swarm.data.text_parts import PART_CHARACTERS

TEXTS = [f"document {i}: the swarm trains {i % 7} models on {i % 13} machines" for i in range(200)]
TRAINED = Tokenizer.train(TEXTS, 320)


def with_begin(name: str, folder: Path) -> Path:
    """A tokenizer.json whose post-processor puts the token `name` before a text, as that of a Llama does."""
    inner = tokenizers.Tokenizer.from_str(TRAINED.raw.decode())
    inner.add_special_tokens([name])
    number = inner.token_to_id(name)
    inner.post_processor = processors.TemplateProcessing(single=[name, "$A"], special_tokens=[(name, number)])
    path = folder / "with-begin.json"
    path.write_text(inner.to_str())
    return path


def stream(folder: Path) -> np.ndarray:
    """All ids of a corpus, training split first."""
    files = [*sorted(folder.glob("train-*.bin")), *sorted(folder.glob("heldout-*.bin"))]
    return np.concatenate([np.fromfile(file, "<u2") for file in files])


def test_every_document_begins_with_it_once(tmp_path: Path):
    long = "the swarm trains " * (PART_CHARACTERS // 12)  # encoded in several parts
    path = with_begin("<s>", tmp_path)
    prepare(Source("toy", "", lambda: iter([*TEXTS, long])), tmp_path / "out", tokenizer=path, heldout_fraction=0.2)
    tokenizer = Tokenizer.load(path)
    (begin,) = tokenizer.begin
    ids = stream(tmp_path / "out")
    first = np.r_[0, np.flatnonzero(ids == tokenizer.end_of_text)[:-1] + 1]
    assert len(first) == len(TEXTS) + 1
    assert np.array_equal(np.flatnonzero(ids == begin), first)


def test_a_prompt_begins_with_it(tmp_path: Path):
    tokenizer = Tokenizer.load(with_begin("<s>", tmp_path))
    assert tokenizer.prompt("the swarm") == [*tokenizer.begin, *tokenizer.encode(["the swarm"])[0]]
    assert tokenizer.prompt("") == [*tokenizer.begin]
    assert TRAINED.begin == ()
    assert TRAINED.prompt("the swarm") == TRAINED.encode(["the swarm"])[0]
    assert TRAINED.prompt("") == [TRAINED.end_of_text]


def test_a_token_that_ends_and_begins_texts_is_written_once(tmp_path: Path):
    """OPT's texts end with `</s>`, and its prompts begin with it."""
    path = with_begin("<|endoftext|>", tmp_path)
    prepare(Source("toy", "", lambda: iter(TEXTS)), tmp_path / "out", tokenizer=path, heldout_fraction=0.2)
    tokenizer = Tokenizer.load(path)
    assert np.count_nonzero(stream(tmp_path / "out") == tokenizer.end_of_text) == len(TEXTS)
    assert tokenizer.prompt("the")[0] == tokenizer.end_of_text


def test_a_beginning_that_is_no_token_is_refused(tmp_path: Path):
    tree = json.loads(with_begin("<s>", tmp_path).read_text())
    tree["post_processor"]["special_tokens"]["<s>"]["ids"] = [90_000]
    with pytest.raises(CorpusError, match=r"begins texts with token 90000, but has tokens up to 3\d\d: correct it"):
        Tokenizer(json.dumps(tree).encode())
