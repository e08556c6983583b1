"""Events of a group of coordinators: which one leads, and what its followers record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity


@dataclass(frozen=True, slots=True)
class LeadershipTaken(Event):
    """This coordinator now leads its group."""

    actor: str
    ballot: int
    reached: int
    """Number of group members heard recently, including itself."""
    members: int

    def sentence(self) -> str:
        reached = f"{self.reached} of {self.members} coordinators can be reached"
        return f"{self.actor}, this coordinator, leads, elected under ballot number {self.ballot}: {reached}"


@dataclass(frozen=True, slots=True)
class LeadershipLost(Event):
    """This coordinator no longer leads. It does not decide its open steps."""

    severity: ClassVar[Severity] = "warning"

    actor: str
    ballot: int
    reason: str

    def sentence(self) -> str:
        return f"this coordinator no longer leads: {self.reason}"


@dataclass(frozen=True, slots=True)
class LeaderFollowed(Event):
    """Another coordinator now leads. In a peer's log: the peer now follows this coordinator."""

    leader: str
    ballot: int
    """The number of the election (the ballot) that made it the leader. In a peer's log, the term."""

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
class LogCopyStopped(Event):
    """This coordinator no longer copies the log of another one. Its dashboard then lacks what only that log has."""

    severity: ClassVar[Severity] = "warning"

    other: str
    reason: str

    def sentence(self) -> str:
        return f"the copy of the log of coordinator {self.other} does not grow: {self.reason}"


@dataclass(frozen=True, slots=True)
class DecisionRecorded(Event):
    """A coordinator that does not lead has written the decision to its disk.

    The event has the content of StepDecided, because the last lines of the leader's log may be lost with the leader.
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
