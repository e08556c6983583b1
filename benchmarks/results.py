"""Writes the results of a benchmark, with the command and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_results(out: Path | None, benchmark: str, **found: Any) -> None:
    """Write to the JSON file `out`, if one is given. `benchmark`: its module's name in this folder.

    The command is written without `--out`, which names a folder of this machine and changes no result.
    """
    if out is None:
        return
    command = shlex.join(["python", "-m", f"benchmarks.{benchmark}", *_without_out(sys.argv[1:])])
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"command": command, "machine": machine, **found}, indent=2) + "\n")


def _without_out(words: Sequence[str]) -> list[str]:
    kept = [word for word in words if not word.startswith("--out=")]
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return kept
