"""The held-out split: which documents or images are used for evaluation, and the entropy of a unigram baseline."""

from __future__ import annotations

import hashlib

import numpy as np

from swarm.data.corpus_error import CorpusError


def check_fraction(fraction: float) -> None:
    """Raise CorpusError unless `fraction` is a valid held-out fraction."""
    if not 0.0 < fraction < 1.0:
        raise CorpusError(f"the held-out fraction {fraction} is not between 0 and 1: write 0.02 for 2 %")


def is_heldout(content: bytes, fraction: float) -> bool:
    """Whether content belongs to the held-out split. Its hash decides, so equal contents are on the same side."""
    digest = hashlib.sha256(b"swarm split v1\n" + content).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2.0**64


def unigram_entropy(heldout: np.ndarray, training: np.ndarray) -> float:
    """Cross-entropy, nats per token, of the held-out counts (V,) under the add-one frequencies of `training` (V,).

    It is rounded, because the value is hashed, and the last bit of a logarithm differs between machines.
    """
    logs = np.log((training + 1) / (training.sum() + len(training)))
    return round(float(-(heldout * logs).sum() / heldout.sum()), 6)
