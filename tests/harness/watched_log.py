"""A coordinator's log for tests of the dashboard's pages. It is generated and contains a hostile peer; tests append to
it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.generated_log import Shape, generate

SHAPE = Shape(peers=8, stages=2, hours=0.25, step_seconds=10, spans=True, kills_per_hour=20)
HOSTILE = "<img src=x onerror=alert(1)>\u0007" + "W" * 30 + "\u202e<i>x<i>"
"""An actor. Where there is little room, pages show the last eight letters of its name."""
SLASHED = "Qm/with/slashes.7"
SCRIPT = "<script>document.title=1</script>"


class WatchedLog:
    """A log that ends now, in the middle of a step, like the log of a run in progress."""

    def __init__(self, home: Path, shape: Shape = SHAPE) -> None:
        self.path = home / "events.jsonl"
        home.mkdir(parents=True, exist_ok=True)
        lines = list(generate(shape))
        self.step = max(line["step"] for line in lines if line["kind"] == "StepDecided")
        self.kill = next(line for line in lines if line["kind"] == "PeerFenced")
        later = time.time() - lines[-1]["at"] - 1
        self.first_at = lines[0]["at"] + later
        self.kill_at = self.kill["at"] + later
        with self.path.open("w") as file:
            for line in lines:
                file.write(json.dumps(line | {"at": line["at"] + later}) + "\n")
        for kind, fields in _hostile():
            self.append(kind, **fields)

    def append(self, kind: str, **fields: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"at": time.time(), "kind": kind, **fields}) + "\n")

    def grow_older(self, seconds: float) -> None:
        """Let everything so far have happened earlier."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.path.write_text("".join(json.dumps(line | {"at": line["at"] - seconds}) + "\n" for line in lines))

    def decide(self, loss: float = 1.25) -> int:
        """Add one more step. Returns its number, from 0."""
        self.step += 1
        self.append(
            "StepDecided",
            term=1,
            step=self.step,
            scale=1.0,
            loss=loss,
            gradient_norm=0.5,
            tokens=4096,
            outcomes=[],
            without=[],
        )
        return self.step


def _hostile() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("PeerSeen", {"actor": HOSTILE}),
        ("PeerSeen", {"actor": SLASHED}),
        ("PeerDescribed", {"actor": HOSTILE, "machine": {"processor": SCRIPT, SCRIPT: HOSTILE, "memory": 1e300}}),
        ("PeerJoined", {"actor": HOSTILE, "stage": None, "reason": SCRIPT}),
        ("PeerRefused", {"peer": HOSTILE, "reason": SCRIPT, "count": 1}),
        ("Sampled", {"version": 7, "prompt": "The\u202e ", "text": SCRIPT}),
    ]
