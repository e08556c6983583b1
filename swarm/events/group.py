"""The group of coordinators: which one leads, and what followers record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity


@dataclass(frozen=True, slots=True)
class LeadershipTaken(Event):
    """This coordinator leads its group."""

    actor: str
    ballot: int
    reached: int
    """Number of members heard lately, itself included."""
    members: int

    def sentence(self) -> str:
        reached = f"{self.reached} of {self.members} coordinators can be reached"
        return f"{self.actor}, this coordinator, leads under ballot {self.ballot}: {reached}"


@dataclass(frozen=True, slots=True)
class LeadershipLost(Event):
    """This coordinator does not lead any more. Its undecided steps are not decided by it."""

    severity: ClassVar[Severity] = "warning"

    actor: str
    ballot: int
    reason: str

    def sentence(self) -> str:
        return f"this coordinator no longer leads: {self.reason}"


@dataclass(frozen=True, slots=True)
class LeaderFollowed(Event):
    """Another coordinator leads. In a peer's log: its orders count now."""

    leader: str
    ballot: int
    """In a peer's log, the term."""

    def sentence(self) -> str:
        return f"coordinator {self.leader} leads now"


@dataclass(frozen=True, slots=True)
class MajorityMissing(Event):
    """Too few coordinators of the group can be reached: nothing can be decided."""

    severity: ClassVar[Severity] = "warning"

    reached: int
    needed: int
    reason: str

    def sentence(self) -> str:
        return f"nothing can be decided: {self.reason}"


@dataclass(frozen=True, slots=True)
class DecisionRecorded(Event):
    """A coordinator that does not lead has the decision on its disk.

    It repeats StepDecided, since the log of a leader that dies may be lost with its last lines.
    """

    term: int
    step: int
    leader: str
    scale: float = 1.0
    loss: float | None = None
    gradient_norm: float | None = None
    tokens: int = 0
    rate: float = 1.0

    def sentence(self) -> str:
        by = f" by {self.leader}" if self.leader else ""
        return f"step {self.step + 1} is decided{by}, and recorded here too"
