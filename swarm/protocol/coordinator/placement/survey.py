"""The result of looking at all members between two passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.protocol.ids import Actor


@dataclass(frozen=True, slots=True)
class NewTerm:
    """All orders given so far become void. `rollback_to`: the version from which the history continues, if it is a
    rollback.
    """

    rollback_to: int | None = None


@dataclass(slots=True)
class Survey:
    """The result of `Placement.survey`: whether every stage is held, and by which members."""

    rosters: list[list[Actor]]
    """For each stage, three kinds of actors: those that hold the version, those that can apply the last decision, and
    those in `promotion`.
    """
    promotion: set[Actor] = field(default_factory=set)
    """Listeners that lack only the last decision. Donors keep the sums of that step for them."""
    ready: bool = True
    """True if the next pass can open with these rosters."""
    waiting: str = ""
    """The reason why the next pass waits, if an event should report it."""
    new_term: NewTerm | None = None
    deserted: list[int] = field(default_factory=list)
    """Stages whose members have all been paused for a long time."""

    @property
    def actors(self) -> list[Actor]:
        """All actors of the rosters."""
        return [actor for roster in self.rosters for actor in roster]

    def wait(self, reason: str) -> None:
        self.ready = False
        self.waiting = self.waiting or reason
