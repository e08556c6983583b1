"""What the fleet's coordinator has reported: steps, and what disturbed them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from swarm.events import Event, PassOpened, StageAmended, StepDecided
from swarm.simulation.kernel.violation import Violation


@dataclass(frozen=True, slots=True)
class Step:
    opened_at: float
    decided_at: float
    sealed_at: float
    """The time when the last microbatch was accumulated. What follows is the reduce and the decision."""
    replicas: tuple[int, ...]
    """Number of replicas of each stage when the step was opened."""

    @property
    def seconds(self) -> float:
        return self.decided_at - self.opened_at


class Journal:
    """The reports of one run: `steps` in order, and `counts` of all events by kind."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.counts: Counter[str] = Counter()
        self.moved = 0
        """Number of microbatches that were given to another replica."""
        self.accumulated_at = 0.0
        """The time when a peer last accumulated a microbatch."""
        self.reasons: Counter[str] = Counter()
        """The reasons of new tables, without their numbers."""
        self._opened: tuple[float, tuple[int, ...]] = (0.0, ())

    def note(self, event: Event, now: float) -> None:
        self.counts[type(event).__name__] += 1
        match event:
            case PassOpened(pass_kind="train"):
                self._opened = (now, tuple(event.replicas))
            case StageAmended():
                self.moved += len(event.moved)
                words = event.reason.split(": ", 1)[-1].split()
                self.reasons[" ".join(word for word in words if not any(c.isdigit() for c in word))] += 1
            case StepDecided():
                if event.step != len(self.steps):
                    raise Violation("atomic", f"step {event.step} is decided after {len(self.steps)} steps")
                self.steps.append(Step(self._opened[0], now, self.accumulated_at, self._opened[1]))
            case _:
                pass
