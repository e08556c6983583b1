"""Joins the decision of a step with its figures, which are measured a little later."""

from __future__ import annotations

from swarm.events import Event, ProcessStopped, RunFinished, StepDecided, StepMeasured

Pair = tuple[float, StepDecided, StepMeasured | None]


class StepPairs:
    """Call it with every event. It returns each decided step once, with its figures if they came in time."""

    def __init__(self) -> None:
        self._waiting: tuple[float, StepDecided] | None = None

    def take(self, event: Event, at: float) -> list[Pair]:
        """(time, decision, figures) of the steps that `event` completes."""
        match event:
            case StepDecided():
                before = self._release()
                self._waiting = (at, event)
                return before
            case StepMeasured() if self._waiting is not None and self._waiting[1].step == event.step:
                decided, self._waiting = self._waiting[1], None
                return [(at, decided, event)]
            case ProcessStopped() | RunFinished():
                return self._release()
        return []

    def _release(self) -> list[Pair]:
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None else [(*waiting, None)]
