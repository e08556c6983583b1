"""A run that is trained in one process as `swarm-peer reference` does. Its result is kept in a file, so it is trained
once.

A swarm's result is the same, bit for bit, so the effect of a codec or an architecture on a model can be studied here.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from peers.run.reference import Crossed, ReferenceModel
from peers.run.replay import StepReplay
from peers.run.resolved_run import ResolvedRun
from swarm.compute.sums import SumOverflow
from swarm.data.reader import CorpusReader, visits
from swarm.manifest import RunManifest
from swarm.protocol.messages import Contribution


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of one row with one seed. Losses are held-out, in nats per target, with the codecs on and off.

    If a run diverged until its gradients were not finite, its last loss is infinite.
    """

    row: str
    seed: int
    run_hash: str
    tokens: tuple[int, ...]
    """Number of tokens trained on when each loss was measured."""
    loss: tuple[float, ...]
    loss_uncoded: float
    """The loss at the end without the codecs; the architecture stays the same."""
    seconds: float
    """CPU seconds of the training."""
    frame_bytes: tuple[float, float] | None = None
    """Mean size of an encoded activation and of an encoded gradient. None in files that were written before it was
    measured.
    """


def trained(run: ResolvedRun, row: str, cache: Path, *, train: bool = True) -> Trained | None:
    """The result of `run`: from `cache`, or trained now (None if `train` is False). The caller sets torch's number of
    threads.
    """
    file = cache_file(run, cache)
    if file.exists():
        found = json.loads(file.read_text())
        tuples = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
        return Trained(**{**found, **tuples, "row": row})
    if not train:
        return None
    made = _train(run, row)
    cache.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(made)) + "\n")
    return made


def cache_file(run: ResolvedRun, cache: Path) -> Path:
    """The file of a run in the cache. Keys at their default do not count, so a release with more keys finds earlier
    results. Nor do audits, which a run in one process does not have.

    If the meaning of a default changes, the cache must be emptied.
    """
    told = run.manifest.model_dump(mode="json", exclude_defaults=True, exclude={"audit"})
    return cache / f"{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]}.json"


def undisturbed(manifest: RunManifest, replicas: int, step: int) -> StepReplay | None:
    """What a swarm decides if no peer dies. None if the result does not depend on which peer does what."""
    if not manifest.sums.compresses:
        return None
    dealt = [sum(1 << m for m in range(r, manifest.batch.microbatches, replicas)) for r in range(replicas)]
    shares = tuple(Contribution(bits, place if step else -1) for place, bits in enumerate(dealt))
    if (order := visits(manifest)) is None:
        return StepReplay(contributions=(shares,) * manifest.model.stages)
    of_step = (1 << manifest.batch.microbatches) - 1 if order.previous(step) is None else 0
    return StepReplay((of_step,) * (manifest.model.stages - 1), (shares,) * manifest.model.stages)


def _train(run: ResolvedRun, row: str) -> Trained:
    manifest = run.manifest
    reader = CorpusReader(run.corpus, manifest)
    model = ReferenceModel(manifest)
    tokens, losses = [], []
    uncoded = math.inf
    began = time.process_time()
    for step in range(manifest.run.steps):
        try:
            model.train(step, reader, undisturbed(manifest, manifest.swarm.replicas, step))
        except SumOverflow:
            tokens.append((step + 1) * manifest.batch.tokens_per_step)
            losses.append(math.inf)
            break
        if (step + 1) % manifest.evaluation.every == 0 or step + 1 == manifest.run.steps:
            tokens.append((step + 1) * manifest.batch.tokens_per_step)
            losses.append(model.heldout_loss(reader))
    else:
        uncoded = model.heldout_loss(reader, coded=False)
    spent = time.process_time() - began
    told = (row, manifest.run.seed, manifest.hash, tuple(tokens), tuple(losses), uncoded, round(spent, 1))
    return Trained(*told, _frame_bytes(model.crossed))


def _frame_bytes(crossed: Crossed) -> tuple[float, float] | None:
    if not crossed.activations or not crossed.gradients:
        return None
    return crossed.activation_bytes / crossed.activations, crossed.gradient_bytes / crossed.gradients
