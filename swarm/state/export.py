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
import re
from collections.abc import Mapping
from pathlib import Path

from swarm import codecs
from swarm.atomic import atomic_file, write_whole
from swarm.data.end_of_text import unmarked
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import AUTO, RunManifest
from swarm.models.subspace import fold
from swarm.side_folder import side_folder
from swarm.state.error import StateError
from swarm.state.shard import WrittenFile, file_parts, write_parts
from swarm.state.whole import Source, whole_parameters

MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
CONFIG_FILE = "config.json"
_HF_FILES = (MODEL_FILE, TOKENIZER_FILE, "tokenizer_config.json", "generation_config.json", CONFIG_FILE)
_OF_A_MODEL = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|(config|generation_config|manifest)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map)\.json"
)
"""Files that belong to one model, by the names that these formats give them. A program reads all of them."""
_SIDE_FOLDER = ".exporting"

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

    Returns the model file's hash and size. Raises StateError, CorpusError, OSError. config.json appears last: a folder
    without it is incomplete. An existing model in `out_dir` is replaced completely, but only with `force`, and only
    when all of the new one is written.
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
    _replaceable(out_dir, force)
    tokenizer = _tokenizer(tokenizer_path, manifest)
    parameters = fold(whole_parameters(source, manifest, version), manifest.model)
    end = tokenizer.end_of_text
    begin = tokenizer.begin[0] if tokenizer.begin else end
    ends = list(tokenizer.ends) if len(tokenizer.ends) > 1 else end
    with side_folder(out_dir, _SIDE_FOLDER) as side:
        _replaceable(out_dir, force)  # what came meanwhile, or was moved back
        written = write_parts(side.new / MODEL_FILE, file_parts(parameters, {"format": "pt"}))
        with atomic_file(side.new / TOKENIZER_FILE) as file:
            write_whole(file, unmarked(tokenizer.raw))
        ids = {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": end}
        _write_json(side.new / "tokenizer_config.json", _tokenizer_config(tokenizer, manifest))
        _write_json(side.new / "generation_config.json", ids)
        _write_json(side.new / CONFIG_FILE, _config(manifest, begin, ends))
        side.publish(_HF_FILES, _replaceable(out_dir, force))
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
    _replaceable(out_dir, force)
    tokenizer = _tokenizer(tokenizer_path, manifest) if manifest.data.kind == "text" else None
    parameters = whole_parameters(source, manifest, version)
    names = [MODEL_FILE, *([] if tokenizer is None else [TOKENIZER_FILE]), MANIFEST_FILE]
    with side_folder(out_dir, _SIDE_FOLDER) as side:
        _replaceable(out_dir, force)  # what came meanwhile, or was moved back
        written = write_parts(side.new / MODEL_FILE, file_parts(parameters, {"run_hash": manifest.hash}))
        if tokenizer is not None:
            with atomic_file(side.new / TOKENIZER_FILE) as file:
                write_whole(file, tokenizer.raw)
        with atomic_file(side.new / MANIFEST_FILE) as file:
            write_whole(file, manifest.canonical())
        side.publish(names, _replaceable(out_dir, force))
    return written


def _replaceable(out_dir: Path, force: bool) -> list[str]:
    """The files of a model in `out_dir`, which the new one replaces, config.json first. Raises StateError if there are
    any and `force` is not set, or if there are others that a program would read as parts of the new model.
    """
    found = sorted(out_dir.iterdir()) if out_dir.is_dir() else []
    there = [path.name for path in found if _OF_A_MODEL.fullmatch(path.name) and not path.is_dir()]
    if there and not force:
        raise StateError(
            out_dir, f"already contains a model ({there[0]}): name another folder, or replace it with --force"
        )
    read = [path.name for path in found if path.suffix == ".safetensors" or _OF_A_MODEL.fullmatch(path.name)]
    if others := [name for name in read if name not in there]:
        raise StateError(
            out_dir,
            f"contains {others[0]}, which programs would read as a part of the exported model: name another folder, or "
            "move it away",
        )
    return sorted(there, key=lambda name: name not in (CONFIG_FILE, MANIFEST_FILE))


def _tokenizer(path: Path, manifest: RunManifest) -> Tokenizer:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StateError(path, f"the run's tokenizer cannot be read: {error.strerror}") from None
    actual, wanted = hashlib.sha256(raw).hexdigest(), manifest.data.tokenizer_sha256
    if actual != wanted:
        raise StateError(path, f"SHA-256 is {actual[:16]}…, the run's tokenizer has {wanted[:16]}…: name the right one")
    return Tokenizer(raw, str(path))


def _config(manifest: RunManifest, begin_of_text: int, ends: int | list[int]) -> dict[str, object]:
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
        "eos_token_id": ends,
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
