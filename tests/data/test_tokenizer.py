"""The tokenizer: deterministic training, lossless round trips, foreign files."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from swarm.data import CorpusError, Tokenizer

TEXTS = [f"the peer {i} of the swarm trains the model {i * i}" for i in range(200)]
TOKENIZER = Tokenizer.train(TEXTS, 320)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_every_text_survives(text: str):
    assert TOKENIZER.decode(TOKENIZER.encode([text])[0]) == text


def test_a_document_cannot_spell_the_end_of_text():
    ids = TOKENIZER.encode(["before <|endoftext|> after"])[0]
    assert TOKENIZER.end_of_text not in ids


def unigram(folder: Path) -> Path:
    """A tokenizer as T5's: its pieces include the names of its special tokens, and the unknown token has a number."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator([*TEXTS, "a <s>b</s> c"], trainer)
    inner.save(str(folder / "unigram.json"))
    return folder / "unigram.json"


def test_a_document_cannot_spell_the_end_of_text_in_a_model_of_pieces(tmp_path: Path):
    tokenizer = Tokenizer.load(unigram(tmp_path))
    assert tokenizer.end_of_text == 1
    ids = tokenizer.encode(["the peer </s> of the </s></s>", "the swarm"])
    assert tokenizer.end_of_text not in ids[0]
    assert tokenizer.decode(ids[0]).replace(" ", "") == "thepeer</s>ofthe</s></s>"
    assert tokenizer.decode(ids[1]) == "the swarm"


def test_the_unknown_token_of_a_model_of_pieces_is_counted(tmp_path: Path):
    tokenizer = Tokenizer.load(unigram(tmp_path))
    assert tokenizer.unknown == 2
    assert tokenizer.encode(["the Ω"])[0][-1] == 2


def test_training_gives_the_same_bytes_in_another_process():
    code = (
        "from swarm.data import Tokenizer;"
        "texts = [f'the peer {i} of the swarm trains the model {i * i}' for i in range(200)];"
        "print(Tokenizer.train(texts, 320).sha256)"
    )
    for threads in ("1", "2"):
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True
        )
        assert result.stdout.strip() == TOKENIZER.sha256


def test_a_file_is_taken_as_it_is(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(TOKENIZER.raw)
    loaded = Tokenizer.load(path)
    assert loaded.sha256 == hashlib.sha256(TOKENIZER.raw).hexdigest()
    assert loaded.vocab_size == TOKENIZER.vocab_size <= 320
    assert loaded.encode(TEXTS[:3]) == TOKENIZER.encode(TEXTS[:3])


def test_what_others_encode_with_it_does_not_change_a_corpus(tmp_path: Path):
    """A file may say that texts are cut off, filled up, or encoded at random, as others did when they trained."""
    tree = json.loads(TOKENIZER.raw)
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    fill = {"strategy": {"Fixed": 900}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    model = {**tree["model"], "dropout": 0.5}
    odd = {**tree, "truncation": cut, "padding": {**fill, "pad_to_multiple_of": None}, "model": model}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(odd))
    assert Tokenizer.load(path).encode(TEXTS) == TOKENIZER.encode(TEXTS)


def test_bad_tokenizers_are_named(tmp_path: Path):
    path = tmp_path / "odd.json"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n")
    for read in (Tokenizer.load, Tokenizer.of_model):
        with pytest.raises(CorpusError, match=r"odd\.json is not a tokenizer\.json: .*git lfs pull"):
            read(path)
    path.write_text("{}")
    with pytest.raises(CorpusError, match=r"odd\.json is not a tokenizer\.json"):
        Tokenizer.load(path)
    path.write_bytes(TOKENIZER.raw.replace(b"<|endoftext|>", b"<|stop_here|>"))
    with pytest.raises(CorpusError, match="no known end-of-text token"):
        Tokenizer.load(path)
    tree = json.loads(TOKENIZER.raw)
    panics = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path.write_text(json.dumps({**tree, "normalizer": panics}))
    with pytest.raises(CorpusError, match=r"odd\.json is not a tokenizer\.json: Precompiled"):
        Tokenizer.load(path)
    words = {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1, "<s>": 1 << 24}, "unk_token": "[UNK]"}
    path.write_text(json.dumps({**tree, "added_tokens": [], "model": words}))
    with pytest.raises(CorpusError, match=r"has token id 16777216; the largest one allowed is"):
        Tokenizer.load(path)
    del words["vocab"]["<s>"]
    path.write_text(json.dumps({**tree, "added_tokens": [], "model": words}))
    with pytest.raises(CorpusError, match=r"odd\.json cannot encode the text"):
        Tokenizer.load(path).encode(["no word of it"])
    with pytest.raises(CorpusError, match="vocab_size = 100"):
        Tokenizer.train(TEXTS, 100)


@pytest.mark.parametrize("number", [40, 299])
def test_an_added_token_that_the_library_numbers_anew_is_refused(number: int):
    """It overlaps with the vocabulary, or leaves a gap after it: documents would end with another token."""
    tree = json.loads(Tokenizer.train(TEXTS, 290).raw)
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tree["added_tokens"].append({"id": number, "content": "<eos>", **added})
    with pytest.raises(CorpusError, match=rf"mine gives the added token '<eos>' the id {number}, .* gives it \d+: cor"):
        Tokenizer(json.dumps(tree).encode(), "mine")
    tree["added_tokens"][-1]["id"] = max(tree["model"]["vocab"].values()) + 1
    assert Tokenizer(json.dumps(tree).encode(), "mine").vocab_size == tree["added_tokens"][-1]["id"] + 1


def test_a_file_that_is_too_large_for_a_tokenizer_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(TOKENIZER.raw)
    monkeypatch.setattr("swarm.data.tokenizer._MAX_BYTES", len(TOKENIZER.raw))
    assert Tokenizer.load(path).vocab_size == TOKENIZER.vocab_size
    monkeypatch.setattr("swarm.data.tokenizer._MAX_BYTES", len(TOKENIZER.raw) - 1)
    for read in (Tokenizer.load, Tokenizer.of_model):
        with pytest.raises(CorpusError, match=r"is no tokenizer\.json; name the right file"):
            read(path)
