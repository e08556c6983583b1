"""The reader: returns the ids of microbatch `m` of step `t`, which depend only on the manifest and the step.

The training tokens are one stream, divided into windows of `sequence_length` tokens; a sample is a window and the token
after it (the last label). For images, a sample is the row of an image: its pixels and its class. There is no read
position that must be restored after a restart.

    batch.order = "samples"   sample i of a run, i = (t · microbatches + m) · sequences + row, is window
                              Permutation(i mod windows) of epoch i div windows
    batch.order = "steps"     the same in the first epoch; later epochs visit the same steps in another order. Windows
                              that fill no step are left out
"""

from __future__ import annotations

import bisect
import itertools
from pathlib import Path

import numpy as np

from swarm.data.corpus_error import CorpusError
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.order import EveryStep, Permutation, StepOrder
from swarm.data.shards import Dtype, check_file, map_shard
from swarm.manifest import RunManifest, Shard


class CorpusReader:
    """Training and held-out microbatches of a run, from a prepared corpus folder. Files are memory-mapped."""

    def __init__(self, directory: Path, manifest: RunManifest) -> None:
        """Check every file against the hashes of `manifest.data`.

        Raises CorpusError naming the file, the expected and the found hash; or a held-out split that is too short.
        """
        if manifest.data.kind == "text":
            check_file(directory / TOKENIZER_FILE, manifest.data.tokenizer_sha256)
        self._manifest = manifest
        self._train = _Stream(directory, manifest.data.train, manifest.data.dtype)
        self._heldout = _Stream(directory, manifest.data.heldout, manifest.data.dtype)
        self._orders: dict[int, Permutation] = {}
        self._steps = step_order(manifest)
        if manifest.evaluation.every:
            self._check_heldout()

    @property
    def windows(self) -> int:
        """Number of samples in the training split."""
        return self._manifest.windows

    def epoch(self, step: int) -> float:
        """Number of epochs finished before `step`."""
        batch = self._manifest.batch
        if self._steps is not None:
            return step / self._manifest.step_blocks
        return step * batch.microbatches * batch.sequences / self.windows

    def samples(self, step: int, microbatch: int) -> list[tuple[int, int]]:
        """(epoch, window) of each row of a training microbatch. Raises IndexError."""
        batch = self._manifest.batch
        if step < 0 or not 0 <= microbatch < batch.microbatches:
            raise IndexError(f"step {step} has no microbatch {microbatch}: a step has {batch.microbatches}")
        if self._steps is not None:
            first = (self._steps.block(step) * batch.microbatches + microbatch) * batch.sequences
            epoch = step // self._manifest.step_blocks
            return [(epoch, self._order(0)[position]) for position in range(first, first + batch.sequences)]
        first = (step * batch.microbatches + microbatch) * batch.sequences
        places = [divmod(index, self.windows) for index in range(first, first + batch.sequences)]
        return [(epoch, self._order(epoch)[position]) for epoch, position in places]

    def microbatch(self, step: int, m: int) -> np.ndarray:
        """Token ids of training microbatch `m` of `step`, int64 (sequences, sequence_length + 1). Raises IndexError."""
        return self._gather(self._train, [window for _, window in self.samples(step, m)])

    def heldout(self, m: int) -> np.ndarray:
        """Token ids of held-out microbatch `m`, int64 (sequences, sequence_length + 1). Raises IndexError.

        The windows are spread evenly over the held-out split, and are the same in every evaluation.
        """
        count = self._manifest.evaluation.microbatches
        if not 0 <= m < count:
            raise IndexError(f"there is no held-out microbatch {m}: evaluation.microbatches = {count}")
        rows = self._manifest.batch.sequences
        windows = self._manifest.samples(self._heldout.tokens)
        return self._gather(self._heldout, [i * windows // (count * rows) for i in range(m * rows, (m + 1) * rows)])

    def _order(self, epoch: int) -> Permutation:
        if epoch not in self._orders:
            if len(self._orders) >= 4:
                self._orders.clear()
            self._orders[epoch] = Permutation(self.windows, self._manifest.run.seed, epoch)
        return self._orders[epoch]

    def _gather(self, stream: _Stream, windows: list[int]) -> np.ndarray:
        length = self._manifest.batch.sequence_length
        return np.stack([stream.read(window * self._manifest.sample_stride, length + 1) for window in windows])

    def _check_heldout(self) -> None:
        batch, wanted = self._manifest.batch, self._manifest.evaluation.microbatches
        fitting = self._manifest.samples(self._heldout.tokens) // batch.sequences
        if fitting < wanted:
            raise CorpusError(
                f"the held-out split has {self._heldout.tokens} tokens, enough for {fitting} microbatches of "
                f"{batch.sequences} × {batch.sequence_length}, but evaluation.microbatches = {wanted}: lower it, "
                "set evaluation.every = 0, or prepare with a larger --heldout"
            )


def step_order(manifest: RunManifest) -> StepOrder | None:
    """The order of a run that shuffles steps; None for one that shuffles samples."""
    if manifest.batch.order == "samples":
        return None
    return StepOrder(manifest.step_blocks, manifest.run.seed)


def visits(manifest: RunManifest) -> StepOrder | EveryStep | None:
    """The visits of this run: for each step, the earlier step whose activations are its bases. None if the codec uses
    no bases.
    """
    match manifest.codec.remembers:
        case "samples":
            return step_order(manifest)
        case "places":
            return EveryStep(manifest.codec.mutual)
        case _:
            return None


class _Stream:
    """Several shards as one sequence of tokens."""

    def __init__(self, directory: Path, shards: tuple[Shard, ...], dtype: Dtype) -> None:
        self._maps = [map_shard(directory, shard, dtype) for shard in shards]
        self._ends = list(itertools.accumulate(len(part) for part in self._maps))
        self.tokens = self._ends[-1] if self._ends else 0

    def read(self, start: int, count: int) -> np.ndarray:
        """Tokens start … start + count − 1, int64 (count,)."""
        assert start >= 0 and start + count <= self.tokens
        out = np.empty(count, dtype=np.int64)
        filled = 0
        index = bisect.bisect_right(self._ends, start)
        while filled < count:
            part = self._maps[index]
            offset = start + filled - (self._ends[index] - len(part))
            piece = part[offset : offset + count - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            index += 1
        return out
