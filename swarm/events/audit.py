"""Events of audits: steps computed again, and states that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity


@dataclass(frozen=True, slots=True)
class StepAudited(Event):
    """Other peers computed a step again, and the result was the same (`agreed`) or different each time."""

    severity: ClassVar[Severity] = "warning"

    step: int
    agreed: bool

    def sentence(self) -> str:
        outcome = "with the same result" if self.agreed else "with a different result each time; no culprit was found"
        return f"other peers computed step {self.step + 1} again, {outcome}"


@dataclass(frozen=True, slots=True)
class PeerExpelled(Event):
    """A peer is expelled from the run for good: its results differ from its siblings', or the organiser expelled it."""

    severity: ClassVar[Severity] = "warning"

    actor: str
    stage: int
    step: int
    reason: str

    def sentence(self) -> str:
        return f"{self.actor} is expelled from the run at step {self.step + 1}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StateDrifted(Event):
    """Replicas computed a step with different states. The peers in `reload` load the state again, and the step is
    repeated.
    """

    severity: ClassVar[Severity] = "warning"

    step: int
    stage: int
    believed: list[str]
    reload: list[str]
    """Peers that must load the state of the other replicas."""
    reason: str

    def sentence(self) -> str:
        others = ", ".join(self.reload)
        what = f"step {self.step + 1}: the state of stage {self.stage} at {others} differs from its siblings'"
        return f"{what}; they load the state again and the step is repeated: {self.reason}"


@dataclass(frozen=True, slots=True)
class StateCompared(Event):
    """The state of a new replica was compared with its siblings' before it got work.

    If the states are not `equal`, the new replica loads its state again.
    """

    actor: str
    stage: int
    version: int
    equal: bool
    reason: str

    def sentence(self) -> str:
        what = "equals its siblings'" if self.equal else "differs from its siblings'; it is loaded again"
        return f"the state of stage {self.stage} at {self.actor} {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CheckpointsDiffer(Event):
    """Replicas have saved different states of one version. `copies`: the replicas that saved each state, by digest."""

    severity: ClassVar[Severity] = "warning"

    version: int
    stage: int
    copies: dict[str, list[str]]
    """{digest: replicas}"""

    def sentence(self) -> str:
        copies = "; ".join(f"{digest[:16]} of {', '.join(whose)}" for digest, whose in self.copies.items())
        return f"checkpoint {self.version} of stage {self.stage} differs among its replicas: {copies}"


@dataclass(frozen=True, slots=True)
class RoundsOtherwise(Event):
    """This device failed the self-test at the start, because it rounds optimizer steps in another way.

    The CPU computes the optimizer steps instead.
    """

    severity: ClassVar[Severity] = "warning"

    device: str

    def sentence(self) -> str:
        return f"{self.device} rounds differently from other devices: the CPU computes the optimizer steps instead"
