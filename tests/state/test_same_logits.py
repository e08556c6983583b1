"""An imported model computes what transformers computes from the same folder; another one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from swarm.data.tokenizer import Tokenizer
from swarm.state.error import StateError
from swarm.state.pretrained.same_logits import compare_logits
from swarm.state.pretrained.source import open_pretrained

PLENTY = 1 << 34


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers")  # here, as every worker of a test run imports this file
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    raw = Tokenizer.train(["the river runs under the stone bridge"] * 30, 300).raw
    (tmp_path / "model" / "tokenizer.json").write_bytes(raw)
    return tmp_path / "model"


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("tied", [False, True])
def test_both_compute_the_same(folder: Path, tied: bool) -> None:
    change(folder, tie_word_embeddings=tied)  # with a head of its own, which both keep
    assert "the logits differ by at most" in compare_logits(folder, open_pretrained(folder), PLENTY)


def test_what_reading_has_missed_is_found(folder: Path) -> None:
    found = open_pretrained(folder)
    values = safetensors.torch.load_file(folder / "model.safetensors")
    values["model.layers.1.mlp.up_proj.weight"] *= 1.5
    safetensors.torch.save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StateError, match="other logits"):
        compare_logits(folder, found, PLENTY)


def test_a_setting_that_only_transformers_knows_is_found(folder: Path) -> None:
    found = open_pretrained(folder)
    change(folder, rms_norm_eps=0.5)
    with pytest.raises(StateError, match="other logits"):
        compare_logits(folder, found, PLENTY)


def test_it_is_said_where_nothing_could_be_compared(folder: Path) -> None:
    found = open_pretrained(folder)
    assert compare_logits(folder, found, 1000).startswith("not compared: the comparison needs")
    assert compare_logits(folder / "model.safetensors", found, PLENTY).startswith(
        "not compared: transformers can open only folders"
    )
    (folder / "config.json").write_text("{}")
    assert compare_logits(folder, found, PLENTY).startswith("not compared: transformers cannot open it")
