"""Export: a trained model as files that others can use.

`export_hf` writes a folder for `transformers.LlamaForCausalLM.from_pretrained`. Parameter names are already those of
the Hugging Face layout, so nothing is renamed; a subspace model is converted to the equivalent dense model. A model
that changes its residual at the cuts, or was trained with a codec that drops most of it there, has no equivalent plain
Llama and is refused.

`export_native` writes the parameters unchanged, with the run's manifest and tokenizer; exported.py opens them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarm import codecs
from swarm.atomic import atomic_file, write_whole
from swarm.data.end_of_text import unmarked
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import AUTO, RunManifest
from swarm.models.subspace import fold
from swarm.state.error import StateError
from swarm.state.shard import WrittenFile, file_parts, write_parts
from swarm.state.whole import Source, whole_parameters

MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
_HF_FILES = (MODEL_FILE, TOKENIZER_FILE, "tokenizer_config.json", "generation_config.json", "config.json")
_NATIVE_FILES = (MODEL_FILE, MANIFEST_FILE, TOKENIZER_FILE)
_OF_A_MODEL = (*_HF_FILES, MANIFEST_FILE, "special_tokens_map.json", "*.safetensors", "*.safetensors.index.json")
"""Files that belong to one model: a program that opens the folder reads all of them."""

_INSTEAD = "use --format native, which `swarm-peer generate --export` runs"


def export_hf(
    source: Source,
    manifest: RunManifest,
    tokenizer_path: Path,
    out_dir: Path,
    version: int | None = None,
    *,
    force: bool = False,
) -> WrittenFile:
    """Write config.json, generation_config.json, tokenizer files and model.safetensors (fp32) into `out_dir`.

    Returns the model file's hash and size. Raises StateError, CorpusError, OSError. config.json is written last: a
    folder without it is incomplete. An existing model in `out_dir` is replaced completely, but only with `force`.
    """
    if manifest.model.kind != "llama":
        raise StateError(
            out_dir,
            f'model.kind = "{manifest.model.kind}" is not a language model, but this format is for '
            "transformers.LlamaForCausalLM: use --format native",
        )
    if keys := manifest.model.acts_at_cuts:
        raise StateError(
            out_dir,
            f"{' and '.join(keys)} {'acts' if len(keys) == 1 else 'act'} on the running residual before layers "
            f"{', '.join(map(str, manifest.model.cuts))}, which a plain Llama does not support: {_INSTEAD}",
        )
    forward = manifest.codec.forward
    if forward != AUTO and codecs.get(forward).needed_afterwards:
        raise StateError(
            out_dir,
            f'codec.forward = "{forward}" drops most of the activations before layers '
            f"{', '.join(map(str, manifest.model.cuts))}; the model was trained with this, and a plain Llama, "
            f"which drops nothing, would have a higher loss than was measured: {_INSTEAD}",
        )
    _check_free(out_dir, force)
    tokenizer = _tokenizer(tokenizer_path, manifest)
    parameters = fold(whole_parameters(source, manifest, version), manifest.model)
    _clear(out_dir, _HF_FILES)
    written = write_parts(out_dir / MODEL_FILE, file_parts(parameters, {"format": "pt"}))
    with atomic_file(out_dir / TOKENIZER_FILE) as file:
        write_whole(file, unmarked(tokenizer.raw))
    end = tokenizer.end_of_text
    begin = tokenizer.begin[0] if tokenizer.begin else end
    _write_json(out_dir / "tokenizer_config.json", _tokenizer_config(tokenizer, manifest))
    _write_json(out_dir / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end})
    _write_json(out_dir / "config.json", _config(manifest, begin, end))
    return written


def export_native(
    source: Source,
    manifest: RunManifest,
    tokenizer_path: Path,
    out_dir: Path,
    version: int | None = None,
    *,
    force: bool = False,
) -> WrittenFile:
    """Write model.safetensors (fp32 parameters by name), a text model's tokenizer.json, and the run's manifest.json.

    Returns the model file's hash and size. Raises StateError, CorpusError, OSError. `force`: see `export_hf`.
    """
    _check_free(out_dir, force)
    tokenizer = _tokenizer(tokenizer_path, manifest) if manifest.data.kind == "text" else None
    parameters = whole_parameters(source, manifest, version)
    _clear(out_dir, _NATIVE_FILES)
    written = write_parts(out_dir / MODEL_FILE, file_parts(parameters, {"run_hash": manifest.hash}))
    if tokenizer is not None:
        with atomic_file(out_dir / TOKENIZER_FILE) as file:
            write_whole(file, tokenizer.raw)
    with atomic_file(out_dir / MANIFEST_FILE) as file:
        write_whole(file, manifest.canonical())
    return written


def _check_free(out_dir: Path, force: bool) -> None:
    if not force and (found := _of_a_model(out_dir)):
        raise StateError(
            out_dir, f"already contains a model ({found[0]}): name another folder, or replace it with --force"
        )


def _clear(out_dir: Path, kept: Sequence[str]) -> None:
    """Create the folder, and remove config.json and other model files that are not in `kept`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in _of_a_model(out_dir):
        if name not in kept or name == "config.json":
            (out_dir / name).unlink()


def _of_a_model(folder: Path) -> list[str]:
    return sorted({path.name for pattern in _OF_A_MODEL for path in folder.glob(pattern)})


def _tokenizer(path: Path, manifest: RunManifest) -> Tokenizer:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StateError(path, f"the run's tokenizer cannot be read: {error.strerror}") from None
    actual, wanted = hashlib.sha256(raw).hexdigest(), manifest.data.tokenizer_sha256
    if actual != wanted:
        raise StateError(path, f"SHA-256 is {actual[:16]}…, the run's tokenizer has {wanted[:16]}…: name the right one")
    return Tokenizer(raw, str(path))


def _config(manifest: RunManifest, begin_of_text: int, end_of_text: int) -> dict[str, object]:
    model = manifest.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.dim,
        "intermediate_size": model.ffn_dim,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.dim // model.heads,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,  # read by transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},  # and by 5
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": model.tie_embeddings,
        "bos_token_id": begin_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": "float32",
    }


def _tokenizer_config(tokenizer: Tokenizer, manifest: RunManifest) -> dict[str, object]:
    tree = json.loads(tokenizer.raw)
    names = {entry["id"]: entry["content"] for entry in tree.get("added_tokens", [])}
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": manifest.model.context,
        "clean_up_tokenization_spaces": False,
    }
    if (end := names.get(tokenizer.end_of_text)) is not None:
        config |= {"bos_token": end, "eos_token": end, "pad_token": end}
    if tokenizer.begin and (begin := names.get(tokenizer.begin[0])) is not None:
        config["bos_token"] = begin
    return config


def _write_json(path: Path, tree: Mapping[str, object]) -> None:
    with atomic_file(path) as file:
        write_whole(file, (json.dumps(tree, indent=2) + "\n").encode())
