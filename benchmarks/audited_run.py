"""A small run in which some peers lie: two stages of several replicas, with audits. And the figures of its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swarm.events import Evaluated, Event, PassOpened, PeerExpelled, StepAudited, StepDecided

STAGES = 2
_RUN = """
[run]
name = "{name}"
steps = {steps}
[model]
vocab_size = 4096
dim = 64
layers = 4
heads = 4
kv_heads = 2
ffn_dim = 160
context = 64
cuts = [2]
[batch]
microbatches = {microbatches}
sequences = 4
sequence_length = 64
[checkpoint]
every = 1000
[evaluation]
every = {evaluate}
microbatches = {evaluated}
sample_tokens = 0
[swarm]
replicas = {replicas}
max_replicas = {most}
[audit]
every = {every}
tolerance = 0
[data]
directory = "data"
"""


def write_run(
    folder: Path,
    name: str,
    *,
    steps: int,
    microbatches: int,
    replicas: int,
    every: int,
    evaluate: int,
    evaluated: int,
    most: int | None = None,
) -> Path:
    """Write the run file into a new `folder`, beside which the corpus is.

    `every`, `evaluate`: number of steps from one audit or evaluation to the next. `most`: largest number of replicas of
    a stage; None: no more than `replicas`.
    """
    folder.mkdir()
    path = folder / "RUN.toml"
    counted = every * microbatches // replicas  # of one peer
    path.write_text(
        _RUN.format(
            name=name,
            steps=steps,
            microbatches=microbatches,
            replicas=replicas,
            most=most or replicas,
            every=counted,
            evaluate=evaluate,
            evaluated=evaluated,
        )
    )
    (folder / "data").symlink_to(folder.parent / "data")
    return path


def outcome(events: Sequence[tuple[float, Event]]) -> tuple[dict[str, float | None], list[int]]:
    """The figures of a row, and the steps at which peers were expelled, from a coordinator's events.

    `loss`: the last held-out loss; None if every evaluation was dropped. `seconds`: from the first step to the last.
    `passes`: number of computed steps ÷ number of decided steps. `audited`: number of audits.
    """
    opened = [at for at, event in events if isinstance(event, PassOpened) and event.pass_kind == "train"]
    decided = [at for at, event in events if isinstance(event, StepDecided)]
    row: dict[str, float | None] = {
        "loss": next((event.loss for _, event in reversed(events) if isinstance(event, Evaluated)), None),
        "seconds": round(decided[-1] - opened[0], 1),
        "passes": round(len(opened) / len(decided), 2),
        "audited": sum(isinstance(event, StepAudited) for _, event in events),
    }
    return row, [event.step for _, event in events if isinstance(event, PeerExpelled)]
