"""RUN.toml with comments, written from the run file's own model: every table, every key, its value and meaning.

Keys and values come from `RunFile`; only the meanings are kept here, and a test holds the two together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from swarm.atomic import atomic_file, write_whole
from swarm.manifest import ManifestError, RunFile, RunSection

TABLES: dict[str, str] = {
    "run": "What is run.",
    "model": "The model, and where it is cut into stages.",
    "batch": "One optimizer step trains microbatches × sequences × sequence_length tokens.",
    "optimizer": "AdamW: linear warm-up, then cosine decay over run.steps.",
    "codec": "What crosses the links between stages: none, bf16, int8, int4, topk:0.1, delta:4 and others; "
    "auto: chosen as the run goes, by what the links carry. See docs/codecs.md.",
    "sums": "How gradients of microbatches are added.",
    "timing": "Deadlines follow from this budget and from what is measured.",
    "checkpoint": "When state is kept.",
    "divergence": "What is done when training gives no numbers any more. See docs/faults.md.",
    "evaluation": "Held-out text through the pipeline, and a generated sample.",
    "swarm": "How many peers it takes.",
    "audit": "Steps that are computed twice, by other peers, to see that nobody computes wrong. See docs/trust.md.",
    "coordinator": "Who may coordinate: nothing here for one machine, or several, of which a minority may die. See "
    "docs/hosting.md.",
    "data": "The prepared corpus. Its hashes, not its place, are part of the run.",
    "initial": "What training begins with. The hash, not the place, is part of the run. See docs/fine-tuning.md.",
}

MEANINGS: dict[str, str] = {
    "run.name": "letters, digits, dot, dash, underscore; at most 64; a letter or digit first",
    "run.seed": "fixes the order of samples, and initial parameters unless they are imported",
    "run.steps": "optimizer steps in all",
    "model.kind": '"llama": a decoder language model; "resnet": a classifier of square images (docs/images.md)',
    "model.vocab_size": "tokens; at least those of the tokenizer (swarm-peer prepare --vocab-size). Of images: levels",
    "model.dim": "width; a multiple of heads. Of a classifier: channels",
    "model.layers": "decoder layers, or residual blocks",
    "model.heads": "attention heads; a multiple of kv_heads",
    "model.kv_heads": "heads of keys and values",
    "model.ffn_dim": "width inside the feed-forward",
    "model.context": "longest sequence, tokens",
    "model.rope_theta": "base of the rotary embedding",
    "model.norm_eps": "epsilon of RMSNorm",
    "model.cuts": "first layer of stages 1, 2, …: n cuts make n + 1 stages",
    "model.tie_embeddings": "embedding and head are one matrix; the first and the last stage hold a copy each",
    "model.residual": '"dense", or "subspace": every boundary carries subspace_dim values a token (docs/subspace.md)',
    "model.subspace_dim": "of a subspace: coefficients of a token, from 1 to dim − 1; 0 for dense",
    "model.subspace_seed": "of a subspace: fixes the frozen token anchor",
    "model.tail_layers": "of a subspace: last layers free of it; they must lie in the last stage",
    "model.boundary": '"none", or what narrows a dense residual at every cut: bottleneck, maxout, projector '
    "(docs/boundaries.md)",
    "model.boundary_dim": "of a boundary: values of a token that cross it, from 1 to dim − 1; 0 for none",
    "model.anchor": '"auto": a frozen token anchor under a subspace, bottleneck or projector; "frozen", "none"',
    "model.receiver_hidden": "width of the MLP with which a stage refines what it received; 0 for none",
    "model.token_table_dim": "rank of the trained token table that a stage adds to what it received; 0 for none",
    "model.classes": "of a classifier: classes of images; 0 for a language model",
    "batch.microbatches": "microbatches in a step; many more than stages keeps the pipeline full",
    "batch.sequences": "sequences, or images, in a microbatch",
    "batch.sequence_length": "tokens in a sequence, or pixels of an image; at most model.context",
    "batch.order": 'what each epoch shuffles: "samples", or "steps", whose samples then stay together, as delta needs',
    "optimizer.learning_rate": "at its peak, after the warm-up",
    "optimizer.warmup_steps": "steps of linear warm-up",
    "optimizer.min_ratio": "the last learning rate ÷ the peak",
    "optimizer.beta1": "decay of the first moment",
    "optimizer.beta2": "decay of the second moment",
    "optimizer.eps": "epsilon of AdamW",
    "optimizer.weight_decay": "of matrices; embeddings and norms have none",
    "optimizer.clip_norm": "the gradient's global norm is clipped to this",
    "codec.forward": 'activations; delta:4 sends changes since a sample\'s last visit and needs batch.order = "steps"',
    "codec.backward": "gradients of activations; topk-shared beside activations in topk",
    "sums.mode": '"exact": fp64 on a grid, the same in any order, equal to one machine; "fp32": as it comes',
    "sums.grid_bits": 'of "exact": gradients are rounded to multiples of 2^-grid_bits; 8 less are a byte a number less',
    "sums.averaging": 'what replicas exchange: "none": exact sums; int8, int4, topk:0.1, …: compressed, and what that '
    "loses is added to the next step (docs/averaging.md)",
    "timing.step_budget_s": "seconds; the longest a step may take before peers are held to account",
    "timing.recruit_after_s": "seconds to wait for a stage's last peer before a standby takes its place",
    "checkpoint.every": "steps between checkpoints",
    "checkpoint.keep": "checkpoints kept",
    "divergence.skips": "so many steps skipped one after the other are no accident",
    "divergence.action": '"stop": the run ends with exit code 4; "go_back": to the last good checkpoint, more slowly',
    "divergence.rate": 'of "go_back": what the learning rate is multiplied by each time',
    "divergence.times": 'of "go_back": how often, before the run ends all the same',
    "evaluation.every": "steps between evaluations; 0: never",
    "evaluation.microbatches": "held-out microbatches in an evaluation",
    "evaluation.sample_tokens": "tokens generated after an evaluation; 0: none",
    "evaluation.prompt": "what the sample begins with",
    "swarm.replicas": "peers each stage wants before the first step",
    "swarm.max_replicas": "peers a stage may have, more stand by; 0: as many as are of use, by what is measured",
    "swarm.start_timeout_s": "seconds; then start with what is there, and peers take on stages that nobody holds",
    "audit.every": "one step in so many is computed twice, and newcomers' first; 0: none; take 50 where strangers join",
    "audit.tolerance": "part of a gradient's norm by which it may differ then; 0: not a bit, if all machines are alike",
    "coordinator.group": "peer ids of the organiser's machines, an odd number of them (swarm-peer id)",
    "data.directory": "folder written by swarm-peer prepare, relative to this file",
    "initial.sha256": "of imported parameters (swarm-peer import); empty: new ones, from run.seed",
    "initial.directory": "folder of imported parameters, relative to this file; nothing is read with an empty sha256",
}


def named_run(name: str) -> RunSection:
    """A run by the name that --name gives. Raises ManifestError."""
    try:
        return RunSection(name=name)
    except ValueError:
        raise ManifestError(f"--name {name!r}: {MEANINGS['run.name']}") from None


def write_run_file(path: Path, run: RunFile) -> None:
    """Write RUN.toml of `run`, in place of what was there. Raises ManifestError, OSError: then that is still there."""
    try:
        raw = render(run).encode("utf-8")
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start)
        key, _, value = error.object.splitlines()[line].partition("  # ")[0].partition(" = ")
        raise ManifestError(f"{path}: {key} = {value!r} is not text in UTF-8, as TOML must be: name another") from None
    with atomic_file(path) as file:
        write_whole(file, raw)


def render(run: RunFile) -> str:
    """RUN.toml of `run`; `load_run_file` reads it back as an equal RunFile. Keys that mean nothing are left out."""
    lines = [
        "# A run of swarm-peer. Anyone can read this file; `swarm-peer coordinate` turns it into a signed manifest.",
        "# Unknown keys are errors. Every key may be overridden with --set table.key=value.",
    ]
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
