"""The tables of a run besides [model], [data] and [initial], and the checks between tables."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from swarm.manifest.model import TOKEN_MEANS_GRID_BITS, ModelSection
from swarm.manifest.section import PEER_ID, RUN_NAME, Count, Fraction, Positive, Section, either, within


class BatchSection(Section):
    """One optimizer step: `microbatches` × `sequences` × `sequence_length` tokens."""

    microbatches: Positive = Field(default=16, le=65_535)
    sequences: Positive = Field(default=4, le=65_535)
    sequence_length: Positive = Field(default=128, le=1 << 20)
    order: Literal["samples", "steps"] = "samples"
    """What each epoch shuffles: samples, or steps. "steps": a step has the same samples in every epoch, as the codec
    `delta` needs.
    """

    @property
    def tokens_per_microbatch(self) -> int:
        return self.sequences * self.sequence_length

    @property
    def ids_per_microbatch(self) -> int:
        """Token ids of a microbatch, with labels. They are sent with activations, for the labels and the anchor."""
        return self.tokens_per_microbatch + self.sequences

    @property
    def tokens_per_step(self) -> int:
        return self.microbatches * self.tokens_per_microbatch


_MOMENTUM = 0.95

Decay = Annotated[float, within(0, 0.999999)]
"""A factor by which a mean shrinks in each step. In fp32, one that is much closer to 1 is 1, and nothing shrinks."""


class OptimizerSection(Section):
    """Linear warm-up, cosine decay to `min_ratio`, and clipping by the global norm.

    Updates are computed in fp32: values that are 0 or infinite there are refused.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    """"muon": Muon updates the matrices of layers, AdamW everything else."""
    learning_rate: Annotated[float, within(1e-30, 1e30)] = 1e-3
    warmup_steps: int = Field(default=10, ge=0, lt=1 << 31)
    min_ratio: Fraction = 0.1
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    eps: Annotated[float, within(1e-20, 1)] = 1e-8
    """Gradients below 1e-22 have a square of 0 in fp32, and are divided by eps alone: a smaller eps would make their
    updates huge, and an eps of 0 makes NaN of the parameters without a gradient.
    """
    momentum: Decay = _MOMENTUM
    weight_decay: Annotated[float, within(0, 1e3)] = 0.1
    clip_norm: Annotated[float, within(1e-30, 1e30)] = 1.0

    @model_validator(mode="after")
    def _momentum_is_used(self) -> Self:
        if self.kind != "muon" and self.momentum != _MOMENTUM:
            raise ValueError(
                f'optimizer.momentum = {self.momentum} has no effect with optimizer.kind = "{self.kind}": leave the '
                'key out, or set optimizer.kind = "muon"'
            )
        return self


AUTO = "auto"
"""A value of `forward` and `backward` in place of a codec's name: the coordinator chooses the codec during the run."""


class CodecSection(Section):
    """The codecs at the boundaries: `forward` for activations, `backward` for gradients (names: docs/codecs.md)."""

    forward: str = "int8"
    backward: str = "int8"

    @property
    def auto(self) -> bool:
        """Whether the coordinator chooses a codec for each step."""
        return AUTO in (self.forward, self.backward)

    @property
    def remembers(self) -> Literal["", "samples", "places"]:
        """The kind of earlier activation relative to which a frame encodes a change; "" if there is none.

        "samples": the last visit of the same samples; "places": the same microbatch of the previous step.
        """
        family = self.forward.partition(":")[0]
        return "samples" if family == "delta" else "places" if family in ("ef21", "ef", "ef-mixed") else ""

    @property
    def mutual(self) -> bool:
        """True if sender and receiver keep the base. False if only the sender does."""
        return self.forward.partition(":")[0] in ("delta", "ef21")


class SumSection(Section):
    """How gradients are added. `exact`: the gradient of each microbatch is rounded to multiples of 2^-grid_bits."""

    mode: Literal["exact", "fp32"] = "exact"
    grid_bits: int = Field(default=30, ge=8, le=48)
    averaging: str = "none"
    """What replicas exchange (docs/averaging.md). "none": exact sums; "dither:STEP": exact sums on a coarser grid; a
    codec or "powersgd:RANK": compressed sums.
    """

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        family, _, rank = self.averaging.partition(":")
        if family == "powersgd" and not (rank.isdecimal() and rank.isascii() and 1 <= int(rank) <= 64):
            raise ValueError(
                f'sums.averaging = "{self.averaging}" needs a rank from 1 to 64: for example, powersgd:4 exchanges '
                "factors of rank 4 for each matrix"
            )
        if family == "dither":
            if not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,4})?", rank) or not 1 / 16 <= float(rank) <= 16:
                raise ValueError(
                    f'sums.averaging = "{self.averaging}" needs a step from 0.0625 to 16: for example, dither:1 rounds '
                    "each gradient with a step of about its own size"
                )
            if self.mode != "exact":
                raise ValueError(f'sums.averaging = "{self.averaging}" needs exact sums: set sums.mode = "exact"')
        return self

    @property
    def dither(self) -> float:
        """Rounding step of a microbatch's gradient, relative to its size; 0: one grid for all numbers."""
        family, _, step = self.averaging.partition(":")
        return float(step) if family == "dither" else 0.0

    @property
    def rank(self) -> int:
        """The rank of powersgd; 0 for any other averaging."""
        family, _, rank = self.averaging.partition(":")
        return int(rank) if family == "powersgd" else 0

    @property
    def compresses(self) -> bool:
        """Whether the averaged result depends on which replica has added which microbatches."""
        return self.averaging != "none" and not self.dither


class TimingSection(Section):
    """The time budget of a run.

    All deadlines follow from it and from measured quantiles (swarm/protocol/timeouts.py).
    """

    step_budget_s: float = Field(default=60.0, ge=0.01, le=1e6)
    recruit_after_s: float = Field(default=10.0, ge=0, le=1e6)


class CheckpointSection(Section):
    every: Count = 10
    keep: Count = 3


class DivergenceSection(Section):
    """When a run counts as diverged, and what happens then (docs/faults.md)."""

    skips: Count = 3
    action: Literal["stop", "go_back"] = "stop"
    rate: Annotated[float, within(1e-36, 0.999999)] = 0.5
    times: Count = 3


class EvaluationSection(Section):
    every: int = Field(default=10, ge=0, lt=1 << 31, description="0: never")
    microbatches: Positive = Field(default=4, le=65_535)
    sample_tokens: int = Field(default=24, ge=0, le=4096)
    prompt: str = Field(default="The ", max_length=10_000)


class SwarmSection(Section):
    """How many peers each stage has: `replicas` before step 0 opens, at most `max_replicas` (0: as many as are useful).

    Further peers are standbys.
    """

    replicas: Positive = Field(default=2, le=65_535)
    max_replicas: int = Field(default=0, ge=0, le=65_535, description="0: as many as are useful")
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
                f"set swarm.max_replicas = {self.replicas} or more, or 0 for as many as are useful"
            )
        return self


AUTO_EVERY = 300
AUTO_STEPS = 192


class AuditSection(Section):
    """How often other peers compute a step again, to check that the results are equal (docs/trust.md).

    `every`: one audit per this number of microbatches of a peer. 0: no audits, and contributions are not checked
    either. "auto": `AUTO_EVERY`, but at most one step in `AUTO_STEPS`, so that audits take less than 1 % of the time.
    """

    every: Annotated[
        Annotated[int, Field(ge=0, lt=1 << 31)] | Literal["auto"],
        either(f'a whole number from 0 to {(1 << 31) - 1}, or "auto"'),
    ] = "auto"
    tolerance: float = Field(default=0.01, ge=0, lt=1)


PeerIdText = Annotated[str, Field(pattern=PEER_ID)]
"""An Ed25519 peer id of libp2p."""

MAX_COORDINATORS = 7


class CoordinatorSection(Section):
    """The machines that may coordinate the run. Without a group, only the machine that hosts the run."""

    group: tuple[PeerIdText, ...] = ()

    @model_validator(mode="after")
    def _decides(self) -> Self:
        count = len(self.group)
        if len(set(self.group)) < count:
            raise ValueError(
                "coordinator.group names a peer id twice: each machine has its own peer id (`swarm-peer id`)"
            )
        if count and (count % 2 == 0 or count > MAX_COORDINATORS):
            raise ValueError(
                f"coordinator.group has {count} members: use an odd number up to {MAX_COORDINATORS}, such as 3. "
                "A majority decides, so an even number survives no more failures than the odd number below it"
            )
        return self


class RunSection(Section):
    name: Annotated[str, Field(pattern=RUN_NAME)] = "swarm"
    seed: int = Field(default=1337, ge=0, lt=2**63)
    steps: Count = 30


class Tables(Section):
    """The tables that RUN.toml and the manifest share."""

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
        if self.model.shares_embedding and self.sums.compresses:
            raise ValueError(
                f'sums.averaging = "{self.sums.averaging}" compresses the sums of each stage separately, but with '
                "model.tie_embeddings = true the first and the last stage add the embedding's gradients together: set "
                'sums.averaging = "none" or "dither:1", or model.tie_embeddings = false (of an imported model: '
                "import --untie)"
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
                f'codec.forward = "{self.codec.forward}" sends the change since the last visit of a sample, so the '
                f'same samples must stay together, but batch.order = "{self.batch.order}": set batch.order = "steps"'
            )
        if self.model.token_means:
            self._check_token_means()
        if self.audit.every and not self.audit.tolerance and self.sums.mode != "exact":
            raise ValueError(
                f'audit.tolerance = 0 allows no difference, but with sums.mode = "{self.sums.mode}" the last bits '
                'depend on the peer that adds: set audit.tolerance = 0.01, or sums.mode = "exact"'
            )
        largest_loss = self.batch.tokens_per_step * math.log(self.model.vocab_size + 1)
        if self.sums.mode == "exact" and 4 * largest_loss > 2.0 ** (53 - self.sums.grid_bits):
            fits = int(53 - math.log2(4 * largest_loss))
            raise ValueError(
                f"sums.grid_bits = {self.sums.grid_bits} leaves no room for the loss of {self.batch.tokens_per_step} "
                f"tokens; at most {fits} bits fit"
            )
        return self

    def _check_token_means(self) -> None:
        """Both ends of a boundary compute the same means only from exact sums of the same numbers."""
        if self.sums.mode != "exact" or self.sums.compresses:
            key = "averaging" if self.sums.compresses else "mode"
            raise ValueError(
                f'sums.{key} = "{getattr(self.sums, key)}" does not fit model.token_means = true, whose sums must be '
                'exact: set sums.mode = "exact" and sums.averaging = "none" or "dither:1", or leave model.token_means '
                "out"
            )
        if self.sums.grid_bits < TOKEN_MEANS_GRID_BITS:
            raise ValueError(
                f"sums.grid_bits = {self.sums.grid_bits} is too coarse for model.token_means = true: set it to "
                f"{TOKEN_MEANS_GRID_BITS} or more"
            )
        if self.codec.remembers:
            raise ValueError(
                f'codec.forward = "{self.codec.forward}" does not fit model.token_means = true: with token means, a '
                'frame already is a difference. Set codec.forward = "entropy:1.4", or another codec without state'
            )

    @property
    def audit_steps(self) -> int:
        """The number of steps of which one is audited, if each stage has swarm.replicas peers. 0: no audits."""
        if not self.audit.every or self.prevents_audits:
            return 0
        every, least = (AUTO_EVERY, AUTO_STEPS) if self.audit.every == "auto" else (self.audit.every, 1)
        return max(least, every * self.swarm.replicas // self.batch.microbatches)

    @property
    def prevents_audits(self) -> str:
        """The setting that makes the result of a step depend on the peers that compute it, so that audits are
        impossible. Empty if there is none.
        """
        if self.codec.remembers:
            return f'codec.forward = "{self.codec.forward}"'
        return f'sums.averaging = "{self.sums.averaging}"' if self.sums.compresses else ""

    @property
    def outlines(self) -> bool:
        """True if audits compare sums that may differ slightly between honest peers."""
        return self.audit_steps > 0 and self.audit.tolerance > 0

    @property
    def targets_per_microbatch(self) -> int:
        """Number of targets in the loss of a microbatch: its tokens, or its images."""
        return self.batch.sequences if self.model.kind == "resnet" else self.batch.tokens_per_microbatch

    @property
    def targets_per_step(self) -> int:
        return self.batch.microbatches * self.targets_per_microbatch
