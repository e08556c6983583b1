"""A story: events of a coordinator, written by a test and folded into a state, with a clock that advances between
them.
"""

from __future__ import annotations

from typing import Any

from peers.fold import RunState, apply, views
from swarm import events as e


class Story:
    """The events of a coordinator with two stages: a.1 and b.1 serve stage 0, c.1 stage 1."""

    def __init__(self) -> None:
        self.state = RunState()
        self.at = 100.0
        self.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(1, -1))
        for actor, stage in (("a.1", 0), ("b.1", 0), ("c.1", 1), ("d.1", None)):
            self.tell(e.PeerSeen(actor), e.PeerJoined(actor, stage, "it came"))
        self.tell(
            e.TableChanged("1:0", 0, 0, ["a.1", "b.1"], [3.0, 1.0], [3.0, 1.0], "opens"),
            e.TableChanged("1:0", 1, 0, ["c.1"], [1.0], [2.0], "opens"),
        )

    def tell(self, *events: e.Event, source: str = "coordinator") -> Story:
        for event in events:
            apply(self.state, event, self.at, source)
        return self

    def wait(self, seconds: float) -> Story:
        self.at += seconds
        return self

    def open(self, step: int, term: int = 1) -> Story:
        return self.tell(e.PassOpened(f"{term}:{step}", "train", [2, 1], 8))

    def decide(self, step: int) -> Story:
        return self.tell(e.StepDecided(1, step, 1.0, 5.0, 1.0, 800, [], []))

    def steps(self, first: int, last: int) -> Story:
        for step in range(first, last + 1):
            self.open(step).wait(4.0).decide(step)
        return self

    @property
    def faults(self) -> list[dict[str, Any]]:
        return list(reversed(views.faults_view(self.state)["faults"]))

    @property
    def lost(self) -> dict[str, Any]:
        lost: dict[str, Any] = views.faults_view(self.state)["lost"]
        return lost
