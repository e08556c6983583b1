"""The parameters of the whole model, assembled from the stages' states, for export and generate."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from swarm.codecs import Codec
from swarm.manifest import ModelSection, RunManifest
from swarm.models.kinds import build_stage, parameter_shapes
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.shard import Tensors, check_shapes

Source = Archive | Mapping[int, Tensors]
"""Where parameters come from: an archive, or tensors by stage and name. The tensors are parameters, or whole states as
in a shard.
"""


def whole_parameters(source: Source, manifest: RunManifest, version: int | None = None) -> dict[str, torch.Tensor]:
    """Every parameter of the model by name, fp32 on the CPU, checked against the manifest's shapes.

    `version`: of the archive; None: the newest complete one. Raises StateError, also if stages that share a parameter
    have different copies of it.
    """
    found: dict[str, torch.Tensor] = {}
    for stage in range(manifest.model.stages):
        shapes = parameter_shapes(manifest.model, stage)
        if isinstance(source, Archive):
            if version is None and (version := source.newest()) is None:
                raise StateError(source.directory, "contains no complete checkpoint yet")
            shard = source.open_shard(stage, version)
            table = shard.of_kind("param")
            where = str(source.checkpoint(stage, version).path)
            if (found_id := shard.meta.subspace_id) != (subspace_id := manifest.model.subspace_id):
                raise StateError(where, f"subspace_id is {found_id}, expected {subspace_id}")
        else:
            where = f"stage {stage}"
            if stage not in source:
                raise StateError(where, "is missing")
            table = _parameters(source[stage])
        check_shapes({name: tuple(tensor.shape) for name, tensor in table.items()}, shapes, where)
        for name in table.keys() & found.keys():
            if not torch.equal(table[name].to("cpu", torch.float32), found[name]):
                raise StateError(
                    where,
                    f"its copy of {name} differs from that of an earlier stage, although they are tied, so one of "
                    "them is wrong; name a version in which they are equal",
                )
        # copy, so that the buffer with the moments, which are twice as large, can be freed
        found |= {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in table.items()}
    return found


class WholeModel:
    """All stages of the model with `parameters`, in one process on the CPU.

    `codec`: applied to activations at the cuts; with the run's codec, results are the same as in its swarm.
    """

    def __init__(self, parameters: Tensors, model: ModelSection, codec: Codec | None = None) -> None:
        self._codec = codec
        self._stages = [build_stage(model, stage, seed=None).eval() for stage in range(model.stages)]
        with torch.no_grad():
            for stage in self._stages:
                for name, parameter in stage.named_parameters():
                    parameter.copy_(parameters[name])

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, V) fp32 of token ids (B, T) int64. Raises codecs.CodecError for non-finite activations."""
        x = tokens
        for stage in self._stages:
            x = stage(x, tokens)
            if self._codec is not None and not stage.last:
                x = self._codec.decode(self._codec.encode(x), x.shape)
        return x


def _parameters(tensors: Tensors) -> dict[str, torch.Tensor]:
    if any(name.startswith("param/") for name in tensors):
        return {name.removeprefix("param/"): t for name, t in tensors.items() if name.startswith("param/")}
    return dict(tensors)
