"""Hugging Face folders: taken up as they are, and whatever this program's Llama is not is refused by its key."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from swarm.data import CorpusError, Tokenizer
from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage
from swarm.state.error import StateError
from swarm.state.pretrained.source import open_pretrained

MODEL = ModelSection(vocab_size=288, dim=32, layers=3, heads=4, kv_heads=2, ffn_dim=48, context=64, cuts=())
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture
def values() -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in build_stage(MODEL, 0, seed=5).named_parameters()}


@pytest.fixture
def folder(values: dict[str, torch.Tensor], tokenizer_path: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    safetensors.torch.save_file(values, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_folder_is_taken_up_exactly(dtype: torch.dtype, folder: Path, values: dict[str, torch.Tensor]) -> None:
    stored = {name: value.to(dtype) for name, value in values.items()}
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(
        4
    )  # old checkpoints have it; it is no parameter
    safetensors.torch.save_file(stored, folder / "model.safetensors")
    found = open_pretrained(folder)
    assert found.section == MODEL and not found.tied
    assert found.tokenizer == (folder / "tokenizer.json").read_bytes()
    assert found.tensors.keys() == values.keys()
    for name, tensor in found.tensors.items():
        loaded = tensor.load()
        assert loaded.dtype == torch.float32 and torch.equal(loaded, stored[name].float())


def test_an_index_says_where_the_tensors_are(folder: Path, values: dict[str, torch.Tensor]) -> None:
    (folder / "model.safetensors").unlink()
    names = sorted(values)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        safetensors.torch.save_file({n: values[n] for n in names if places[n] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    found = open_pretrained(folder)
    assert all(torch.equal(found.tensors[name].load(), value) for name, value in values.items())
    index.write_text(json.dumps({"weight_map": {**places, names[0]: "../model.safetensors"}}))
    with pytest.raises(StateError, match="must name files of this folder"):
        open_pretrained(folder)
    index.write_text(json.dumps({"weight_map": {**places, names[0]: "gone.safetensors"}}))
    with pytest.raises(StateError, match=r"gone.safetensors: is missing"):
        open_pretrained(folder)


@pytest.mark.parametrize("kept", [False, True], ids=["one matrix", "written twice"])
def test_a_tied_head_is_the_embedding(kept: bool, folder: Path, values: dict[str, torch.Tensor]) -> None:
    change(folder, tie_word_embeddings=True)
    del values["lm_head.weight"]
    twice = {"lm_head.weight": values["model.embed_tokens.weight"].clone()} if kept else {}
    safetensors.torch.save_file(values | twice, folder / "model.safetensors")
    found = open_pretrained(folder)
    assert found.tied and found.section.tie_embeddings
    assert "lm_head.weight" not in found.tensors
    apart = found.untied()
    assert not apart.tied and apart.tensors.keys() == {*found.tensors, "lm_head.weight"}
    assert torch.equal(apart.tensors["lm_head.weight"].load(), values["model.embed_tokens.weight"])


def test_a_head_of_its_own_is_kept_whatever_the_configuration_says(
    folder: Path, values: dict[str, torch.Tensor]
) -> None:
    change(folder, tie_word_embeddings=True)
    found = open_pretrained(folder)
    assert not found.tied and torch.equal(found.tensors["lm_head.weight"].load(), values["lm_head.weight"])
    assert "has a different head" in " ".join(found.notes)
    change(folder, tie_word_embeddings="yes")
    with pytest.raises(StateError, match="tie_word_embeddings"):
        open_pretrained(folder)


def test_an_index_that_promises_more_than_is_there(folder: Path, values: dict[str, torch.Tensor]) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    places = dict.fromkeys([*values, "model.layers.7.mlp.up_proj.weight"], "model-00001-of-00001.safetensors")
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(StateError, match=r"has no tensor model\.layers\.7"):
        open_pretrained(folder)
    safetensors.torch.save_file(values, folder / "model.safetensors")
    with pytest.raises(StateError, match=r"both model\.safetensors and"):
        open_pretrained(folder)


@pytest.mark.parametrize("whole", [True, False], ids=["beside its model", "alone"])
def test_an_adapter_is_no_model(whole: bool, folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    if not whole:
        (folder / "config.json").unlink()
    with pytest.raises(StateError, match="merge it"):
        open_pretrained(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", "model.gguf"])
def test_a_pointer_in_place_of_a_file_is_told(file: str, folder: Path) -> None:
    (folder / file).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n")
    with pytest.raises((StateError, CorpusError), match=rf"{file}.*git lfs pull"):
        open_pretrained(folder / file if file.endswith(".gguf") else folder)


def test_a_folder_without_a_configuration_says_what_is_there_instead(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(StateError, match="is missing: name the folder of a Hugging Face model, or a GGUF file"):
        open_pretrained(folder)
    (folder / "consolidated.00.pth").write_bytes(b"")
    with pytest.raises(StateError, match="is missing: pickled weights can run code"):
        open_pretrained(folder)
    (folder / "small.gguf").write_bytes(b"GGUF")
    with pytest.raises(StateError, match=r"is missing: if the model is in small\.gguf, name this file"):
        open_pretrained(folder)


def test_a_name_on_a_hub_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StateError, match=r"`hf download someone/Llama-1B --local-dir FOLDER`"):
        open_pretrained(Path("someone/Llama-1B"))
    with pytest.raises(FileNotFoundError):
        open_pretrained(Path("a/longer/path"))


@pytest.mark.parametrize(
    ("name", "fix"),
    [("pytorch_model.safetensors", "rename pytorch_model.safetensors"), ("model-1-of-2.safetensors", "copy all files")],
)
def test_weights_under_another_name_are_seen(name: str, fix: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(StateError, match=f"contains neither .*{fix}"):
        open_pretrained(folder)


@pytest.mark.parametrize("prefix", ["", "_orig_mod.model."])
def test_tensors_of_another_class_are_named(prefix: str, folder: Path, values: dict[str, torch.Tensor]) -> None:
    renamed = {prefix + name.removeprefix("model."): value for name, value in values.items()}
    safetensors.torch.save_file(renamed, folder / "model.safetensors")
    with pytest.raises(StateError, match=f"have other names, such as {prefix}embed_tokens.weight.*LlamaForCausalLM"):
        open_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mistral"}, 'model_type = "mistral": only the Llama'),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu": the feed-forward is SwiGLU'),
        ({"attention_bias": True}, "attention_bias = true: projections have no biases"),
        ({"mlp_bias": True}, "mlp_bias = true"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1: there is no dropout"),
        ({"sliding_window": 32}, "sliding_window = 32: attention sees the whole"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            'layer_types has "sliding_attention": att',
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"head_dim": 16}, "head_dim = 16: a head is hidden_size ÷ num_attention_heads = 32/4"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling .*llama3.*scaling .* is not supported",
        ),
        ({"head_dim": "8"}, 'head_dim = "8": a head is'),
        ({"rope_scaling": "default"}, 'rope_scaling = "default": scaling'),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling .*linear"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters .*yarn"),
        ({"num_hidden_layers": 4}, "says that it has 4 layers, but has tensors of 3"),
        ({"num_hidden_layers": 10**12}, r"layers: Input should be less .*\(got 1000000000000\)"),
        ({"num_hidden_layers": 4000}, "says that it has 4000 layers, but has tensors of 3"),
        ({"vocab_size": 2**63}, "vocab_size: Input should be less"),
        ({"hidden_size": 2**31}, "dim: Input should be less"),
        ({"rms_norm_eps": float("inf")}, "norm_eps: Input should be"),
        ({"rope_theta": 10**400}, "rope_theta: Input should be"),
        ({"num_key_value_heads": [2]}, "kv_heads: Input should be"),
        ({"num_hidden_layers": "3"}, 'num_hidden_layers must be a number, it is "3"'),
        ({"hidden_size": None}, "hidden_size must be a number, it is null"),
        ({"hidden_size": 40}, r"is \[288, 32\], expected \[288, 40\]"),
        ({"num_key_value_heads": 4}, r"k_proj.weight is \[16, 32\], expected \[32, 32\]"),
        ({"num_attention_heads": 5}, "not a multiple of model.heads = 5"),
        ({"vocab_size": 300}, r"\[288, 32\], expected \[300, 32\]"),
        ({"max_position_embeddings": 1 << 40}, "context: Input should be less"),
        ({"rms_norm_eps": 0.0}, "norm_eps"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_this_llama_is_not_is_refused_by_name(changes: dict[str, Any], message: str, folder: Path) -> None:
    change(folder, **changes)
    with pytest.raises(StateError, match=message):
        open_pretrained(folder)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500.0, "rope_scaling": None},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "default"}},
    ],
)
def test_the_rotary_base_is_found_where_releases_put_it(rope: dict[str, Any], folder: Path) -> None:
    change(folder, **rope)
    assert open_pretrained(folder).section.rope_theta == 500.0


def test_tensors_that_are_wrong_are_named(folder: Path, values: dict[str, torch.Tensor]) -> None:
    path = folder / "model.safetensors"

    def refused(match: str, **changed: torch.Tensor) -> None:
        safetensors.torch.save_file({**values, **changed}, path)
        with pytest.raises(StateError, match=match):
            open_pretrained(folder)

    refused(f"{Q}.bias is not supported.* no biases", **{f"{Q}.bias": torch.ones(32)})
    name = f"model.layers.{'9' * 5000}.mlp.up_proj.weight"
    refused("says that it has 3 layers, but has tensors of 4", **{name: torch.ones(32)})
    refused(f"{Q}.weight has dtype .*I64.*; supported are F32, F16, BF16", **{f"{Q}.weight": torch.ones(32, 32).long()})
    head = values.pop("lm_head.weight")
    refused("lm_head.weight is missing; if the model has one matrix for both, set tie_word_embeddings = true")
    values["lm_head.weight"] = head
    del values[f"{Q}.weight"]
    refused(f"tensor {Q}.weight is missing")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StateError, match=r"not a safetensors file.*it is cut off.*download or copy it again"):
        open_pretrained(folder)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(StateError, match="not a safetensors file"):
        open_pretrained(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match=r"model\.safetensors: cannot be read"):
        open_pretrained(folder)


def test_the_cache_of_a_hub_is_links_and_snapshots(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--someone--Llama"
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "4d7a2146"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(cache / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    assert open_pretrained(snapshot).section == MODEL
    with pytest.raises(StateError, match=f"the model is in {snapshot}: name this folder"):
        open_pretrained(cache)
    (snapshot / "model.safetensors").resolve().unlink()
    with pytest.raises(StateError, match=r"model\.safetensors: is a link to a file that is missing"):
        open_pretrained(snapshot)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_file_of_a_folder_leads_to_the_folder(file: str, folder: Path) -> None:
    with pytest.raises(StateError, match=f"neither a folder nor a GGUF file.* name its folder, {folder}"):
        open_pretrained(folder / file)


def test_pickles_are_refused_with_the_fix(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(StateError, match=r"never opened.*safe_serialization=True"):
        open_pretrained(folder)
    with pytest.raises(StateError, match=r"never opened"):
        open_pretrained(folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(StateError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        open_pretrained(folder)
    other = tmp_path / "weights"
    other.write_bytes(b"????????")
    with pytest.raises(StateError, match="neither a folder nor a GGUF file"):
        open_pretrained(other)


def test_the_user_names_the_end_of_text_where_no_file_does(folder: Path) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    (known,) = tree["added_tokens"]
    tree["added_tokens"] = [{**known, "id": 280 + n, "content": token} for n, token in enumerate(("</s>", "<eos>"))]
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(StateError, match=r"no eos_token_id says which .*name it with --end-of-text"):
        open_pretrained(folder)
    found = open_pretrained(folder, end="<eos>")
    assert "a text ends with '<eos>' (token 281), as --end-of-text says" in found.notes
    assert Tokenizer(found.tokenizer).end_of_text == 281
    with pytest.raises(CorpusError, match=r"--end-of-text <end>: .*tokenizer\.json has no such special token"):
        open_pretrained(folder, end="<end>")


def test_several_end_tokens_are_kept_and_told(folder: Path) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    (known,) = tree["added_tokens"]
    tree["added_tokens"].append({**known, "id": 280, "content": "<|eot_id|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    told = {"generation_config": {"eos_token_id": [0, 280]}, "tokenizer_config": {"eos_token": "<|eot_id|>"}}
    for name, content in told.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 0}))
    found = open_pretrained(folder)
    assert found.notes == (
        "a text ends with '<|eot_id|>' (token 280), as generation_config.json says",
        "`generate` stops at other end tokens too: '<|endoftext|>' (token 0)",
    )
    assert Tokenizer(found.tokenizer).ends == (280, 0)


def test_a_tokenizer_is_needed_that_fits(folder: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StateError, match=r"with --tokenizer$"):
        open_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(b"")
    with pytest.raises(StateError, match=r"has only tokenizer\.model: transformers' .* makes a tokenizer\.json"):
        open_pretrained(folder)
    assert open_pretrained(folder, tokenizer_path).tokenizer == tokenizer_path.read_bytes()
    tree = json.loads(tokenizer_path.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 288
    larger = tmp_path / "larger.json"
    larger.write_text(json.dumps(tree))
    with pytest.raises(StateError, match="its tokenizer has 289 tokens, but its embedding 288"):
        open_pretrained(folder, larger)


def change(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
