"""Kills one peer from outside in the middle of a step, and measures how long the recovery takes.

The moment comes from the victim's own event log: it has finished some of its microbatches of the open step, and has
others in progress. It is stopped (SIGSTOP) while the log is read once more, so that the moment is certain.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from peers.demo.children import Child
from peers.demo.event_tail import EventTail
from swarm.events import (
    Event,
    FrameRecovered,
    MicrobatchAccumulated,
    MicrobatchForwarded,
    PeerFenced,
    ReduceStarted,
    StageAmended,
    StepMeasured,
)


@dataclass
class Recovery:
    """The consequences of a kill, read from the event logs of all processes. Times are seconds since the kill."""

    step: int
    actor: str
    at: float
    """Unix seconds of the kill."""
    finished: int
    """The microbatches of the step that the victim had accumulated, by its own log."""
    fenced: float | None = None
    stage: int | None = None
    moved: int = 0
    """Microbatches that its siblings took over: all of its own."""
    first_frame: float | None = None
    frames: int = 0
    step_seconds: float | None = None

    @property
    def unfinished(self) -> int:
        return max(0, self.moved - self.finished)

    @property
    def complete(self) -> bool:
        """True if the kill hit a step with finished and unfinished microbatches, work was redone and the step ended."""
        return bool(self.finished and self.unfinished and self.frames and self.step_seconds is not None)

    def observe(self, event: Event, at: float) -> str | None:
        """Process an event of any process. Returns a line to show, if there is one."""
        since = at - self.at
        match event:
            case PeerFenced(actor=self.actor):
                self.fenced, self.stage = since, event.stage
                return f"fenced {_ms(since)} after the kill"
            case StageAmended(stage=self.stage) if self._mine(event.pass_id) and not self.moved:
                self.moved = len(event.moved)
            case FrameRecovered() if self._mine(event.key) and since > 0:
                self.frames += 1
                if self.first_frame is None or since < self.first_frame:
                    self.first_frame = since
                    return f"first recovered frame {_ms(since)} after the kill: {event.key} from {event.source}"
            case StepMeasured(step=self.step):
                self.step_seconds = event.seconds
        return None

    def _mine(self, key: str) -> bool:
        return key.partition("/")[0].rpartition(":")[2] == str(self.step)


class Killing:
    """The kill of one demo. Call `poll` often; it kills once, in the first suitable moment from step `from_step` on."""

    def __init__(self, victim: Child, actor: str, tail: EventTail, from_step: int, share: int) -> None:
        self.victim = victim
        self.recovery: Recovery | None = None
        self.from_step = from_step
        self._actor = actor
        self._tail = tail
        self._enough = max(1, share // 2)
        self._step = -1
        self._forwarded = 0
        self._accumulated = 0
        self._reducing = False

    def poll(self) -> bool:
        """True if the kill happened in this call."""
        if self.recovery is not None or not self._moment():
            return False
        self.victim.send(signal.SIGSTOP)
        if not self._moment():
            self.victim.send(signal.SIGCONT)
            return False
        self.victim.expected = True
        self.recovery = Recovery(self._step, self._actor, time.time(), self._accumulated)
        self.victim.send(signal.SIGKILL)
        return True

    def _moment(self) -> bool:
        for _, event in self._tail.read():
            match event:
                case MicrobatchForwarded():
                    self._enter(event.pass_id)
                    self._forwarded += 1
                case MicrobatchAccumulated():
                    self._enter(event.pass_id)
                    self._accumulated += 1
                case ReduceStarted():
                    self._reducing = True
        in_hand = self._forwarded > self._accumulated and not self._reducing
        return self._step >= self.from_step and self._accumulated >= self._enough and in_hand

    def _enter(self, pass_id: str) -> None:
        """Count anew in each training pass; forward-only passes (`term:step+index`) never offer the moment."""
        step = pass_id.rpartition(":")[2]
        number = int(step) if step.isdigit() else -1
        if number != self._step:
            self._step, self._forwarded, self._accumulated, self._reducing = number, 0, 0, False


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
