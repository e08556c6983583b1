"""The other tables of a run, and the checks between them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from swarm.manifest.model import ModelSection
from swarm.manifest.section import PEER_ID, RUN_NAME, Count, Fraction, Positive, Section


class BatchSection(Section):
    """One optimizer step: `microbatches` × `sequences` × `sequence_length` tokens."""

    microbatches: Positive = Field(default=16, le=65_535)
    sequences: Positive = Field(default=4, le=65_535)
    sequence_length: Positive = Field(default=128, le=1 << 20)
    order: Literal["samples", "steps"] = "samples"
    """What each epoch shuffles. "steps": a step's microbatches keep their samples for good, as codec `delta` needs."""

    @property
    def tokens_per_microbatch(self) -> int:
        return self.sequences * self.sequence_length

    @property
    def ids_per_microbatch(self) -> int:
        """Including the labels. They travel with activations, for the last stage's labels or a subspace's anchor."""
        return self.tokens_per_microbatch + self.sequences

    @property
    def tokens_per_step(self) -> int:
        return self.microbatches * self.tokens_per_microbatch


class OptimizerSection(Section):
    """AdamW with linear warm-up and cosine decay to `min_ratio`; one clip by the global norm."""

    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=10, ge=0, lt=1 << 31)
    min_ratio: Fraction = 0.1
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)


AUTO = "auto"
"""In place of a codec's name: chosen during the run."""


class CodecSection(Section):
    """The codecs at the boundaries: `forward` for activations, `backward` for gradients (names: docs/codecs.md)."""

    forward: str = "int8"
    backward: str = "int8"

    @property
    def auto(self) -> bool:
        """Whether the coordinator chooses a codec, from step to step."""
        return AUTO in (self.forward, self.backward)

    @property
    def remembers(self) -> Literal["", "samples", "places"]:
        """The base of activations: their samples' last visit, or the same place in the step before."""
        family = self.forward.partition(":")[0]
        return "samples" if family == "delta" else "places" if family in ("ef21", "ef", "ef-mixed") else ""

    @property
    def mutual(self) -> bool:
        """Whether both ends keep the base, or the sender alone."""
        return self.forward.partition(":")[0] in ("delta", "ef21")


class SumSection(Section):
    """How gradients are added. `exact`: each microbatch's gradient is rounded to multiples of 2^-grid_bits in fp64."""

    mode: Literal["exact", "fp32"] = "exact"
    grid_bits: int = Field(default=30, ge=8, le=48)
    averaging: str = "none"
    """What replicas exchange: "none": exact sums; dither:STEP: exact, coarser; a codec, powersgd:RANK: compressed
    (docs/averaging.md).
    """

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        family, _, rank = self.averaging.partition(":")
        if family == "powersgd" and not (rank.isdecimal() and rank.isascii() and 1 <= int(rank) <= 64):
            raise ValueError(
                f'sums.averaging = "{self.averaging}" needs a rank from 1 to 64: write powersgd:4 to exchange four '
                "rows and four columns of each matrix"
            )
        if family == "dither":
            if not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,4})?", rank) or not 1 / 16 <= float(rank) <= 16:
                raise ValueError(
                    f'sums.averaging = "{self.averaging}" needs a step from 0.0625 to 16: write dither:1 to round each '
                    "gradient to about its own size"
                )
            if self.mode != "exact":
                raise ValueError(f'sums.averaging = "{self.averaging}" adds exactly: set sums.mode = "exact"')
        return self

    @property
    def dither(self) -> float:
        """Step of a microbatch's rounding, relative to the size of its gradient; 0: every number has one grid."""
        family, _, step = self.averaging.partition(":")
        return float(step) if family == "dither" else 0.0

    @property
    def rank(self) -> int:
        """Rank of powersgd; 0 for any other."""
        family, _, rank = self.averaging.partition(":")
        return int(rank) if family == "powersgd" else 0

    @property
    def compresses(self) -> bool:
        """Whether what replicas make of their sums depends on who has added what."""
        return self.averaging != "none" and not self.dither


class TimingSection(Section):
    """One budget; every deadline is derived from it and from measured quantiles (swarm/protocol/timeouts.py)."""

    step_budget_s: float = Field(default=60.0, ge=0.01, le=1e6)
    recruit_after_s: float = Field(default=10.0, ge=0, le=1e6)


class CheckpointSection(Section):
    every: Count = 10
    keep: Count = 3


class DivergenceSection(Section):
    """When a run counts as diverged, and the reaction (docs/faults.md)."""

    skips: Count = 3
    action: Literal["stop", "go_back"] = "stop"
    rate: float = Field(default=0.5, gt=0, lt=1)
    times: Count = 3


class EvaluationSection(Section):
    every: int = Field(default=10, ge=0, lt=1 << 31, description="0: never")
    microbatches: Positive = Field(default=4, le=65_535)
    sample_tokens: int = Field(default=24, ge=0, le=4096)
    prompt: str = "The "


class SwarmSection(Section):
    """Peers that a stage wants before step 0 opens; beyond `max_replicas` (0: as many as are useful) peers stand by."""

    replicas: Positive = Field(default=2, le=65_535)
    max_replicas: int = Field(default=0, ge=0, le=65_535, description="0: as many as are of use")
    start_timeout_s: float = Field(
        default=600.0,
        gt=0,
        le=1e9,
        description="then start with the peers that are there, which also take on stages without a peer",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if 0 < self.max_replicas < self.replicas:
            raise ValueError(
                f"swarm.max_replicas = {self.max_replicas} is less than swarm.replicas = {self.replicas}: "
                f"set swarm.max_replicas = {self.replicas} or more, or 0 for as many as are of use"
            )
        return self


AUTO_EVERY = 300
AUTO_STEPS = 128


class AuditSection(Section):
    """How often a step is computed twice, by other peers, to check that the results are equal (docs/trust.md).

    `every` counts the microbatches of one peer. 0: what peers contribute is not looked at either.
    "auto": `AUTO_EVERY`, but no more than one step in `AUTO_STEPS`, so that audits take less than 1 % of the time.
    """

    every: Annotated[int, Field(ge=0, lt=1 << 31)] | Literal["auto"] = "auto"
    tolerance: float = Field(default=0.01, ge=0, lt=1)


PeerIdText = Annotated[str, Field(pattern=PEER_ID)]
"""An Ed25519 peer id of libp2p."""

MAX_COORDINATORS = 7


class CoordinatorSection(Section):
    """The machines that may coordinate. Without a group it is the one machine that hosts the run."""

    group: tuple[PeerIdText, ...] = ()

    @model_validator(mode="after")
    def _decides(self) -> Self:
        count = len(self.group)
        if len(set(self.group)) < count:
            raise ValueError("coordinator.group names a peer id twice: each machine has its own (`swarm-peer id`)")
        if count and (count % 2 == 0 or count > MAX_COORDINATORS):
            raise ValueError(
                f"coordinator.group has {count} members: take an odd number up to {MAX_COORDINATORS}, such as 3, since "
                "a majority decides, and an even number survives no more deaths than the odd number below it"
            )
        return self


class RunSection(Section):
    name: Annotated[str, Field(pattern=RUN_NAME)] = "swarm"
    seed: int = Field(default=1337, ge=0, lt=2**63)
    steps: Count = 30


class Tables(Section):
    """Tables shared by RUN.toml and the manifest."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    batch: BatchSection = BatchSection()
    optimizer: OptimizerSection = OptimizerSection()
    codec: CodecSection = CodecSection()
    sums: SumSection = SumSection()
    timing: TimingSection = TimingSection()
    checkpoint: CheckpointSection = CheckpointSection()
    divergence: DivergenceSection = DivergenceSection()
    evaluation: EvaluationSection = EvaluationSection()
    swarm: SwarmSection = SwarmSection()
    audit: AuditSection = AuditSection()
    coordinator: CoordinatorSection = CoordinatorSection()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch.sequence_length > self.model.context:
            raise ValueError(
                f"batch.sequence_length = {self.batch.sequence_length} exceeds model.context = {self.model.context}"
            )
        if self.model.shares_embedding and self.sums.averaging != "none":
            raise ValueError(
                f'sums.averaging = "{self.sums.averaging}" compresses what each stage adds up by itself, but with '
                "model.tie_embeddings = true the first and the last stage sum the embedding together: set "
                'sums.averaging = "none", or model.tie_embeddings = false (of an imported model: import --untie)'
            )
        if self.model.kind == "resnet":
            if math.isqrt(self.batch.sequence_length) ** 2 != self.batch.sequence_length:
                raise ValueError(
                    f"batch.sequence_length = {self.batch.sequence_length} is not a square: "
                    'model.kind = "resnet" takes square images, such as 64 for 8 × 8 pixels'
                )
            if self.evaluation.every and self.evaluation.sample_tokens:
                raise ValueError(
                    f"evaluation.sample_tokens = {self.evaluation.sample_tokens}: "
                    'model.kind = "resnet" generates nothing; set it to 0'
                )
        if self.codec.remembers == "samples" and self.batch.order != "steps":
            raise ValueError(
                f'codec.forward = "{self.codec.forward}" sends the change since a sample was last visited, so samples '
                f'must come together again: batch.order = "{self.batch.order}", set batch.order = "steps"'
            )
        if self.audit.every and not self.audit.tolerance and self.sums.mode != "exact":
            raise ValueError(
                f'audit.tolerance = 0 lets no bit differ, and with sums.mode = "{self.sums.mode}" the last bits depend '
                'on the adding peer: set audit.tolerance = 0.01, or sums.mode = "exact"'
            )
        largest_loss = self.batch.tokens_per_step * math.log(self.model.vocab_size + 1)
        if self.sums.mode == "exact" and 4 * largest_loss > 2.0 ** (53 - self.sums.grid_bits):
            fits = int(53 - math.log2(4 * largest_loss))
            raise ValueError(
                f"sums.grid_bits = {self.sums.grid_bits} leaves no room for the loss of {self.batch.tokens_per_step} "
                f"tokens; at most {fits} bits fit"
            )
        return self

    @property
    def audit_steps(self) -> int:
        """One step in so many is audited, if each stage has as many peers as the run begins with. 0: none."""
        if not self.audit.every or self.prevents_audits:
            return 0
        every, least = (AUTO_EVERY, AUTO_STEPS) if self.audit.every == "auto" else (self.audit.every, 1)
        return max(least, every * self.swarm.replicas // self.batch.microbatches)

    @property
    def prevents_audits(self) -> str:
        """What in this run makes a step come out otherwise when others compute it; empty: nothing does."""
        if self.codec.remembers:
            return f'codec.forward = "{self.codec.forward}"'
        return f'sums.averaging = "{self.sums.averaging}"' if self.sums.compresses else ""

    @property
    def outlines(self) -> bool:
        """Whether audits compare sums that need not be equal."""
        return self.audit_steps > 0 and self.audit.tolerance > 0

    @property
    def targets_per_microbatch(self) -> int:
        """Number of targets in the loss of a microbatch: its tokens, or its images."""
        return self.batch.sequences if self.model.kind == "resnet" else self.batch.tokens_per_microbatch

    @property
    def targets_per_step(self) -> int:
        return self.batch.microbatches * self.targets_per_microbatch
