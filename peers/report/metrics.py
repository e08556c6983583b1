"""Writes figures of steps and evaluations as JSON lines, for plots. It is a listener of the event log.

{"at": …, "step": 3, "term": 1, "loss": …, "gradient_norm": …, "scale": …, "tokens": …,
 "seconds": …, "tokens_per_second": …, "efficiency": …, "replicas": [2, 2]}
{"at": …, "version": 10, "heldout_loss": …, "heldout_targets": …}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from peers.report.step_pairs import StepPairs
from swarm.events import Evaluated, Event, mend_torn_tail


class Metrics:
    """Appends the figures to `path`. Call it with each event (`EventLog.listeners`)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        mend_torn_tail(path)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._pairs = StepPairs()

    def __call__(self, event: Event, at: float) -> None:
        for decided_at, decided, measured in self._pairs.take(event, at):
            figures: dict[str, Any] = {
                "at": decided_at,
                "step": decided.step,
                "term": decided.term,
                "loss": decided.loss,
                "gradient_norm": decided.gradient_norm,
                "scale": decided.scale,
                "tokens": decided.tokens,
            }
            if measured is not None:
                figures |= {
                    "seconds": measured.seconds,
                    "tokens_per_second": measured.tokens_per_second,
                    "efficiency": measured.efficiency,
                    "replicas": measured.replicas,
                }
            self._write(figures)
        if isinstance(event, Evaluated):
            self._write(
                {"at": at, "version": event.version, "heldout_loss": event.loss, "heldout_targets": event.targets}
            )

    def _write(self, figures: dict[str, Any]) -> None:
        self._file.write(json.dumps(figures, separators=(",", ":")).encode() + b"\n")
