"""One `reference` process of benchmarks/throughput.py. It records when it begins each microbatch, until it is
killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from peers.run.reference import train_reference
from peers.run.resolved_run import resolve_run
from swarm.compute.arithmetic import Arithmetic
from swarm.data.reader import CorpusReader


class NotingReader:
    """Appends a line with the unix time to `notes` when a microbatch is read, which is when its computation begins."""

    def __init__(self, reader: CorpusReader, notes: Path) -> None:
        self._reader = reader
        self._notes = notes.open("a", buffering=1)

    def microbatch(self, step: int, m: int) -> np.ndarray:
        self._notes.write(f"{time.time()}\n")
        return self._reader.microbatch(step, m)


if __name__ == "__main__":
    run = resolve_run(Path(sys.argv[1]))
    reader = NotingReader(CorpusReader(run.corpus, run.manifest), Path(sys.argv[3]))
    train_reference(run.manifest, reader, arithmetic=Arithmetic.of("cpu", int(sys.argv[2])))
