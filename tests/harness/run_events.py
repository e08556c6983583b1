"""The events of a simulated run, in the order in which they are emitted."""

from __future__ import annotations

from swarm.events import Event
from swarm.simulation.runs.runner import Run


def events_in(run: Run) -> list[tuple[float, Event]]:
    """A list of (virtual seconds, event) for all events that `run` emits from now on. The list grows while the run
    continues.
    """
    found: list[tuple[float, Event]] = []
    emitted = run.world.watch.emitted

    def note(event: Event) -> None:
        found.append((run.world.now, event))
        emitted(event)

    run.world.watch.emitted = note  # type: ignore[method-assign]
    return found
