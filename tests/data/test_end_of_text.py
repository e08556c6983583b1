"""Which token ends a text is taken from the model's own files, not from a list of names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from swarm.data import CorpusError, Tokenizer, end_of_text

SPECIALS = ("<s>", "</s>", "<|endoftext|>", "<｜end▁of▁sentence｜>")


def write(folder: Path, specials: tuple[str, ...] = SPECIALS, **files: dict[str, Any]) -> Path:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(["the river"] * 9, trainer)
    (folder / "tokenizer.json").write_text(inner.to_str(), encoding="utf-8")
    for name, tree in files.items():
        (folder / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({"config": {"eos_token_id": 3}}, 3),
        ({"config": {"eos_token_id": 1}}, 1),
        ({"config": {"eos_token_id": [2, 1]}}, 2),
        ({"config": {"eos_token_id": [2, 1]}, "tokenizer_config": {"eos_token": "</s>"}}, 1),
        ({"config": {"eos_token_id": None}, "generation_config": {"eos_token_id": 3}}, 3),
        ({"config": {"eos_token_id": 77}, "tokenizer_config": {"eos_token": "</s>"}}, 1),
        ({"tokenizer_config": {"eos_token": {"content": SPECIALS[3], "lstrip": False}}}, 3),
        ({"generation_config": {"eos_token_id": 2}}, 2),
    ],
)
def test_the_files_beside_it_say(files: dict[str, dict[str, Any]], end: int, tmp_path: Path) -> None:
    found = Tokenizer.of_model(write(tmp_path, **files))
    assert found.end_of_text == end
    copy = tmp_path / "elsewhere" / "tokenizer.json"
    copy.parent.mkdir()
    copy.write_bytes(found.raw)
    assert Tokenizer.load(copy).end_of_text == end, "the one file says it from now on"
    plain = Tokenizer.load(tmp_path / "tokenizer.json")
    assert plain.encode(["the river </s> runs"]) == found.encode(["the river </s> runs"])
    tokenizers.Tokenizer.from_file(str(copy))


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"config": {"eos_token_id": 1}, "generation_config": {"eos_token_id": [1, 3]}}, (1, 3)),
        ({"config": {"eos_token_id": [2, 1, 77]}, "generation_config": {"eos_token_id": 1}}, (2, 1)),
        (
            {
                "config": {"eos_token_id": 1},
                "generation_config": {"eos_token_id": [1, 3]},
                "tokenizer_config": {"eos_token": SPECIALS[3]},
            },
            (3, 1),
        ),
        ({"config": {"eos_token_id": 1}, "tokenizer_config": {"eos_token": SPECIALS[3]}}, (1,)),
    ],
)
def test_a_model_stops_at_each_end_token_that_a_file_lists(
    files: dict[str, dict[str, Any]], ends: tuple[int, ...], tmp_path: Path
) -> None:
    """The one that tokenizer_config.json names ends texts, if it is among them."""
    found = Tokenizer.of_model(write(tmp_path, **files))
    assert found.end_of_text == ends[0] and (found.ends[0], set(found.ends)) == (ends[0], set(ends))
    assert Tokenizer(found.raw).ends == found.ends, "the one file says it from now on"
    tree = json.loads(end_of_text.unmarked(found.raw))
    assert tree == json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_bytes(found.raw)
    assert Tokenizer.of_model(tmp_path / "tokenizer.json").raw == found.raw
    assert Tokenizer.of_model(tmp_path / "tokenizer.json", "<s>").ends == (0,), "the user names the only one"


def test_nothing_is_guessed_where_several_may_be_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(CorpusError, match="no file says which of them"):
        Tokenizer.of_model(path)
    assert Tokenizer.of_model(path, "</s>").end_of_text == 1
    with pytest.raises(CorpusError, match="no such special token"):
        Tokenizer.of_model(path, "<eot>")


def test_one_that_is_known_alone_is_taken(tmp_path: Path) -> None:
    assert Tokenizer.of_model(write(tmp_path, ("<unk>", "</s>"))).end_of_text == 1


def test_what_is_told_must_be_a_token(tmp_path: Path) -> None:
    path = write(tmp_path, tokenizer_config={"eos_token": "<other>"})
    with pytest.raises(CorpusError, match=r"no such special token .*'<other>'.*under added_tokens in tokenizer\.json"):
        Tokenizer.of_model(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": true}', '{"eos_token_id": {}}'])
def test_odd_configurations_say_nothing(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, ("<unk>", "</s>"))
    (tmp_path / "config.json").write_text(text)
    assert Tokenizer.of_model(path).end_of_text == 1


def test_files_of_older_tokenizers_are_told_apart(tmp_path: Path) -> None:
    """vocab.json is a JSON object too, and tokenizer.model is none."""
    write(tmp_path, tokenizer_config={"eos_token": "</s>"})
    (tmp_path / "vocab.json").write_text('{"a": 0, "</s>": 1}')
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0d\x0a\x05<unk>\x15\x00\x00")
    for name in ("vocab.json", "tokenizer.model"):
        with pytest.raises(CorpusError, match=rf"{name} is not a tokenizer\.json: .*save_pretrained\(folder\)` makes"):
            Tokenizer.of_model(tmp_path / name)
