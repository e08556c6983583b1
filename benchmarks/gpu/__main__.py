"""What a GPU does for a run: one script, in phases, each of which holds its figures against its aims.

    python -m benchmarks.gpu [--device cuda] [--out FILE]      # what matters most within 4 minutes, all within 8
    python -m benchmarks.gpu --only speed,memory               # some phases
    python -m benchmarks.gpu --device cpu --smoke              # every phase at a small size, without a GPU

Phases, in this order; a failed one is reported and the next one begins. Results are written after each:

* ceilings: bandwidth of copies on the device and to the host, rate of a bf16 matrix product.
* exactness: what every replica computes for itself, on the device and on the CPU.
* speed: a peer's engine against the bare module; waits of the host, idle time of the device.
* memory: bytes by phase against the memory table.
* caps: the largest stage that the table finds for 8, 12 and 24 GB, trained with no more than that.
* swarm: real peers, one on the device and one on the CPU in each stage; one on the device is killed.
* sensor: temperature and other programs, read through NVML.
* reference: a swarm on the device against `reference` on the device.
* recompute: what recomputing the layers costs.
* gradients: against fp64; computed twice; kept graphs against recomputed ones.
* reduce: nanoseconds per parameter from the last backward to the applied step.
* offload: the state in the host's memory: bits, bytes and nanoseconds of a step, the largest stage for 8 GB.
* shapes: as speed, for three more shapes.

An aim is met, missed, or not shown, if this device cannot show it. Times are medians; `spread`: largest less smallest,
divided by the median. The exit code is 1 if a phase failed. A missed aim does not change it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import (
    caps,
    ceilings,
    exactness,
    gradients,
    memory,
    offload,
    recompute,
    reduce,
    reference,
    sensor,
    speed,
    swarm,
)
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Phase, without_paths
from benchmarks.results import write_results

PHASES = (
    Phase("ceilings", ceilings.measure, 5),
    Phase("exactness", exactness.measure, 30),
    Phase("speed", partial(speed.measure, shapes=speed.FIRST), 60),
    Phase("memory", memory.measure, 20),
    Phase("caps", caps.measure, 30),
    Phase("swarm", swarm.measure, 80),
    Phase("sensor", sensor.measure, 3),
    Phase("reference", reference.measure, 60),
    Phase("recompute", recompute.measure, 15),
    Phase("gradients", gradients.measure, 10),
    Phase("reduce", reduce.measure, 50),
    Phase("offload", offload.measure, 15),
    Phase("shapes", partial(speed.measure, shapes=speed.FURTHER), 100),
)


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(options.threads)
    lab = Lab(torch.device(options.device), options.smoke)
    names = options.only.split(",") if options.only else [phase.name for phase in PHASES]
    if unknown := set(names) - {phase.name for phase in PHASES}:
        sys.exit(f"no phase is named {', '.join(sorted(unknown))}")
    found: dict[str, Any] = {"device": lab.name, "threads": options.threads, "torch": torch.__version__}
    phases = [phase for phase in PHASES if phase.name in names]
    failed = measure(phases, lab, options.limit, found, options.out)
    print(summary(found), flush=True)
    sys.exit(bool(failed))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="of the phases, and of half of the swarm's peers")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; a peer's default")
    parser.add_argument("--only", default="", help="names of phases, by commas")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds into which all phases must fit")
    parser.add_argument("--smoke", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    return parser


def measure(phases: list[Phase], lab: Lab, limit: float, found: dict[str, Any], out: Path | None) -> list[str]:
    """Run the phases that fit into `limit` seconds, and put their results into `found`. Return the failed ones."""
    began, failed = time.monotonic(), []
    for phase in phases:
        spent = time.monotonic() - began
        if not lab.smoke and spent + phase.about_s > limit:
            found[phase.name] = {"skipped": f"about {phase.about_s:g} s, of {limit - spent:.0f} s left"}
            continue
        lab.tidy()
        try:
            result = phase.measure(lab).as_json()
        except Exception as error:
            traceback.print_exc()
            result = {"failed": without_paths(f"{type(error).__name__}: {error}"[:400])}
            failed.append(phase.name)
        found[phase.name] = {**result, "seconds": round(time.monotonic() - began - spent, 1)}
        print(f"{phase.name}: {json.dumps(found[phase.name])}", flush=True)
        write_results(out, "gpu", **found)
    write_results(out, "gpu", **found)
    return failed


def summary(found: dict[str, Any]) -> str:
    """A line for each aim, for people."""
    lines = []
    for name, result in found.items():
        if isinstance(result, dict):
            if trouble := result.get("failed") or result.get("skipped"):
                lines.append(f"{name}: {trouble}")
            for aim in result.get("aims", ()):
                lines.append(f"{name}: {aim['verdict']}: {aim['what']} {aim['aim']}: {aim['found']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
