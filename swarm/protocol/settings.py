"""The numbers of a run that the cores need, derived from the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.manifest import DivergenceSection, OptimizerSection, RunManifest
from swarm.protocol.ids import StageIndex, StepNumber
from swarm.protocol.stage_needs import Needs
from swarm.protocol.update import Update, update_of

STEP_BUDGETS = 2
"""Step budgets after which a step without fences is restarted, the first time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All durations are in seconds. All fields except `slots`, `audit_secret` and the `stage_…` fields are equal for
    all actors.
    """

    stages: int
    microbatches: int
    steps: int
    tokens_per_step: int
    targets_per_step: int
    """Number of targets that a step's loss is summed over: tokens, or images."""
    optimizer: OptimizerSection
    replicas: int
    evaluate_every: int
    evaluate_microbatches: int
    sample_tokens: int
    vocabulary: int
    """A sampled token is below this number."""
    checkpoint_every: int
    step_budget_s: float
    recruit_after_s: float
    start_timeout_s: float
    heartbeat_s: float = 1.0
    reconnect_grace_s: float = 0.2
    """If a broken connection is not restored within these seconds, its actor counts as dead."""
    leave_s: float = 8.0
    """Longest stay in seconds of a peer that was asked to leave. Its process needs up to two more seconds to end."""
    stage_needs: Needs = field(default_factory=dict)
    """For each kind of peer, the memory that it needs for each stage. Only coordinators know it; empty: memory is not
    checked.
    """
    stage_sums: tuple[int, ...] = ()
    """For each stage, the usual encoded size in bytes of a step's sums; empty: no forecast."""
    stage_frames: tuple[float, ...] = ()
    """For each stage, the bytes that a peer sends per microbatch. Only coordinators know them; empty: uplinks are
    ignored.
    """
    slots: int = 0
    """Largest number of microbatches on which a peer works at once. 0: chosen by the pipeline's depth (`Slots`)."""
    averages_compressed: bool = False
    """True if replicas average compressed gradients, so that residuals enter the next step (`residuals.py`)."""
    imported: bool = False
    """True if version 0 is in the archive from the start, and is loaded like other versions. False: every peer
    initialises it.
    """
    max_replicas: int = 0
    """Largest number of peers in a stage; more peers stand by. 0: the value of `replica_cap`."""
    ends_share: bool = False
    """True if the first and the last of several stages share parameters."""
    audit_every: int = 0
    """One step in this number is computed twice, by other peers, and must give the same result (`Audits`). 0: none."""
    audit_tolerance: float = 0.0
    """Relative difference of a stage's gradient norm that an audit tolerates. 0: the bits must be equal."""
    audit_secret: bytes = b""
    """Secret from which the coordinators derive the audited steps, so that peers cannot predict them."""
    screened: bool = False
    """True if the contribution of each peer is compared with those of its siblings (`Screen`)."""
    divergence: DivergenceSection = field(default_factory=DivergenceSection)

    @property
    def longest_step_s(self) -> float:
        """Seconds after which a step without fences is restarted, the first time."""
        return STEP_BUDGETS * self.step_budget_s

    def saves(self, version: int) -> bool:
        """Return True if a checkpoint is made of this version."""
        return version > 0 and (version % self.checkpoint_every == 0 or version == self.steps)

    def update(self, step: StepNumber, rate: float) -> Update:
        """The optimizer's numbers, which the decision of a step contains. `rate`: the same as in Decision."""
        return update_of(self.optimizer, step, self.steps, rate)

    def partner(self, stage: int) -> StageIndex | None:
        """The other stage that holds some of the parameters of `stage`."""
        ends = {0: self.stages - 1, self.stages - 1: 0} if self.ends_share else {}
        return StageIndex(ends[stage]) if stage in ends else None

    @classmethod
    def of(cls, manifest: RunManifest, slots: int = 0) -> Settings:
        budget = manifest.timing.step_budget_s
        return cls(
            stages=manifest.model.stages,
            microbatches=manifest.batch.microbatches,
            steps=manifest.run.steps,
            tokens_per_step=manifest.batch.tokens_per_step,
            targets_per_step=manifest.targets_per_step,
            optimizer=manifest.optimizer,
            replicas=manifest.swarm.replicas,
            max_replicas=manifest.swarm.max_replicas,
            evaluate_every=manifest.evaluation.every,
            evaluate_microbatches=manifest.evaluation.microbatches,
            sample_tokens=manifest.evaluation.sample_tokens,
            vocabulary=manifest.model.vocab_size,
            checkpoint_every=manifest.checkpoint.every,
            step_budget_s=budget,
            recruit_after_s=manifest.timing.recruit_after_s,
            start_timeout_s=manifest.swarm.start_timeout_s,
            heartbeat_s=min(1.0, budget / 30),
            slots=slots,
            averages_compressed=manifest.sums.compresses,
            imported=bool(manifest.initial.sha256),
            ends_share=manifest.model.shares_embedding,
            audit_every=manifest.audit_steps,
            screened=manifest.audit.every != 0,
            audit_tolerance=manifest.audit.tolerance,
            divergence=manifest.divergence,
        )
