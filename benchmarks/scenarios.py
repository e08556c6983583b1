"""Plays scenarios of `swarm-peer chaos` for the benchmarks that measure real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]
"""A report of `swarm-peer chaos --json`."""
IN_CI = (
    "clock-skew",
    "full-disk",
    "hang-and-partition",
    "nat-joins",
    "partition",
    "slow-peer",
)
"""Scenarios of tests/internet that each run of the test suite plays; `python -m benchmarks.faults` plays others too."""
IN_LONG_CI = (
    "bootstrap-dies",
    "ctrl-c",
    "everything-dies",
    "far-away",
    "kills",
    "last-replica",
    "leader",
    "liars",
    "nat",
    "nat-nobody",
    "soak-short",
)
"""Further scenarios that the test suite plays with `--long`. Others, a relay and tests/swarm show the same in a smaller
form.
"""


def play(scenarios: Sequence[Path], folder: Path) -> Iterator[Report]:
    """Yield the reports as they come. Progress is shown on stderr. Homes and logs are in `folder`, by scenario.

    SIGTERM ends the swarm too, as Ctrl-C does by itself. Raises RuntimeError if the command ends without all reports.
    """
    words = ["chaos", *map(str, scenarios), "--json", "--dir", str(folder)]
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    count = 0
    with subprocess.Popen([sys.executable, "-P", "-m", "peers", *words], stdout=subprocess.PIPE, text=True) as chaos:
        assert chaos.stdout is not None
        try:
            for line in chaos.stdout:
                yield json.loads(line)
                count += 1
        except SystemExit:
            chaos.terminate()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    if count < len(scenarios):
        ended = f"swarm-peer chaos ended with {chaos.returncode}"
        raise RuntimeError(f"{ended} after {count} of {len(scenarios)} scenarios; its output says why")
