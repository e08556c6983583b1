"""Building a stage is quick: a standby that is called does it while others wait."""

import subprocess
import sys

import pytest
import torch

from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage

PROGRAM = """
import sys
from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage, parameter_shapes
model = ModelSection.model_validate_json(sys.argv[1])
for stage in range(model.stages):
    parameter_shapes(model, stage)
    build_stage(model, stage, seed=1)
assert not {"sympy", "torch._dynamo"} & set(sys.modules), "torch's compiler was imported"
"""


@pytest.mark.parametrize("boundary", ["none", "bottleneck"])
def test_it_does_not_import_torchs_compiler(boundary: str) -> None:
    more = {"boundary": boundary, "boundary_dim": 8} if boundary != "none" else {}
    model = ModelSection(vocab_size=64, dim=32, layers=2, heads=2, kv_heads=2, ffn_dim=64, context=16, cuts=[1], **more)
    done = subprocess.run([sys.executable, "-c", PROGRAM, model.model_dump_json()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]


def test_the_compute_package_imports_what_the_first_backward_needs() -> None:
    """Half a second of a core: when the process starts, not in the first step of a peer that others wait for."""
    program = "import sys, swarm.compute.stage; assert 'torch.fx.experimental.symbolic_shapes' in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_parameters_are_those_of_the_seed() -> None:
    model = ModelSection(vocab_size=64, dim=32, layers=2, heads=2, kv_heads=2, ffn_dim=64, context=16, cuts=[1])
    for stage in range(2):
        one, two, other = (dict(build_stage(model, stage, seed=seed).named_parameters()) for seed in (1, 1, 2))
        assert all(torch.equal(one[name], two[name]) for name in one)
        assert not all(torch.equal(one[name], other[name]) for name in one)
