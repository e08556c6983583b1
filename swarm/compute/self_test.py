"""Tests whether a device rounds like all others: it compares a result for fixed numbers with its known digest."""

from __future__ import annotations

import torch
from blake3 import blake3

from swarm.compute import adamw, muon
from swarm.manifest import OptimizerSection
from swarm.models.initial import seeded_normal
from swarm.models.retraction import RankError, retract
from swarm.protocol.update import Update

DIGEST = "5b40abea46311a8a8325fc547453a83380dcd81326c4ec11c6de1f199a0cdf97"
_SECTION = OptimizerSection(eps=1e-7)
_UPDATES = (Update(3.0, 0.1, 0.05), Update(0.7, 0.19, 0.0975), Update(9.0, 1.0, 1.0))
"""Updates so large that the rounding of every operation affects the result."""
_ELEMENTS = 5000
_MATRIX = torch.Size((40, 125))


def rounds_alike(device: str | torch.device) -> bool:
    """Whether an optimizer step on `device` gives the same bits as everywhere."""
    try:
        return digest_on(device) == DIGEST
    except (RuntimeError, RankError):  # the device cannot compute the step at all
        return False


def digest_on(device: str | torch.device) -> str:
    """Digest of parameters and moments after a few steps of each optimizer, and of a projector after its retraction."""
    size = torch.Size((_ELEMENTS,))
    tensors = [seeded_normal("parameter", size, 0).to(device), *torch.zeros(2, _ELEMENTS, device=device)]
    matrices = [tensor.clone().view(_MATRIX) for tensor in tensors]
    for number, update in enumerate(_UPDATES):
        mean = (seeded_normal(f"gradient {number}", size, 0) * 10.0 ** (3 - 3 * number)).to(device)
        factors = adamw.Factors.of(_SECTION, update, _SECTION.weight_decay)
        adamw.step(tensors[0], mean, tensors[1], tensors[2], factors)
        factors = muon.factors_of(_SECTION, update)
        muon.step(matrices[0], mean, matrices[1], matrices[2], factors, update.learning_rate)
    tensors += matrices
    tensors.append(retract((torch.eye(60, 12) + 0.02 * seeded_normal("projector", torch.Size((60, 12)), 0)).to(device)))
    found = blake3()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
