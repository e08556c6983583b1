"""Measures what audits cost when nobody lies: real processes, with compute emulated by a calibrated sleep.

    python -m benchmarks.audits [--stages 2] [--replicas 2] [--microbatches 16] [--steps 96] [--one-in 8] [--out FILE]

Steps with and without an audit alternate in one run, which draws one step in `--one-in`. `audit_steps` is the time that
one audit adds, in usual steps, up to the end of the step after it: the median over all drawn audits. `share` is this
time ÷ the number of steps between two audits that the same run has by default. `first_step_extra` is the time that the
audit of the first step adds, in which all peers are new.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.arguments import at_least
from benchmarks.corpus import folder_with_corpus
from benchmarks.local_swarm import LocalSwarm, script
from benchmarks.results import write_results
from swarm.data import read_corpus
from swarm.events import PassOpened, StepAudited, StepDecided
from swarm.manifest import RunManifest, load_run_file

RUN = """
[run]
name = "audits"
steps = {steps}
{audit}
[model]
vocab_size = 4096
dim = 128
layers = {stages}
heads = 4
kv_heads = 2
ffn_dim = 128
context = 64
cuts = {cuts}
[batch]
microbatches = {microbatches}
sequences = 1
sequence_length = 64
[checkpoint]
every = 1000
[evaluation]
every = 0
[swarm]
replicas = {replicas}
max_replicas = {replicas}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--one-in", type=at_least(1), default=8, help="steps from drawn audit to drawn audit, about")
    parser.add_argument("--forward-ms", type=float, default=40.0)
    parser.add_argument("--backward-ms", type=float, default=80.0)
    parser.add_argument("--parameters", type=int, default=1 << 16, help="of a stage: what the reduce carries")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with folder_with_corpus("audits") as folder:
        usual_period = _manifest(folder, options, "").audit_steps
        counted = options.one_in * options.microbatches // options.replicas  # microbatches of one peer
        drawn = _manifest(folder, options, f"[audit]\nevery = {counted}")
        assert drawn.audit_steps == options.one_in
        words = [*script("emulated_peer"), str(options.forward_ms / 1000), str(options.backward_ms / 1000)]
        words.append(str(options.parameters))
        with LocalSwarm(folder / "swarm", folder / "RUN.toml", [words] * (options.stages * options.replicas)) as swarm:
            swarm.finish(1800)
            events = swarm.events()
    decided = {event.step: at for at, event in events if isinstance(event, StepDecided)}
    audited = {event.step for _, event in events if isinstance(event, StepAudited)}
    opened = [at for at, event in events if isinstance(event, PassOpened) and event.pass_kind == "train"]
    seconds = {step: at - decided[step - 1] for step, at in decided.items() if step}
    undisturbed = [s for step, s in seconds.items() if not audited & {step, step - 1}]
    usual = statistics.median(undisturbed)
    extra = [
        seconds[step] + seconds[step + 1] - 2 * usual
        for step in sorted(audited - {0})
        if step + 1 in seconds and step + 1 not in audited
    ]
    cost = statistics.median(extra) / usual
    row = {
        "stages": options.stages,
        "replicas": options.replicas,
        "microbatches": options.microbatches,
        "usual_step_s": round(usual, 3),
        "drawn_audits": len(extra),
        "audit_steps": round(cost, 2),
        "least": round(min(extra) / usual, 2),
        "most": round(max(extra) / usual, 2),
        "steps_from_audit_to_audit": usual_period,
        "share": round(cost / usual_period, 4),
        "first_step_extra": round((decided[0] - opened[0]) / usual - 1, 2),
        "attempts_at_first_step": sum(at <= decided[0] for at in opened),
    }
    print(json.dumps(row, indent=2), flush=True)
    write_results(options.out, "audits", rows=[row])


def _manifest(folder: Path, options: argparse.Namespace, audit: str) -> RunManifest:
    """Return the manifest of the run file that this function writes."""
    path = folder / "RUN.toml"
    path.write_text(
        RUN.format(
            steps=options.steps,
            audit=audit,
            stages=options.stages,
            cuts=list(range(1, options.stages)),
            microbatches=options.microbatches,
            replicas=options.replicas,
        )
    )
    return load_run_file(path).resolve(read_corpus(folder / "data"))


if __name__ == "__main__":
    main()
