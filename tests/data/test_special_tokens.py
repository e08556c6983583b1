"""Names of special tokens within texts: plain characters, unless the user trusts the texts."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peers import cli
from peers.coordinator.durable import Durable
from peers.coordinator.options import CoordinateOptions
from peers.run.home import OpenHome
from swarm.data import Source, Tokenizer, prepare, read_corpus
from swarm.data.prepare import Sight
from swarm.manifest import DataSection, EvaluationSection, ModelSection, RunManifest
from swarm.models.kinds import build_stage
from swarm.state.export import export_native

CHATS = [f"<|im_start|>user\nis {i} odd?<|im_end|>\n<|im_start|>assistant\n{i % 2}<|im_end|>\n" for i in range(300)]
PLAIN = [f"the number {i} is a number, as {i * 7} is" for i in range(100)]
NAMES = ("<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json as chat models have it: a text ends with the token that ends each turn."""
    tree = json.loads(Tokenizer.train([*CHATS, *PLAIN], 320).raw)
    (end,) = tree["added_tokens"]
    first = max(tree["model"]["vocab"].values()) + 1
    more = [{**end, "id": first + at, "content": name} for at, name in enumerate(NAMES)]
    folder = tmp_path_factory.mktemp("chat")
    (folder / "tokenizer.json").write_text(json.dumps({**tree, "added_tokens": [end, *more]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": first + 1}))
    return folder / "tokenizer.json"


def prepared(path: Path, out: Path, special_tokens: bool) -> tuple[DataSection, Sight, Tokenizer, list[int]]:
    """The corpus of all texts: its description, what `prepare` saw, its tokenizer and its ids."""
    sights: list[Sight] = []
    source = Source("toy", "CC0", lambda: iter([*CHATS, *PLAIN]))
    given = {"tokenizer": path, "special_tokens": special_tokens, "heldout_fraction": 0.2}
    section = prepare(source, out, on_sight=sights.append, **given)
    assert read_corpus(out) == section
    ids = np.concatenate([np.fromfile(out / f"{split}-00000.bin", "<u2") for split in ("train", "heldout")])
    return section, sights[0], Tokenizer.load(out / "tokenizer.json"), ids.tolist()


def test_they_are_characters_and_counted(path: Path, tmp_path: Path) -> None:
    section, sight, tokenizer, ids = prepared(path, tmp_path / "out", False)
    start, end = (tokenizer.encode([name])[0] for name in NAMES)
    assert min(len(start), len(end)) > 1
    assert tokenizer.end_of_text == tokenizer.vocab_size - 1
    assert ids.count(tokenizer.vocab_size - 2) == 0 and ids.count(tokenizer.end_of_text) == len(CHATS) + len(PLAIN)
    assert (sight.named_special, sight.special_name) == (len(CHATS), "<|im_start|>")
    assert not section.special_tokens and "special_tokens" not in json.loads(
        (tmp_path / "out" / "corpus.json").read_text()
    )


def test_they_are_tokens_if_the_user_says_so(path: Path, tmp_path: Path) -> None:
    section, sight, tokenizer, ids = prepared(path, tmp_path / "out", True)
    assert section.special_tokens and json.loads((tmp_path / "out" / "corpus.json").read_text())["special_tokens"]
    assert ids.count(tokenizer.vocab_size - 2) == 2 * len(CHATS)
    assert ids.count(tokenizer.end_of_text) == 3 * len(CHATS) + len(PLAIN), "each turn's, and one after each text"
    assert (sight.named_special, sight.lost) == (0, 0.0), "the names are no lost characters"
    plain = Tokenizer.load(path).encode(PLAIN)
    assert Tokenizer.load(path, special_tokens=True).encode(PLAIN) == plain


def test_the_setting_is_a_part_of_the_run_only_if_it_is_set(path: Path, tmp_path: Path) -> None:
    """Corpora and runs of earlier releases keep their bytes and hashes."""
    for special_tokens in (False, True):
        section, *_ = prepared(path, tmp_path / str(special_tokens), special_tokens)
        manifest = RunManifest(data=section)
        tree = json.loads(manifest.canonical())
        assert tree["data"].get("special_tokens", False) == special_tokens
        assert len(tree["data"]) == len(DataSection.model_fields) - (not special_tokens)
        again = RunManifest.from_canonical(manifest.canonical())
        assert again == manifest and again.hash == manifest.hash and again.data.special_tokens == special_tokens


def test_prepare_warns_and_says_which_option(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "chats.jsonl"
    text.write_text("\n".join(json.dumps({"text": each}) for each in [*CHATS, *PLAIN]))
    given = ("prepare", "--input", text, "--tokenizer", path, "--heldout", "0.2", "--out")
    for form in ((), ("--json",)):
        assert run(*given, tmp_path / "characters", *form) == 0
        said = capsys.readouterr().err
        assert "warning: 300 of 400 documents contain names of special tokens, such as '<|im_start|>'" in said
        assert "prepare again with --special-tokens" in said
    assert run(*given, tmp_path / "tokens", "--special-tokens") == 0
    assert "warning" not in capsys.readouterr().err
    assert run(*given, tmp_path / "tokens") == 2, "it is another corpus"
    assert "--force" in capsys.readouterr().err
    assert run("prepare", "--input", text, "--out", tmp_path / "own", "--special-tokens") == 2
    assert "drop --special-tokens" in capsys.readouterr().err


@pytest.fixture
def manifest(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> RunManifest:
    """A run whose corpus, in tmp_path/corpus, was prepared with or without --special-tokens."""
    section, *_ = prepared(path, tmp_path / "corpus", request.param)
    model = ModelSection(vocab_size=section.vocab_size, dim=8, layers=2, heads=2, kv_heads=1, ffn_dim=8, cuts=(1,))
    evaluation = EvaluationSection(every=1, microbatches=1, prompt="<|im_start|>user\n")
    return RunManifest(model=model, data=section, evaluation=evaluation)


@pytest.mark.parametrize("manifest", [False, True], indirect=True)
def test_the_prompt_of_samples_is_encoded_as_the_texts_are(manifest: RunManifest, tmp_path: Path) -> None:
    async def ids() -> list[int]:
        with OpenHome(tmp_path / "home", time.time) as home:
            options = CoordinateOptions(corpus=tmp_path / "corpus", listen=(), devices=1)
            durable = await Durable.opened(manifest, home, options)
            durable.log.close()
            assert durable.tokenizer is not None
            return durable.tokenizer.prompt(manifest.evaluation.prompt)

    assert (manifest.data.vocab_size - 2 in asyncio.run(ids())) == manifest.data.special_tokens


@pytest.mark.parametrize("manifest", [False, True], indirect=True)
def test_generate_does_as_the_run_did_unless_it_is_told(
    manifest: RunManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {at: dict(build_stage(manifest.model, at, seed=1).named_parameters()) for at in (0, 1)}
    export_native(states, manifest, tmp_path / "corpus" / "tokenizer.json", tmp_path / "model")
    used: list[bool] = []

    def seen(model: object, manifest: RunManifest, tokenizer: Tokenizer, prompt: str, *more: Any, **rest: Any) -> str:
        used.append(manifest.data.vocab_size - 2 in tokenizer.prompt(prompt))
        return ""

    monkeypatch.setattr("swarm.state.generate.generate", seen)
    for option in ((), ("--special-tokens",), ("--no-special-tokens",)):
        assert run("generate", "<|im_start|>user", "--export", tmp_path / "model", *option) == 0
    assert used == [manifest.data.special_tokens, True, False]


def run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return caught.value.code
