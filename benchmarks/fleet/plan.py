"""The plan of a run of the fleet: machines and their spread, stages, workload and departures."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.fleet.links import Weigh
from benchmarks.fleet.machine import SPREAD, UPLINK_BYTES_PER_S
from benchmarks.fleet.workload import EXACT, Workload
from benchmarks.fleet.world import FleetWorld
from benchmarks.preemptions import Preemptions, preemptions
from swarm.manifest import OptimizerSection
from swarm.protocol.settings import Settings


def workload(averaging: str = EXACT) -> Workload:
    """The workload of a stage of 12.6 million parameters. A machine of speed 1 needs a second for a microbatch."""
    return Workload.of(
        hidden=1024, layers=1, sequence=1024, sequences=4, flops_per_s=0.3e12, codec_bytes=0.5, averaging=averaging
    )


WORKLOAD = workload()


@dataclass(frozen=True, slots=True)
class FleetPlan:
    peers: int
    stages: int
    microbatches_per_replica: int
    seed: int = 0
    workload: Workload = WORKLOAD
    spread: float = SPREAD
    uplinks: tuple[float, float] = UPLINK_BYTES_PER_S
    """Bytes per second of the slowest and the fastest uplink."""
    departures_per_node_hour: float = 0.0
    in_bursts: float = 0.3
    step_budget_s: float = 600.0
    slots: int = 0
    offers: bool = False
    """True if peers report their speed and their link rates when they join, and the coordinator knows how many bytes
    are sent per microbatch, as in real runs. Otherwise the coordinator learns speeds from the work, and no link rates.
    """

    @property
    def replicas(self) -> int:
        return self.peers // self.stages

    @property
    def microbatches(self) -> int:
        return self.microbatches_per_replica * self.replicas

    def settings(self) -> Settings:
        tokens = self.workload.tokens * self.microbatches
        return Settings(
            stages=self.stages,
            microbatches=self.microbatches,
            steps=1 << 30,
            tokens_per_step=tokens,
            targets_per_step=tokens,
            optimizer=OptimizerSection(),
            replicas=self.replicas,
            evaluate_every=0,
            evaluate_microbatches=0,
            sample_tokens=0,
            vocabulary=32_000,
            checkpoint_every=1 << 30,
            step_budget_s=self.step_budget_s,
            recruit_after_s=30.0,
            start_timeout_s=60.0,
            heartbeat_s=min(1.0, self.step_budget_s / 30),
            slots=self.slots,
            stage_frames=self._stage_frames() if self.offers else (),
            averages_compressed=self.workload.compressed,
            stage_sums=(self.workload.buckets * self.workload.bucket_bytes,) * self.stages if self.offers else (),
        )

    def _stage_frames(self) -> tuple[float, ...]:
        """Bytes that a peer of each stage sends for a microbatch: activations, gradients, or both."""
        sent = self.workload.frame_bytes
        return tuple(float(sent * ((s + 1 < self.stages) + (s > 0))) for s in range(self.stages))

    def trace(self, seconds: float) -> Preemptions:
        return preemptions(
            self.peers,
            seconds,
            self.seed,
            departures_per_node_hour=self.departures_per_node_hour,
            in_bursts=self.in_bursts,
            least=self.stages,
        )

    def world(self, seconds: float, weigh: Weigh) -> FleetWorld:
        return FleetWorld(
            self.settings(),
            self.workload,
            self.trace(seconds),
            self.seed,
            weigh,
            self.spread,
            self.uplinks,
            self.offers,
        )
