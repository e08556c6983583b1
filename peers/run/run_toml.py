"""RUN.toml with comments, generated from the model `RunFile`: every table and key, with its value and meaning.

Keys and values come from `RunFile`. This file contains only the meanings; a test checks that they match.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from swarm.atomic import atomic_file, write_whole
from swarm.manifest import ManifestError, RunFile, RunSection

TABLES: dict[str, str] = {
    "run": "The run.",
    "model": "The model and its cuts into stages.",
    "batch": "One optimizer step trains microbatches × sequences × sequence_length tokens.",
    "optimizer": "Linear warm-up, then cosine decay over run.steps.",
    "codec": "Codecs of the links between stages: none, bf16, int8, int4, topk:0.1, delta:4 and others. With auto, "
    "the coordinator chooses them during the run from the measured links. See docs/codecs.md.",
    "sums": "How gradients of microbatches are added.",
    "timing": "Deadlines follow from this budget and from measurements.",
    "checkpoint": "Checkpoints of the state.",
    "divergence": "What to do when training gives no finite results any more. See docs/faults.md.",
    "evaluation": "Evaluation on held-out text through the pipeline, and a generated sample.",
    "swarm": "The number of peers.",
    "audit": "Contributions are compared, and other peers compute some steps again, to detect wrong results. See "
    "docs/trust.md.",
    "coordinator": "Machines that may coordinate: empty for one machine, or a group of which a minority may die. See "
    "docs/hosting.md.",
    "data": "The prepared corpus. Its hashes are part of the run, its folder is not.",
    "initial": "Imported initial parameters. Their hash is part of the run, their folder is not. See "
    "docs/fine-tuning.md.",
}

MEANINGS: dict[str, str] = {
    "run.name": "letters, digits, dot, dash, underscore; at most 64; a letter or digit first",
    "run.seed": "fixes the order of samples, and the initial parameters unless they are imported",
    "run.steps": "number of optimizer steps",
    "model.kind": '"llama": a decoder language model; "resnet": a classifier of square images (docs/images.md)',
    "model.vocab_size": "tokens; at least as many as the tokenizer has (swarm-peer prepare --vocab-size). Images: "
    "levels",
    "model.dim": "width; a multiple of heads. Classifier: channels",
    "model.layers": "decoder layers, or residual blocks",
    "model.heads": "attention heads; a multiple of kv_heads",
    "model.kv_heads": "heads for keys and values",
    "model.ffn_dim": "width inside the feed-forward",
    "model.context": "longest sequence, in tokens",
    "model.rope_theta": "base of the rotary embedding",
    "model.norm_eps": "epsilon of RMSNorm",
    "model.cuts": "first layer of stages 1, 2, …: n cuts make n + 1 stages",
    "model.tie_embeddings": "embedding and head are one matrix; the first and the last stage hold a copy each",
    "model.residual": '"dense", or "subspace": boundaries carry few values per token (docs/subspace.md)',
    "model.subspace_dim": "subspace only: coefficients per token after the first layer, from 1 to dim − 1; 0 for dense",
    "model.subspace_growth": "subspace only: further coefficients per token after each later layer",
    "model.subspace_seed": "subspace only: fixes the frozen token anchor",
    "model.tail_layers": "subspace only: number of last layers that write to all dimensions; they must lie in the "
    "last stage",
    "model.boundary": '"none", or the module that narrows a dense residual at every cut: bottleneck, maxout, '
    "projector (docs/boundaries.md)",
    "model.boundary_dim": "boundary only: values per token that cross it, from 1 to dim − 1; 0 for none",
    "model.anchor": '"frozen": a frozen token anchor; "none"; "auto": frozen for subspace, bottleneck and projector, '
    "else none",
    "model.receiver_hidden": "width of the MLP that refines what a stage receives; 0 for none",
    "model.token_table_dim": "rank of the trained token table that a stage adds to what it receives; 0 for none",
    "model.token_means": "both ends of a boundary keep a mean per token and send the difference (docs/boundaries.md)",
    "model.classes": "classifier only: classes of images; 0 for a language model",
    "batch.microbatches": "microbatches per step; many more than stages keep the pipeline full",
    "batch.sequences": "sequences, or images, per microbatch",
    "batch.sequence_length": "tokens per sequence, or pixels per image; at most model.context",
    "batch.order": 'what each epoch shuffles: "samples", or "steps", which keeps the samples of a step together, as '
    "delta needs",
    "optimizer.kind": '"adamw"; or "muon" for the matrices of layers and AdamW for the rest (docs/optimizers.md)',
    "optimizer.learning_rate": "peak learning rate, after the warm-up",
    "optimizer.warmup_steps": "steps of linear warm-up",
    "optimizer.min_ratio": "last learning rate ÷ peak",
    "optimizer.beta1": "decay of the first moment",
    "optimizer.beta2": "decay of the second moment",
    "optimizer.eps": "epsilon of AdamW",
    "optimizer.momentum": '"muon" only: decay of its first moment, in place of beta1',
    "optimizer.weight_decay": "for matrices; embeddings and norms have none",
    "optimizer.clip_norm": "the global norm of the gradient is clipped to this value",
    "codec.forward": 'activations; delta:4 sends changes since a sample\'s last visit and needs batch.order = "steps"',
    "codec.backward": "gradients of activations; topk-shared goes with topk activations",
    "sums.mode": '"exact": whole numbers on a grid, independent of the order, equal to one machine; "fp32": plain sums',
    "sums.grid_bits": '"exact" only: gradients are rounded to multiples of 2^-grid_bits; 8 bits less save one byte '
    "per number",
    "sums.averaging": 'what replicas exchange: "none": exact sums; dither:1: exact sums in few bits; int8, int4, '
    "topk:0.1, …: compressed, with the loss added to the next step (docs/averaging.md)",
    "timing.step_budget_s": "seconds that a step may take; the deadlines of peers are fractions of it",
    "timing.recruit_after_s": "seconds to wait for a stage's last peer to come back before a standby takes its place",
    "checkpoint.every": "steps between checkpoints",
    "checkpoint.keep": "number of checkpoints to keep",
    "divergence.skips": "number of consecutive skipped steps that count as divergence",
    "divergence.action": '"stop": the run ends with exit code 4; "go_back": it resumes from the last good checkpoint '
    "with a lower rate",
    "divergence.rate": '"go_back" only: factor of the learning rate, applied each time',
    "divergence.times": '"go_back" only: how many times the run may go back before it ends',
    "evaluation.every": "steps between evaluations; 0: never",
    "evaluation.microbatches": "held-out microbatches per evaluation",
    "evaluation.sample_tokens": "tokens to generate after an evaluation; 0: none",
    "evaluation.prompt": "start of the sample",
    "swarm.replicas": "peers that each stage needs before the first step",
    "swarm.max_replicas": "maximum number of peers per stage, others stand by; 0: as many as measurably help",
    "swarm.start_timeout_s": "seconds to wait for these peers; then the run starts without the missing ones, and peers "
    "also take on empty stages",
    "audit.every": "a peer's steps are audited (computed again by others) about once per this number of its "
    "microbatches; "
    "also a newcomer's first step, and unusual sums; auto: 300, but at most one step in 192; 0: nothing is compared",
    "audit.tolerance": "largest relative difference of a stage's gradient norm that is accepted; 0: every bit must be "
    "equal, for machines of one kind",
    "coordinator.group": "peer ids of the organiser's machines, an odd number of them (swarm-peer id)",
    "data.directory": "folder written by swarm-peer prepare, relative to this file",
    "initial.sha256": "hash of imported parameters (swarm-peer import); empty: new parameters, from run.seed",
    "initial.directory": "folder of imported parameters, relative to this file; not read if sha256 is empty",
}


def named_run(name: str) -> RunSection:
    """The run section for the name given by --name. Raises ManifestError."""
    try:
        return RunSection(name=name)
    except ValueError:
        raise ManifestError(f"--name {name!r}: {MEANINGS['run.name']}") from None


def write_run_file(path: Path, run: RunFile, why: Sequence[str] = ()) -> None:
    """Write `run` as RUN.toml, replacing an existing file. Raises ManifestError, OSError; then the old file stays.

    `why`: lines of comment that give the reasons for its values.
    """
    try:
        raw = render(run, why).encode("utf-8")
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start)
        key, _, value = error.object.splitlines()[line].partition("  # ")[0].partition(" = ")
        raise ManifestError(
            f"{path}: {key} = {value!r} cannot be written as UTF-8, which TOML needs: choose another value"
        ) from None
    with atomic_file(path) as file:
        write_whole(file, raw)


def render(run: RunFile, why: Sequence[str] = ()) -> str:
    """`run` as RUN.toml. `load_run_file` reads it back as an equal RunFile. Keys that have no effect are left out.

    `why`: as in `write_run_file`.
    """
    lines = [
        "# A run of swarm-peer. Anyone can read this file; `swarm-peer coordinate` turns it into a signed manifest.",
        "# Unknown keys are errors. Every key may be overridden with --set table.key=value.",
    ]
    lines += ["#", *(f"# {reason}" for reason in why)] if why else []
    for table, section in run.model_dump(mode="json").items():
        lines += ["", f"# {TABLES[table]}", f"[{table}]"]
        idle = run.model.idle_keys if table == "model" else ()
        for key, value in section.items():
            if key in idle:
                continue
            lines.append(f"{key} = {_toml(value)}  # {MEANINGS[f'{table}.{key}']}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")
