"""Speed and memory of the run's own shapes, before anything is held."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from made_up_data import DATA

from swarm.compute.arithmetic import Arithmetic
from swarm.compute.speed import measure_speed
from swarm.manifest import RunFile, RunManifest


def manifest(**model: object) -> RunManifest:
    shape = {"vocab_size": 512, "dim": 32, "layers": 4, "heads": 2, "kv_heads": 1, "ffn_dim": 64, "context": 32}
    tables = {
        "model": {**shape, "cuts": [2], **model},
        "batch": {"microbatches": 4, "sequences": 2, "sequence_length": 32},
    }
    return RunFile.model_validate(tables).resolve(DATA)


def test_capacity_is_that_of_the_whole_model() -> None:
    """Twice the layers, half the microbatches a second: machines compare, whatever stage they will hold."""
    few, many = (measure_speed(manifest(layers=layers), Arithmetic.of("cpu", 1)) for layers in (4, 40))
    assert few.forward_s > 0 and few.backward_s > 0
    each = [speed.capacity * (speed.forward_s + speed.backward_s) for speed in (few, many)]
    assert 5 < each[0] / each[1] < 10, "embedding and head are the same in both"


def test_a_slow_machine_is_not_kept_busy_for_long() -> None:
    quick = measure_speed(manifest(), Arithmetic.of("cpu", 1), limit_s=0.0)
    assert quick.capacity > 0, "one sequence says it for all of them"


LARGE = {"dim": 768, "heads": 12, "kv_heads": 4, "ffn_dim": 3072, "context": 1024}


@pytest.mark.parametrize("megabytes", [300, 120, 60, 20])
def test_measuring_takes_no_more_memory_than_it_may(megabytes: int) -> None:
    """A microbatch of 16 sequences through the large layer takes some 3 GB, one sequence 200 MB, the layer 70."""
    program = (
        "import json, resource, sys, torch\n"
        "from made_up_data import DATA\n"
        "from swarm.compute import speed\n"
        "from swarm.compute.arithmetic import Arithmetic\n"
        "from swarm.manifest import RunFile\n"
        "model, memory = json.loads(sys.argv[1]), int(sys.argv[2])\n"
        "batch = {'microbatches': 4, 'sequences': 16, 'sequence_length': 1024}\n"
        "run = RunFile.model_validate({'model': model, 'batch': batch}).resolve(DATA)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "small = {**model, 'dim': 32, 'heads': 2, 'kv_heads': 1, 'ffn_dim': 32}\n"
        "warm = RunFile.model_validate({'model': small, 'batch': {**batch, 'sequence_length': 16, 'sequences': 1}})\n"
        "speed.measure_speed(warm.resolve(DATA), Arithmetic.of('cpu', 1))  # what torch itself takes at its first use\n"
        "before = peak()\n"
        "found = speed.measure_speed(run, Arithmetic.of('cpu', 1), memory=memory)\n"
        "print(peak() - before, found.capacity)"
    )
    model = {"vocab_size": 512, "layers": 4, "cuts": [2], **LARGE}
    arguments = [sys.executable, "-c", program, json.dumps(model), str(megabytes << 20)]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        arguments, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=200, check=True
    )
    grown, capacity = map(float, done.stdout.split())
    assert grown <= (megabytes + 8) << 20, "of memory that is not planned, such as the stack of a thread"
    assert capacity > 0
