"""One `reference` process of benchmarks/throughput.py: prints the seconds its steps took, without the first of many."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from peers.reference import train_reference
from peers.resolved_run import resolve_run
from swarm.data.reader import CorpusReader


class TimedReader:
    """Notes when the first microbatch of step `since` is read: the moment that step begins."""

    def __init__(self, reader: CorpusReader, since: int) -> None:
        self._reader = reader
        self._since = since
        self.began: float | None = None

    def microbatch(self, step: int, m: int) -> np.ndarray:
        if step == self._since and self.began is None:
            self.began = time.monotonic()
        return self._reader.microbatch(step, m)


if __name__ == "__main__":
    run = resolve_run(Path(sys.argv[1]))
    reader = TimedReader(CorpusReader(run.corpus, run.manifest), min(1, run.manifest.run.steps - 1))
    train_reference(run.manifest, reader, threads=int(sys.argv[2]))
    assert reader.began is not None
    print(time.monotonic() - reader.began)
