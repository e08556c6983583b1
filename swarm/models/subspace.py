"""Subspace models (Protocol Models, arXiv 2506.01260): the residual stays in a subspace, so boundaries are narrow.

Every matrix that writes to the residual is W = U·Z, and the embedding is F[t] + U·E_z[t]. By induction, the residual of
token t is x = F[t] + U·z with k coefficients z, at every layer before the tail. So the model carries z instead of x: it
reads x = `lift(z, anchor)`, writes Z·y, and sends z over a boundary. The results have the same bits with any cuts; in
the backward, autograd computes Uᵀg. U = [I_k; 0] selects the first k channels. Any other orthonormal U gives the same
family of functions, up to a rotation that the next matrix can contain; this U needs no memory and no multiplication,
and is exact.

k may grow (`model.subspace_growth`): each layer writes more of the first channels than the one before, because what it
computes depends on more layers.

The anchor F is not stored. Row t is generated: with q = ⌈d/4⌉, its channels 4c … 4c+3 are the four signed 16-bit lanes
s, lowest first, of output number t·q + c of splitmix64 with seed `model.subspace_seed`, each as (2s + 1)·111·2^-22.
The values are uniform with variance 1.003, and exact in fp32 on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from swarm.manifest import ModelSection
from swarm.models.token_means import is_token_means
from swarm.splitmix import splitmix

RESIDUAL_WRITERS = ("o_proj.weight", "down_proj.weight")

_UNIT = 111 * 2.0**-22  # times an odd number below 2^16: 23 bits, so no rounding anywhere
_LANES = 4
_FOLD_ROWS = 4096


def anchor(tokens: Tensor, model: ModelSection) -> Tensor:
    """F[tokens], generated: (…, dim) fp32 on the device of `tokens`, int64 ids of any shape."""
    words = -(-model.dim // _LANES)
    counter = tokens[..., None] * words + torch.arange(1, words + 1, device=tokens.device)
    lanes = splitmix(counter, model.subspace_seed).view(torch.int16)[..., : model.dim]
    return (lanes.to(torch.float32) * 2 + 1) * _UNIT


def lift(residual: Tensor, anchored: Tensor | None) -> Tensor:
    """The residual x (…, dim), computed from coefficients (…, k) and the tokens' anchor (…, dim). If there is no
    anchor, the result is `residual` itself.
    """
    if anchored is None:
        return residual
    width = residual.shape[-1]
    return torch.cat((anchored[..., :width] + residual, anchored[..., width:]), dim=-1)


def widened(residual: Tensor, width: int) -> Tensor:
    """The coefficients (…, k) among `width` of them: those that no layer has written yet are 0."""
    missing = width - residual.shape[-1]
    return F.pad(residual, (0, missing)) if missing else residual


def constrained(model: ModelSection, layer: int) -> bool:
    """Whether a layer writes into the subspace: in a subspace model, all layers except those of the tail."""
    return model.residual == "subspace" and layer < model.layers - model.tail_layers


def fold(parameters: Mapping[str, Tensor], model: ModelSection) -> dict[str, Tensor]:
    """The parameters of the equivalent plain dense model: W = U·Z, embedding F + E_z·Uᵀ (F + E if it was dense).

    The model must not have modules at its cuts (ModelSection.acts_at_cuts). The parameters of a plain model are
    unchanged. Token means are left out: without a codec, what one end subtracts the other end adds.
    """
    return {name: _folded(name, value, model) for name, value in parameters.items() if not is_token_means(name)}


def _folded(name: str, value: Tensor, model: ModelSection) -> Tensor:
    if not model.anchored:
        return value
    if name.endswith("embed_tokens.weight"):
        table = value.new_empty((len(value), model.dim))
        for rows in torch.arange(len(value)).split(_FOLD_ROWS):
            table[rows] = lift(value[rows], anchor(rows, model))
        return table
    if name.endswith(RESIDUAL_WRITERS):
        return F.pad(value, (0, 0, 0, model.dim - len(value)))  # zero rows for the other channels
    return value
