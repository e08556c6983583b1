"""The base of a simulated peer: its place in the pipeline, its state, its compute queue, and its misbehaviour."""

from __future__ import annotations

from typing import Any

from swarm.protocol.ids import Actor, Attempt
from swarm.simulation.faults.lie import Lie
from swarm.simulation.kernel.compute_queue import ComputeQueue
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.world import World


class PeerBody(Process):
    """`speed`: factor of the usual computing time."""

    world: World

    def __init__(self, world: World, actor: Actor, core: Any, speed: float) -> None:
        super().__init__(world, actor, core)
        self.speed = speed
        self.slowness = speed
        self.stage: int | None = None
        self.version: int | None = None
        self.held_stage: int | None = None
        """The version after the queued applies, with which the next pass starts."""
        self.began_to_load_at = 0.0
        """The time when it began to load the first state of its stage."""
        self.state = 0
        self.accumulator = 0
        self.queue = ComputeQueue(self)
        self.lie: Lie | None = None
        """The misbehaviour of this peer, if it is an insider."""
        self.has_lied = False
        self.deceived = False
        """True if the state that it loaded is false. It is not blamed for what follows."""
        self.prepared: tuple[Attempt | None, float] = (None, 0.0)
        """The attempt whose sums a peer reports late, and when it had them."""
        self._swallows: tuple[str, float] = ("", 0.0)
        """The kind of input that it swallows (work, frames), and until when."""

    @property
    def role(self) -> str:
        """The peer's place in the pipeline."""
        if self.stage is None:
            return "standby"
        if self.stage == 0:
            return "first"
        return "last" if self.stage == self.world.settings.stages - 1 else "middle"

    @property
    def stage_held(self) -> int:
        """The stage that this peer holds. It must hold one."""
        assert self.stage is not None
        return self.stage

    @property
    def label(self) -> str:
        where = "standby" if self.stage is None else f"s{self.stage} v{self.version}"
        return f"{self.name} ({where})"

    @property
    def pace(self) -> float:
        """The factor of computing time that the peer reports."""
        return self.speed if self.lies("slow") else self.slowness

    def swallow(self, what: str, until: float) -> None:
        """Act as a black hole: continue to report presence, but do nothing with the input.

        `work`: its computations; `frames`: messages from other peers.
        """
        self._swallows = what, until
        self.disturbed_at = until

    def swallowed(self, what: str) -> bool:
        return self._swallows[0] == what and self.world.now < self._swallows[1]

    @property
    def is_liar(self) -> bool:
        """True if it misbehaves at the version that it holds."""
        return self.lie is not None and (self.version or 0) >= self.lie.since

    def lies(self, what: str) -> bool:
        """Return True if it misbehaves in this way now."""
        lie = self.lie
        if lie is None or not self.is_liar or lie.about != what:
            return False
        if lie.shy and len(self.core.pass_run.microbatches.table.roster) < self.world.settings.replicas:
            return False
        lied = self.world.random.random() < lie.how_often
        self.has_lied |= lied
        if lied:
            self.world.watch.audits.lied(self.actor, what)
        return lied

    @property
    def keeps_its_state(self) -> bool:
        """True if it gives its state, checkpoints and sums to nobody now."""
        return self.lies("keeping")

    def given(self) -> int:
        """The state that it gives to others."""
        return self.state ^ 1 if self.lies("gift") else self.state

    def number(self, payload: object) -> int:
        """The payload as the toy model's tensor. Raises Violation."""
        if not isinstance(payload, int):
            raise Violation("contract", f"{self.label} was given the payload {payload!r}")
        return payload
