"""A tiny run: three stages, a tokenizer, states with recognisable values."""

import hashlib
from pathlib import Path

import pytest
import torch

from swarm.data.tokenizer import Tokenizer
from swarm.manifest import DataSection, ModelSection, RunManifest, Shard
from swarm.models.kinds import build_stage

TEXTS = ["The swarm learns a language. " * 3, "A peer may leave at any time, and the sum stays exact."] * 4


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(Tokenizer.train(TEXTS, 280).raw)
    return path


@pytest.fixture(scope="session")
def manifest(tokenizer_path: Path) -> RunManifest:
    shard = Shard(file="train-0.bin", sha256="0" * 64, tokens=10_000)
    data = DataSection(
        tokenizer_sha256=hashlib.sha256(tokenizer_path.read_bytes()).hexdigest(),
        vocab_size=Tokenizer.load(tokenizer_path).vocab_size,
        train=(shard,),
        heldout=(shard,),
        unigram_entropy=5.0,
        bytes_per_token=3.0,
    )
    model = ModelSection(
        vocab_size=288, dim=32, layers=3, heads=4, kv_heads=2, ffn_dim=48, context=128, rope_theta=5000.0, cuts=(1, 2)
    )
    return RunManifest(model=model, data=data)


@pytest.fixture(scope="session")
def subspace_manifest(manifest: RunManifest) -> RunManifest:
    """The same run in a subspace: 5 coefficients a token, then 7; the last of three layers is free."""
    keys = {"residual": "subspace", "subspace_dim": 5, "subspace_growth": 2, "subspace_seed": 3, "tail_layers": 1}
    model = ModelSection(**{**manifest.model.model_dump(), **keys})
    return RunManifest(model=model, subspace_id=model.subspace_id, data=manifest.data)


@pytest.fixture(scope="session")
def means_manifest(subspace_manifest: RunManifest) -> RunManifest:
    """The same run in a subspace whose boundaries have token means."""
    model = subspace_manifest.model.model_copy(update={"token_means": True})
    return subspace_manifest.model_copy(update={"model": model})


@pytest.fixture(scope="session")
def means_states(means_manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    """Both ends of a boundary have equal means, as in a run."""
    states = _states(means_manifest)
    for tensors in states.values():
        for name, tensor in tensors.items():
            if name.startswith("param/") and name.endswith("token_means"):
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(11)))
    return states


@pytest.fixture(scope="session", params=["bottleneck", "maxout", "projector"])
def narrow_manifest(request: pytest.FixtureRequest, manifest: RunManifest) -> RunManifest:
    """The same run with boundaries that narrow the residual to 8 values a token."""
    model = ModelSection(**{**manifest.model.model_dump(), "boundary": request.param, "boundary_dim": 8})
    return RunManifest(model=model, subspace_id=model.subspace_id, data=manifest.data)


@pytest.fixture(scope="session")
def narrow_states(narrow_manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    return _states(narrow_manifest)


@pytest.fixture(scope="session", params=["none", "bottleneck"])
def refined_manifest(request: pytest.FixtureRequest, manifest: RunManifest) -> RunManifest:
    """The same run with receivers that add a token table and an MLP, with and without a narrow boundary."""
    keys = {"token_table_dim": 4, "receiver_hidden": 12}
    if request.param != "none":
        keys |= {"boundary": request.param, "boundary_dim": 8}
    model = ModelSection(**{**manifest.model.model_dump(), **keys})
    return RunManifest(model=model, subspace_id=model.subspace_id, data=manifest.data)


@pytest.fixture(scope="session")
def anchored_manifest(manifest: RunManifest) -> RunManifest:
    """The same run with an anchor under a dense model."""
    model = ModelSection(**{**manifest.model.model_dump(), "anchor": "frozen"})
    return RunManifest(model=model, subspace_id=model.subspace_id, data=manifest.data)


@pytest.fixture(scope="session")
def tied_manifest(manifest: RunManifest) -> RunManifest:
    """The same run with one matrix for embedding and head, of which the first and the last stage hold a copy."""
    model = ModelSection(**{**manifest.model.model_dump(), "tie_embeddings": True})
    return RunManifest(model=model, data=manifest.data)


@pytest.fixture(scope="session")
def tied_states(tied_manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    return _states(tied_manifest)


@pytest.fixture(scope="session")
def anchored_states(anchored_manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    return _states(anchored_manifest)


@pytest.fixture(scope="session")
def states(manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    """Whole state of every stage: parameters, first and second moments."""
    return _states(manifest)


@pytest.fixture(scope="session")
def subspace_states(subspace_manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    return _states(subspace_manifest)


@pytest.fixture(scope="session")
def refined_states(refined_manifest: RunManifest) -> dict[int, dict[str, torch.Tensor]]:
    """No module at a receiver is at its first value, nothing."""
    return _states(refined_manifest, stirred=True)


def _states(manifest: RunManifest, stirred: bool = False) -> dict[int, dict[str, torch.Tensor]]:
    found = {}
    generator = torch.Generator().manual_seed(5)
    for stage in range(manifest.model.stages):
        module = build_stage(manifest.model, stage, seed=7)
        parameters = {name: p.detach() * 3 for name, p in module.named_parameters()}
        if stirred:
            parameters = {name: p + 0.1 * torch.randn(p.shape, generator=generator) for name, p in parameters.items()}
        found[stage] = {
            **{f"param/{name}": p for name, p in parameters.items()},
            **{f"exp_avg/{name}": p * 0.01 for name, p in parameters.items()},
            **{f"exp_avg_sq/{name}": p.square() for name, p in parameters.items()},
        }
    return found
