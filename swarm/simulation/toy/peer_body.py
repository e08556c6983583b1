"""What the parts of a simulated peer share: where it stands, what it holds, its queue, and what it does wrong."""

from __future__ import annotations

from typing import Any

from swarm.protocol.ids import Actor
from swarm.simulation.faults.lie import Lie
from swarm.simulation.kernel.compute_queue import ComputeQueue
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.world import World


class PeerBody(Process):
    """`speed`: how many times the usual seconds it computes."""

    world: World

    def __init__(self, world: World, actor: Actor, core: Any, speed: float) -> None:
        super().__init__(world, actor, core)
        self.speed = speed
        self.slowness = speed
        self.stage: int | None = None
        self.version: int | None = None
        self.held_stage: int | None = None
        """The version after the applies that are queued: what the next pass starts from."""
        self.state = 0
        self.accumulator = 0
        self.queue = ComputeQueue(self)
        self.lie: Lie | None = None
        """What it computes wrong."""
        self._swallows: tuple[str, float] = ("", 0.0)
        """What it takes and does nothing with (work, frames), and until when."""

    @property
    def role(self) -> str:
        """Where in the pipeline this peer stands."""
        if self.stage is None:
            return "standby"
        if self.stage == 0:
            return "first"
        return "last" if self.stage == self.world.settings.stages - 1 else "middle"

    @property
    def stage_held(self) -> int:
        """Its stage, where it must have one."""
        assert self.stage is not None
        return self.stage

    @property
    def label(self) -> str:
        where = "standby" if self.stage is None else f"s{self.stage} v{self.version}"
        return f"{self.name} ({where})"

    def swallow(self, what: str, until: float) -> None:
        """A black hole: it goes on saying that it is there, and nothing comes of what it accepts.

        `work`: what it is to compute; `frames`: what comes from other peers.
        """
        self._swallows = what, until
        self.disturbed_at = until

    def swallowed(self, what: str) -> bool:
        return self._swallows[0] == what and self.world.now < self._swallows[1]

    @property
    def is_liar(self) -> bool:
        """Whether it does wrong at the version it holds."""
        return self.lie is not None and (self.version or 0) >= self.lie.since

    def lies(self, what: str) -> bool:
        """Whether it gives others something wrong just now."""
        lie = self.lie
        if lie is None or not self.is_liar or lie.about != what:
            return False
        if lie.shy and len(self.core.pass_run.microbatches.table.roster) < self.world.settings.replicas:
            return False
        return self.world.random.random() < lie.how_often

    def number(self, payload: object) -> int:
        """The toy model's tensor that a payload is. Raises Violation."""
        if not isinstance(payload, int):
            raise Violation("contract", f"{self.label} was given the payload {payload!r}")
        return payload
