"""The held-out split: the documents or images for evaluation, and how well token counts alone predict them."""

from __future__ import annotations

import hashlib

import numpy as np

from swarm.data.corpus_error import CorpusError


def check_fraction(fraction: float) -> None:
    """Raises CorpusError."""
    if not 0.0 < fraction < 1.0:
        raise CorpusError(f"a held-out share of {fraction} is not between 0 and 1: write 0.02 for 2 %")


def is_heldout(content: bytes, fraction: float) -> bool:
    """By hash, so that equal contents never end up on both sides."""
    digest = hashlib.sha256(b"swarm split v1\n" + content).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2.0**64


def unigram_entropy(heldout: np.ndarray, training: np.ndarray) -> float:
    """Nats per value of the held-out counts, (V,), under the add-one frequencies of the training counts, (V,).

    Rounded, because the last bit of a logarithm differs between machines and the value is hashed.
    """
    logs = np.log((training + 1) / (training.sum() + len(training)))
    return round(float(-(heldout * logs).sum() / heldout.sum()), 6)
