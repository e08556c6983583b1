"""Measures what a peer needs of a machine: memory above a bare `import torch`, start-up time, bytes per token and
boundary.

    python -m benchmarks.footprint [--out benchmarks/results/footprint.json]

There is one run of 3 stages × 1 per wire format. Bytes are those of the streams, with headers, token ids and control.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from swarm.events import PeerJoined, ResourcesMeasured, TrafficMeasured

RUN = """
[run]
name = "footprint"
steps = 3
[audit]
every = 0
[model]
vocab_size = 4096
dim = 256
layers = 3
heads = 8
kv_heads = 4
ffn_dim = 704
context = 256
cuts = [1, 2]
[batch]
microbatches = 8
sequences = 4
sequence_length = 256
[codec]
forward = "{wire}"
backward = "{wire}"
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = 1
"""
TOKENS, BOUNDARIES, STAGES = 3 * 8 * 4 * 256, 2, 3
BARE = "import torch, psutil; print(psutil.Process().memory_info().rss)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bare = int(subprocess.run([sys.executable, "-c", BARE], check=True, capture_output=True).stdout)
    rows = {}
    with folder_with_corpus("footprint") as folder:
        for wire in ("none", "bf16", "int8"):
            rows[wire] = _run(folder, wire, bare)
    print(json.dumps(rows, indent=2))
    write_results(options.out, "footprint", bare_torch_bytes=bare, rows=rows)


def _run(folder: Path, wire: str, bare: int) -> dict[str, float]:
    path = folder / f"RUN-{wire}.toml"
    path.write_text(RUN.format(wire=wire))
    words = [*PEERS, "join", "--threads", "1", "--capacity", "1", "--max-memory", "2GB"]
    with LocalSwarm(folder / f"swarm-{wire}", path, [words] * STAGES) as swarm:
        swarm.finish(600)
        logs = [swarm.events(f"peer-{number}") for number in range(STAGES)]
        spawned = swarm.spawned_at
        coordinator = swarm.events()
    sent: dict[str, int] = {}
    idle, resident, started = [], [], []
    for log in [*logs, coordinator]:
        last = [event for _, event in log if isinstance(event, TrafficMeasured)][-1]
        for channel, count in last.sent.items():
            sent[channel] = sent.get(channel, 0) + count
    for log, born in zip(logs, spawned, strict=True):
        measured = [event.resident_bytes for _, event in log if isinstance(event, ResourcesMeasured)]
        idle.append(measured[0])
        resident.append(max(measured))
        ready = next(at for at, event in log if isinstance(event, PeerJoined))
        started.append(ready - born)
    tokens = TOKENS * BOUNDARIES
    return {
        "idle_megabytes_above_torch": round((statistics.median(idle) - bare) / 1e6, 1),
        "training_megabytes_above_torch": round((statistics.median(resident) - bare) / 1e6, 1),
        "start_to_ready_s": round(statistics.median(started), 2),
        "activation_bytes_per_token_and_boundary": round(sent["activation"] / tokens, 2),
        "gradient_bytes_per_token_and_boundary": round(sent["gradient"] / tokens, 2),
        "control_bytes_per_token_and_boundary": round(sent["control"] / tokens, 3),
    }


if __name__ == "__main__":
    main()
