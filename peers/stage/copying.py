"""Writes a version of the stage that a peer trains to a file, while the next step is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, TypeVar

from swarm.compute.held import HeldState
from swarm.events import Event, StepHeldUp
from swarm.state.draft import Draft, write_draft
from swarm.state.error import StateError

TOLD_S = 1.0
"""If a step has waited this many seconds for a copy, an event reports it."""

_Value = TypeVar("_Value")
Log = Callable[[Event], None]


class State(Protocol):
    @property
    def version(self) -> int | None: ...
    def copied(self, copy: Callable[[HeldState], _Value]) -> Future[_Value]: ...


def copy_state(state: State, stage: int, version: int, write: Callable[[HeldState], Draft], emit: Log) -> Future[Draft]:
    """Run `write` in a thread for this version of the live state, and return its result. Call it from the event
    loop; the copy begins before the next step.

    The future raises StateError if the state has reached another version by then, OSError if no thread can be started,
    and the errors of `write`. `emit` gets an event if the next step had to wait.
    """

    def copy(held: HeldState) -> Draft:
        if held.version != version:
            raise StateError("state", f"version {version} is no longer held: this peer is at version {held.version}")
        try:
            return write(held)
        finally:
            if held.waited_s >= TOLD_S:
                emit(StepHeldUp(stage, version, held.waited_s))

    return state.copied(copy)


def copy_to(path: Path, state: State, run_hash: str, stage: int, version: int, emit: Log) -> Future[Draft]:
    """Like `copy_state`, but writes into a file. Also raises OSError."""
    return copy_state(state, stage, version, lambda held: write_draft(path, held, run_hash, stage), emit)
