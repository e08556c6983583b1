"""Opens a Llama in a GGUF file: converts metadata to our keys, tensor names to ours, and rows to our order.

llama.cpp rotates neighbouring pairs of a head's values; we rotate pairs that are half a head apart (as Hugging Face
does). Its converter permutes the rows of the query and key projections accordingly; this file reverses that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from swarm.data.end_of_text import EndOfText, named, specials
from swarm.state.error import StateError
from swarm.state.initial import LazyTensor
from swarm.state.pretrained.bpe import byte_level_bpe
from swarm.state.pretrained.gguf import Gguf, GgufTensor
from swarm.state.pretrained.gguf_parts import read_parts
from swarm.state.pretrained.model import (
    EMBEDDING,
    HEAD,
    PretrainedModel,
    assemble,
    count_layers,
    read_tokenizer,
)

_NAMES = {"token_embd.weight": EMBEDDING, "output_norm.weight": "model.norm.weight", "output.weight": HEAD}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_SHAPE = {
    "block_count": "layers",
    "context_length": "context",
    "embedding_length": "dim",
    "feed_forward_length": "ffn_dim",
    "attention.head_count": "heads",
}
"""{required key after `llama.`: our key}"""


def open_gguf(path: Path, tokenizer: Path | None = None, end: str | None = None) -> PretrainedModel:
    """The model in a file. `tokenizer` None: build it from the metadata, if possible.

    Raises StateError, CorpusError, OSError.
    """
    file = read_parts(path)
    shape = _shape(file, path)
    heads = {"attn_q": shape["heads"], "attn_k": shape["kv_heads"]}
    tensors = {}
    for name, tensor in file.tensors.items():
        if name == "rope_freqs.weight":
            raise StateError(path, f"tensor {name} scales positions, which this program's Llama does not support")
        part = name.split(".")[2] if name.startswith("blk.") and name.count(".") == 3 else ""
        permuted = heads.get(part, 0) if name.endswith(".weight") else 0
        tensors[_our_name(name)] = _lazy(tensor, permuted, path, name)
    raw = byte_level_bpe(file.metadata, path) if tokenizer is None else read_tokenizer(tokenizer)
    told = _end(file, raw, path) if end is None else named(end, raw, str(tokenizer or path))
    return assemble(path, shape, count_layers(list(tensors)), tensors, HEAD not in tensors, raw, told)


def _end(file: Gguf, raw: bytes, path: Path) -> EndOfText | None:
    told = file.metadata.get("tokenizer.ggml.eos_token_id")
    if told is None:
        return None
    turn = file.metadata.get("tokenizer.ggml.eot_token_id")
    known = {special.number: special.token for special in specials(raw, str(path))}
    if type(told) is int and told in known:
        others = (turn,) if type(turn) is int and turn in known and turn != told else ()
        return EndOfText(known[told], told, "tokenizer.ggml.eos_token_id", others)
    raise StateError(path, f"tokenizer.ggml.eos_token_id = {told!r:.80}, which is not a special token of its tokenizer")


def _shape(file: Gguf, path: Path) -> dict[str, Any]:
    metadata = file.metadata
    if (kind := metadata.get("general.architecture")) != "llama":
        raise StateError(path, f'general.architecture = "{kind}": only "llama" is supported')

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"llama.{key}", default)

    for key in _SHAPE:
        if type(get(key)) is not int or get(key) < 1:
            raise StateError(path, f"llama.{key} must be a number above 0, it is {get(key)!r:.80}")
    shape: dict[str, Any] = {ours: get(key) for key, ours in _SHAPE.items()}
    shape["kv_heads"] = get("attention.head_count_kv", shape["heads"])
    if type(shape["kv_heads"]) is not int or shape["kv_heads"] < 1:
        raise StateError(
            path, f"llama.attention.head_count_kv = {shape['kv_heads']!r:.80}: write one number for all layers"
        )
    shape["norm_eps"] = _decimal(get("attention.layer_norm_rms_epsilon", 1e-5))
    shape["rope_theta"] = _decimal(get("rope.freq_base", 10_000.0))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise StateError(path, "tensor token_embd.weight is missing")
    shape["vocab_size"] = embedding.shape[0]
    head_dim = shape["dim"] // shape["heads"]
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise StateError(path, f"llama.{key} = {get(key)}: expected {head_dim}, the width of a head")
    for key, allowed in (
        ("rope.scaling.type", (None, "none")),
        ("rope.scale_linear", (None, 1.0)),
        ("expert_count", (None, 0)),
        ("attention.sliding_window", (None, 0)),
        ("attention.clamp_kqv", (None, 0.0)),
    ):
        if get(key) not in allowed:
            raise StateError(path, f"llama.{key} = {get(key)!r:.80} is not supported by this program's Llama")
    factor = get("rope.scaling.factor")
    if get("rope.scaling.type") is None and factor not in (None, 0.0, 1.0):  # without a type, it is linear scaling
        raise StateError(path, f"llama.rope.scaling.factor = {factor!r:.80}: scaling of positions is not supported")
    return shape


def _decimal(value: object) -> object:
    """The decimal number, such as 1e-5, that was rounded to this fp32 number of the file."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _our_name(name: str) -> str:
    """Our name for a tensor. An unknown tensor keeps its name, and is refused later under this name."""
    if name in _NAMES:
        return _NAMES[name]
    block, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    part, _, suffix = rest.partition(".")
    if block == "blk" and number.isdecimal() and part in _PARTS:
        return f"model.layers.{number}.{_PARTS[part]}.{suffix}"
    return name


def _lazy(tensor: GgufTensor, permuted_heads: int, path: Path, name: str) -> LazyTensor:
    rows = tensor.shape[0]
    if permuted_heads and rows % (2 * permuted_heads):
        raise StateError(path, f"tensor {name} has {rows} rows, which do not make pairs for {permuted_heads} heads")

    def load() -> torch.Tensor:
        values = tensor.values()
        if permuted_heads:
            values = unpermute(values, permuted_heads)
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))

    return LazyTensor(tensor.shape, load)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection from GGUF's order (pairs are neighbours) to ours (pairs are half a head apart)."""
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)
