"""What the cores need to know of a run: numbers only, derived from the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.manifest import DivergenceSection, OptimizerSection, RunManifest
from swarm.protocol.ids import StageIndex, StepNumber
from swarm.protocol.update import Update, update_of


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in seconds. All but `slots`, `audit_secret` and what begins with `stage_` are equal for all actors."""

    stages: int
    microbatches: int
    steps: int
    tokens_per_step: int
    targets_per_step: int
    """What a step's loss is summed over: tokens, or images."""
    optimizer: OptimizerSection
    replicas: int
    evaluate_every: int
    evaluate_microbatches: int
    sample_tokens: int
    vocabulary: int
    """A sampled token is below this."""
    checkpoint_every: int
    step_budget_s: float
    recruit_after_s: float
    start_timeout_s: float
    heartbeat_s: float = 1.0
    reconnect_grace_s: float = 0.2
    """How long a broken connection may take to come back before its actor is taken for dead."""
    leave_s: float = 8.0
    """How long a peer that was asked to leave stays at most. Its process needs up to two seconds more to end."""
    stage_memory: tuple[int, ...] = ()
    """Bytes that a peer of each stage cannot do without. Known to coordinators; empty: nobody is judged by it."""
    stage_sums: tuple[int, ...] = ()
    """Bytes of the sums of a step, by stage, as they usually cross; empty: nothing is forecast."""
    stage_frames: tuple[float, ...] = ()
    """Bytes that a peer of each stage sends for a microbatch. Known to coordinators; empty: uplinks do not count."""
    slots: int = 0
    """Microbatches a peer works on at once, at most. 0: as many as the depth of the pipeline asks for (`Slots`)."""
    averages_compressed: bool = False
    """Replicas exchange compressed gradients, and keep what that loses for the next step."""
    imported: bool = False
    """Version 0 is in the archive from the start, and is taken up like any other; otherwise every peer makes it."""
    max_replicas: int = 0
    """As many peers as a stage may have; more stand by. 0: as many as `replica_cap` says."""
    ends_share: bool = False
    """The first and the last of several stages hold some of the same parameters."""
    audit_every: int = 0
    """One step in so many is computed twice, by other peers, and must come out the same (`Audits`). 0: none."""
    audit_tolerance: float = 0.0
    """By which part of it the length of a stage's gradient may differ then. 0: not by a bit."""
    audit_secret: bytes = b""
    """Which steps that are nobody can tell without it. Coordinators' own."""
    screened: bool = False
    """What each peer contributes to a step is compared with what others do (`Screen`)."""
    divergence: DivergenceSection = field(default_factory=DivergenceSection)

    def saves(self, version: int) -> bool:
        """Whether a checkpoint is made of this version."""
        return version > 0 and (version % self.checkpoint_every == 0 or version == self.steps)

    def update(self, step: StepNumber, rate: float) -> Update:
        """What a step's decision says of the optimizer. `rate`: as in Decision."""
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
            screened=manifest.audit.every > 0,
            audit_tolerance=manifest.audit.tolerance,
            divergence=manifest.divergence,
        )
