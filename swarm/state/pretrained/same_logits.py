"""Checks that an imported model equals its source, by comparing the logits of both for a short text.

transformers computes the logits of the source, if it is installed and can open the folder. So the check also finds
differences that no comparison of configuration keys would find.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from swarm.models.kinds import build_stage
from swarm.state.error import StateError
from swarm.state.pretrained.model import PretrainedModel

TOKENS = 24
TOLERANCE = 2e-3
"""Largest allowed difference, relative to the largest logit: different kernels round differently."""


def compare_logits(source: Path, found: PretrainedModel, free_bytes: int) -> str:
    """Compare the logits; returns the result in words. Raises StateError if they differ: the models are not the same.

    `free_bytes`: memory that may be used; both models are in memory at the same time.
    """
    if not source.is_dir():
        return "not compared: transformers can open only folders"
    if importlib.util.find_spec("transformers") is None:
        return "not compared: transformers is not installed (pip install 'swarm-peer[hf]')"
    needed = 2 * sum(4 * _count(tensor.shape) for tensor in found.tensors.values())
    if needed > free_bytes:
        return f"not compared: the comparison needs {needed / 1e9:.1f} GB of memory"
    ids = _ids(found.section.vocab_size, min(TOKENS, found.section.context))
    try:
        theirs = _theirs(source, ids)
    except Exception as error:  # a release of transformers may raise anything
        return f"not compared: transformers cannot open it ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    ours = _ours(found, ids)
    if ours.shape != theirs.shape:
        raise StateError(source, f"transformers computes {list(theirs.shape)} logits, this program {list(ours.shape)}")
    if not ours.isfinite().all():
        return "not compared: its parameters give logits that are not finite"
    worst = float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max()))
    if not worst <= TOLERANCE:
        raise StateError(
            source,
            f"transformers computes other logits than this program (they differ by {worst:.2g} times the largest "
            "logit): the model has a property that this program's Llama does not support",
        )
    return f"compared with transformers: the logits differ by at most {worst:.1g} times the largest logit"


def _ids(vocab_size: int, length: int) -> torch.Tensor:
    """(1, time): token ids spread over the vocabulary."""
    return (torch.arange(1, length + 1) * 7919 % vocab_size)[None]


def _theirs(source: Path, ids: torch.Tensor) -> torch.Tensor:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(ids).logits.float()
    return logits


def _ours(found: PretrainedModel, ids: torch.Tensor) -> torch.Tensor:
    module = build_stage(found.section.model_copy(update={"cuts": ()}), 0, seed=None)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(found.tensors[name].load())
        logits: torch.Tensor = module(ids, ids)
    return logits


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
