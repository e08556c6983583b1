"""Prints the events of a running process as lines for people. It is a listener of the event log.

There is one line for each step; other events come between them, with reasons. The lines are coloured on a terminal and
plain text elsewhere.
"""

from __future__ import annotations

import json
import math
import time

from rich.console import Console
from rich.text import Text

from peers.report.step_pairs import StepPairs
from swarm import events as e
from swarm.events import step_line
from swarm.manifest import DataSection

_NEWS = (
    e.ProcessStarted,
    e.ProcessStopped,
    e.MachineMeasured,
    e.FreedMemoryReturned,
    e.LayersRecomputed,
    e.OffloadLimited,
    e.SendQueuesUnlimited,
    e.SlowAfterPauses,
    e.CoordinatorStarted,
    e.StillDialling,
    e.CoordinatorBack,
    e.LeadershipTaken,
    e.LeaderFollowed,
    e.DecisionRecorded,
    e.PeerJoined,
    e.PeerMoved,
    e.CatchUpForecast,
    e.SeatAsked,
    e.SeatTaken,
    e.SeatLeft,
    e.PeerLeaving,
    e.PeerPaused,
    e.PeerResumed,
    e.StateFetched,
    e.CodecChosen,
    e.ReduceCancelled,
    e.StageAmended,
    e.MicrobatchesReleased,
    e.RouteChanged,
    e.RunFinished,
    e.ControlGiven,
    e.ControlRefused,
    e.CheckpointArchived,
    e.Sampled,
)


class Progress:
    """Prints the events of one process. Call it with each event (`EventLog.listeners`). `steps` and `data` of the
    manifest, if known, add context.
    """

    def __init__(
        self, console: Console, *, steps: int | None = None, data: DataSection | None = None, label: str = ""
    ) -> None:
        self._console = console
        self._label = label
        """The name of the process, if several share a terminal."""
        self._steps = steps
        self._data = data
        self._pairs = StepPairs()
        self._recovered: str | None = None
        self._is_peer = False
        self._applied_at: float | None = None

    def __call__(self, event: e.Event, at: float) -> None:
        if isinstance(event, e.ProcessStarted):
            self._is_peer = event.role == "peer"
        for decided_at, decided, measured in self._pairs.take(event, at):
            self._print(decided_at, step_line(decided, measured, self._steps), "bold" if not decided.without else "red")
        if isinstance(event, e.ControlGiven) and event.command in ("steps", "stop_after"):
            self._steps = int(event.value)
        match event:
            case e.StepApplied() if self._is_peer:
                self._applied(event, at)
            case e.Evaluated():
                self._print(at, event.describe() + self._compared(event.loss), "cyan")
            case e.FrameRecovered():
                self._first_recovery(event, at)
            case _ if is_trouble(event):
                self._print(at, event.describe(), "yellow")
            case _ if isinstance(event, _NEWS):
                self._print(at, event.describe(), "cyan" if isinstance(event, e.Sampled) else "")

    def _applied(self, event: e.StepApplied, at: float) -> None:
        """Print a peer's line for a step. Only the coordinator knows loss and speed."""
        now = time.monotonic()  # the clock of `at` may be set meanwhile
        took = "" if self._applied_at is None else f", {now - self._applied_at:.1f} s after the one before"
        self._applied_at = now
        self._print(at, f"step {event.step + 1} applied{took}", "bold")

    def _first_recovery(self, event: e.FrameRecovered, at: float) -> None:
        """A pass may recover hundreds of frames: report only the first."""
        of_pass = event.key.partition("/")[0]
        if of_pass != self._recovered:
            self._recovered = of_pass
            self._print(at, event.describe(), "green")

    def _compared(self, loss: float) -> str:
        if self._data is None:
            return ""
        if self._data.kind == "images":
            return f"; entropy of the classes {self._data.unigram_entropy:.4f}"
        bits = loss / math.log(2) / self._data.bytes_per_token
        return f", {bits:.3f} bits per byte; unigram entropy {self._data.unigram_entropy:.4f}"

    def _print(self, at: float, line: str, style: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        text = Text.assemble((clock, "dim"), "  ", (self._label, "dim"), (line, style))
        self._console.print(text, soft_wrap=True)


def print_json(event: e.Event, at: float) -> None:
    """A listener for programs: prints every event as a JSON line."""
    print(json.dumps(e.to_record(event, at), separators=(",", ":")), flush=True)


def is_trouble(event: e.Event) -> bool:
    """True if the event needs the attention of the person in charge of the run."""
    return event.severity == "warning"
