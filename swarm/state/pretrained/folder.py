"""Opens a Hugging Face folder of a Llama: config.json, *.safetensors with or without an index, tokenizer.json.

The tensor names are equal to ours. A value in config.json that this program's Llama does not support is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch

from swarm.data.end_of_text import named, told_in
from swarm.data.lfs_pointer import pointer_advice
from swarm.state.error import StateError
from swarm.state.initial import LazyTensor
from swarm.state.pretrained.model import NO_PICKLE, PretrainedModel, assemble, count_layers, read_tokenizer

_MAX_JSON_BYTES = 64 << 20
_LOOK = 256
_DTYPES = ("F32", "F16", "BF16")
_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PART = re.compile(r"-\d+-of-\d+\.safetensors$")
_ADAPTER = "adapter_config.json"
_BROKEN_LINK = "is a link to a file that is missing: download the model again"
_CUT_OFF = "it is cut off, or another file: download or copy it again"

_FIXED: Mapping[str, tuple[Any, tuple[Any, ...], str]] = {
    "model_type": (None, ("llama",), "only the Llama architecture is known"),
    "hidden_act": ("silu", ("silu", "swish"), "the feed-forward is SwiGLU"),
    "attention_bias": (False, (False,), "projections have no biases"),
    "mlp_bias": (False, (False,), "projections have no biases"),
    "attention_dropout": (0.0, (0.0,), "there is no dropout; set it to 0 in config.json to train without"),
    "sliding_window": (None, (None,), "attention sees the whole sequence"),
    "partial_rotary_factor": (1.0, (1.0,), "the whole head is rotated"),
    "quantization_config": (None, (None,), "weights must be F32, F16 or BF16"),
}
"""{key of config.json: (default, supported values, reason)}"""

_SHAPE = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn_dim",
    "max_position_embeddings": "context",
}
"""{required key of config.json: our key}"""


def open_folder(folder: Path, tokenizer: Path | None = None, end: str | None = None) -> PretrainedModel:
    """The model in a folder; its tensors are read on demand. Raises StateError, CorpusError, OSError."""
    path = folder / "config.json"
    if (folder / _ADAPTER).exists():
        raise StateError(folder / _ADAPTER, "exists: an adapter is not a model; merge it into its model first")
    if not path.exists():
        raise StateError(path, f"is missing: {_instead(folder)}")
    config = _read_json(path)
    shape = _shape(config, path)
    tensors = {name: tensor for name, tensor in _tensors(folder).items() if not name.endswith("rotary_emb.inv_freq")}
    tied = config.get("tie_word_embeddings", False)
    if type(tied) is not bool:
        raise StateError(path, f"tie_word_embeddings = {json.dumps(tied)}: it must be true or false")
    where = folder / "tokenizer.json" if tokenizer is None else tokenizer
    raw = read_tokenizer(where)
    told = told_in(folder, raw, str(where)) if end is None else named(end, raw, str(where))
    return assemble(folder, shape, count_layers(list(tensors)), tensors, tied, raw, told)


def _instead(folder: Path) -> str:
    """What to do about a folder without config.json."""
    if gguf := sorted(folder.glob("*.gguf")):
        return f"if the model is in {gguf[0].name}, name this file"
    if any(folder.glob("*.pt*")) or any(folder.glob("*.bin")):
        return NO_PICKLE
    if inner := sorted(folder.glob("snapshots/*/config.json")):  # the cache of a hub's downloads
        return f"the model is in {inner[-1].parent}: name this folder"
    return "name the folder of a Hugging Face model, or a GGUF file"


def _shape(config: Mapping[str, Any], path: Path) -> dict[str, object]:
    """The keys of [model]. Raises StateError for a property that this program's Llama does not support."""
    for key, (default, allowed, why) in _FIXED.items():
        value = config.get(key, default)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            raise StateError(path, f"{key} = {json.dumps(value)}: {why}")
    kinds = config.get("layer_types")
    if other := [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else []:
        raise StateError(path, f"layer_types has {json.dumps(other[0])}: attention sees the whole sequence")
    missing = [key for key in _SHAPE if type(config.get(key)) is not int]
    if missing:
        raise StateError(path, f"{missing[0]} must be a number, it is {json.dumps(config.get(missing[0]))}")
    shape: dict[str, object] = {ours: config[theirs] for theirs, ours in _SHAPE.items()}
    heads = config["num_attention_heads"]
    shape["kv_heads"] = config.get("num_key_value_heads") or heads
    shape["norm_eps"] = config.get("rms_norm_eps", 1e-6)
    shape["rope_theta"] = _rope_theta(config, path)
    head_dim = config.get("head_dim")
    if head_dim is not None and (type(head_dim) is not int or head_dim * heads != config["hidden_size"]):
        raise StateError(
            path,
            f"head_dim = {json.dumps(head_dim)}: a head is hidden_size ÷ num_attention_heads = "
            f"{config['hidden_size']}/{heads}",
        )
    return shape


def _rope_theta(config: Mapping[str, Any], path: Path) -> object:
    """The base of the rotary embedding, wherever the releases of transformers store it. Scaling is refused."""
    theta = config.get("rope_theta", 10_000.0)
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if rope is None:
            continue
        plain = isinstance(rope, dict) and rope.get("rope_type", rope.get("type", "default")) == "default"
        if not plain or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise StateError(path, f"{key} = {json.dumps(rope)}: scaling of the rotary embedding is not supported")
        theta = rope.get("rope_theta", theta)
    return theta


def _tensors(folder: Path) -> dict[str, LazyTensor]:
    index = folder / _INDEX
    if index.exists() and (folder / _ONE_FILE).exists():
        raise StateError(folder, f"contains both {_ONE_FILE} and {_INDEX}: remove the one that is not the model")
    places: dict[str, str] = {}
    if index.exists():
        told = _read_json(index).get("weight_map")
        if not isinstance(told, dict) or not all(_is_plain(file) for file in told.values()):
            raise StateError(index, "weight_map must name files of this folder")
        places = told
        files = sorted(set(places.values()))
    elif (folder / _ONE_FILE).exists():
        files = [_ONE_FILE]
    elif any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise StateError(folder, NO_PICKLE)
    else:
        if (folder / _ONE_FILE).is_symlink():
            raise StateError(folder / _ONE_FILE, _BROKEN_LINK)
        others = sorted(file.name for file in folder.glob("*.safetensors"))
        fix = f": rename {others[0]} to {_ONE_FILE}" if len(others) == 1 and not _PART.search(others[0]) else ""
        if others and not fix:
            fix = f", which says where the tensors are; {others[0]} is a part of the model: copy all files of the model"
        raise StateError(folder, f"contains neither {_ONE_FILE} nor {_INDEX}{fix}")
    found: dict[str, LazyTensor] = {}
    for file in files:
        for name, tensor in _open(folder / file).items():
            if name in found:
                raise StateError(folder / file, f"tensor {name} is also in another file")
            found[name] = tensor
    for name, file in places.items():
        if name not in found:
            raise StateError(folder / file, f"has no tensor {name}, but {_INDEX} names it: the copy is incomplete")
    return found


def _open(path: Path) -> dict[str, LazyTensor]:
    if not path.exists():
        raise StateError(path, _BROKEN_LINK if path.is_symlink() else "is missing: the index names it")
    try:
        file = safetensors.safe_open(str(path), framework="pt")
        found = {}
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            piece = file.get_slice(name)
            if (dtype := piece.get_dtype()) not in _DTYPES:
                raise StateError(path, f"tensor {name} has dtype {dtype}; supported are {', '.join(_DTYPES)}")

            def load(name: str = name) -> torch.Tensor:
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor.to(torch.float32).contiguous()

            found[name] = LazyTensor(tuple(piece.get_shape()), load)
        return found
    except safetensors.SafetensorError as error:
        with path.open("rb") as raw:
            advice = pointer_advice(raw.read(_LOOK))
        raise StateError(path, advice or f"not a safetensors file ({error}): {_CUT_OFF}") from None
    except OSError as error:  # safetensors does not name the file
        raise StateError(path, f"cannot be read: {error}") from None


def _is_plain(file: object) -> bool:
    return isinstance(file, str) and Path(file).name == file and file.endswith(".safetensors")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_JSON_BYTES + 1)
        if len(raw) > _MAX_JSON_BYTES:
            raise StateError(path, f"has more than {_MAX_JSON_BYTES} bytes")
        tree = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(path, pointer_advice(raw) or f"is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise StateError(path, "is not a JSON object")
    return tree
