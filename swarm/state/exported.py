"""Opens the files that `export_native` has written: a model that can be used without the run and its archive.

Such a folder may come from anyone. It contains no code, and names, shapes and dtypes are checked before a tensor is
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

from swarm.data.corpus_error import CorpusError
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.shards import check_file
from swarm.manifest import ManifestError, RunManifest
from swarm.models.kinds import parameter_shapes
from swarm.state.error import StateError
from swarm.state.export import MANIFEST_FILE, MODEL_FILE
from swarm.state.shard import check_shapes


@dataclass(frozen=True, slots=True)
class ExportedModel:
    manifest: RunManifest
    parameters: Mapping[int, Mapping[str, torch.Tensor]]
    """The parameters by stage and name, fp32 on the CPU. They can be used as a `Source` of whole.py."""
    tokenizer: Path
    """Path of the tokenizer file; the file exists only for text models."""


def open_native(directory: Path) -> ExportedModel:
    """The model that `export --format native` wrote to `directory`. Raises StateError naming the file, OSError."""
    try:
        manifest = RunManifest.from_canonical((directory / MANIFEST_FILE).read_bytes())
        if manifest.data.kind == "text":
            check_file(directory / TOKENIZER_FILE, manifest.data.tokenizer_sha256)
    except FileNotFoundError:
        raise StateError(
            directory, f"no {MANIFEST_FILE} here: name a folder that `swarm-peer export --format native` wrote"
        ) from None
    except ManifestError as error:
        raise StateError(directory, f"not a usable export: {error}") from None
    except CorpusError as error:
        raise StateError(directory, f"not a usable export: {error}; or export the model again") from None
    path = directory / MODEL_FILE
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            parameters = _parameters(path, file, manifest)
    except FileNotFoundError:
        raise StateError(path, "is missing: export the model again") from None
    except safetensors.SafetensorError as error:
        raise StateError(path, f"not a safetensors file: {error}") from None
    except OSError as error:  # safetensors does not name the file
        raise StateError(path, f"cannot be read: {error}") from None
    return ExportedModel(manifest, parameters, directory / TOKENIZER_FILE)


def _parameters(path: Path, file: safetensors.safe_open, manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    told = (file.metadata() or {}).get("run_hash")
    if told != manifest.hash:
        raise StateError(path, f"run_hash is {str(told)[:16]}…, the manifest beside it has {manifest.hash[:16]}…")
    stages = [parameter_shapes(manifest.model, stage) for stage in range(manifest.model.stages)]
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    for name, piece in slices.items():
        if (dtype := piece.get_dtype()) != "F32":
            raise StateError(path, f"tensor {name} is {dtype}, expected F32")
    found = {name: tuple(piece.get_shape()) for name, piece in slices.items()}
    check_shapes(found, {name: shape for shapes in stages for name, shape in shapes.items()}, str(path))
    loaded: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in found}
    return {stage: {name: loaded[name] for name in shapes} for stage, shapes in enumerate(stages)}
