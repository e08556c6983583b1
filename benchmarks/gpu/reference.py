"""A swarm on the device, against `swarm-peer reference` on the same device."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.gpu.swarm import OneByOne, ending, ground, join
from benchmarks.local_swarm import PEERS

STAGES = 2
_EQUAL, _DIFFERENT = 0, 3
"""Exit codes of `reference --against`."""


def measure(lab: Lab) -> Found:
    """Two stages of one replica each, plain. All computes on the device."""
    device = str(lab.device)
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        path = ground(folder, lab, replicas=1, steps=2 if lab.smoke else 6, every=2)
        with OneByOne(folder / "swarm", path, [join(lab, device)] * STAGES) as local:
            ended = ending(local)
            figures = {"ended": ended, **_compared(path, local.folder / "coordinator", lab)}
    aims = (Aim.holds(f"a run on {device.partition(':')[0]} equals `reference` there", figures["equal"]),)
    return Found(figures, aims)


def _compared(path: Path, home: Path, lab: Lab) -> dict[str, Any]:
    threads = "1" if lab.smoke else "2"
    command = [*PEERS, "reference", str(path), "--against", str(home), "--threads", threads]
    command += ["--device", str(lab.device), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (_EQUAL, _DIFFERENT):
        return {"equal": None, "reference": done.stderr[-400:]}
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return {"equal": told["equal"], "version": told["version"], "digest": told["digest"][:16]}
