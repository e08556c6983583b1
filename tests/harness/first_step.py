"""A coordinator's core in the first step of a single stage with two replicas. The test decides what the peers
report.
"""

from __future__ import annotations

from typing import Any

from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, PassId, StageIndex, StepNumber, Term
from swarm.protocol.io import Received, Send, Tick
from swarm.protocol.settings import Settings
from swarm.simulation.runs.plan import small_settings

COORDINATOR, ONE, TWO, SPARE = Actor("coordinator", 0), Actor("one", 1), Actor("two", 1), Actor("spare", 1)
SETTINGS = small_settings(stages=1, microbatches=4, steps=9, replicas=2, checkpoint_every=100)
PASS = PassId(Term(1), StepNumber(0))
STAGE = StageIndex(0)


class FirstStep:
    """The open step of ONE and TWO. The clock advances by a millisecond with every input."""

    def __init__(self, settings: Settings = SETTINGS, *more: Actor) -> None:
        """`more`: peers that have joined too, and have not reported since."""
        self.settings = settings
        self.core = CoordinatorCore(COORDINATOR, settings, 0, None, None)
        self.now = 0.0
        self.sequence = 0
        self.take(Tick())
        self.take(TermWritten(1))
        for actor in (ONE, TWO, *more):
            self.hear(actor, m.Join(actor))
        for actor in (ONE, TWO):
            self.report(actor)
        assert self.core.phase is Phase.OPEN

    def take(self, event: Any) -> list[Any]:
        self.now += 0.001
        return list(self.core.handle(event, self.now))

    def hear(self, actor: Actor, message: m.Message) -> list[Any]:
        return self.take(Received(actor, message))

    def report(self, actor: Actor, done: int = 0, **fields: Any) -> list[Any]:
        """A peer reports. `done`: bit m for microbatch m, as in a Status."""
        self.sequence += 1
        numbers = (0,) if self.core.open_pass is None else (self.core.open_pass.pass_state.tables[0].number,)
        known = {"version": 0, "pass_id": PASS, "numbers": numbers, "sequence": self.sequence} | fields
        return self.hear(actor, m.Status(actor, STAGE, done=done, **known))


def said(actions: Any, kind: type) -> list[Any]:
    """The messages of a kind that the core has sent."""
    return [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]
