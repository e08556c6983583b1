"""Writes the results of a benchmark, with the command and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any


def write_results(out: Path | None, benchmark: str, **found: Any) -> None:
    """Write to the JSON file `out`, if one is given. `benchmark`: its module's name in this folder."""
    if out is None:
        return
    command = shlex.join(["python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]])
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"command": command, "machine": machine, **found}, indent=2) + "\n")
