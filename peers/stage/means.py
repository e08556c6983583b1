"""The speed, memory and link of this machine. They are measured before a peer joins, and kept in its home.

Measuring costs seconds, so a result is used again while it stays valid: for the same model, microbatch, device, number
of threads and release. The result for a link is valid for the same coordinator, for a day.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from swarm.atomic import atomic_file, write_whole
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.speed import Speed, measure_speed
from swarm.manifest import RunManifest

LINK_LASTS_S = 86_400.0
_MAX_KEPT = 16
"""Number of measurements of other models and devices that are kept besides the newest."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The measured speed of a link, up and down. Bytes/s; None: could not be measured."""

    up: float | None
    down: float | None
    measured_at: float
    """Unix seconds."""


class MeansFile:
    """The file `means.json` of a home. If the file cannot be read, the speeds are measured again and it is replaced."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def speed(self, manifest: RunManifest, arithmetic: Arithmetic, memory: int | None = None) -> tuple[Speed, bool]:
        """The stored speed; otherwise it is measured now in `memory` bytes, which blocks for seconds. Also return True
        if it was measured.

        Raises the errors of `measure_speed`.
        """
        key = _speed_key(manifest, arithmetic)
        known = self._read("speed").get(key)
        if known is not None:
            try:
                return Speed(**{name: float(known[name]) for name in Speed.__slots__}), False
            except (KeyError, TypeError, ValueError):
                pass
        found = measure_speed(manifest, arithmetic, memory=memory)
        self._keep("speed", key, asdict(found))
        return found, True

    def link(self, coordinator: str) -> LinkSpeed | None:
        """The speed of the link to this coordinator, if it was measured in the last day."""
        known = self._read("link").get(coordinator)
        try:
            found = LinkSpeed(**known) if isinstance(known, dict) else None
            if found is None or not 0 <= self._clock() - found.measured_at < LINK_LASTS_S:
                return None
            return LinkSpeed(_rate(found.up), _rate(found.down), found.measured_at)
        except (TypeError, ValueError):
            return None

    def keep_link(self, coordinator: str, up: float | None, down: float | None) -> LinkSpeed:
        """Store a measurement. If both directions failed, store nothing, so that the next start measures again."""
        found = LinkSpeed(up, down, self._clock())
        if up is not None or down is not None:
            self._keep("link", coordinator, asdict(found))
        return found

    def _read(self, table: str) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))[table]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _keep(self, table: str, key: str, value: dict[str, object]) -> None:
        tables = {name: self._read(name) for name in ("speed", "link")}
        tables[table].pop(key, None)
        tables[table] = dict([*tables[table].items(), (key, value)][-_MAX_KEPT:])
        with atomic_file(self._path) as file:
            write_whole(file, json.dumps(tables, indent=1).encode())


def _speed_key(manifest: RunManifest, arithmetic: Arithmetic) -> str:
    """All inputs that the speed depends on, in one readable line."""
    import torch

    model = json.dumps(manifest.model.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    shape = f"{manifest.batch.sequences}x{manifest.batch.sequence_length}"
    releases = f"swarm-peer {version('swarm-peer')}, torch {torch.__version__}"
    return f"{arithmetic}, {releases}, {shape} of {model}"


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 1.0 <= value <= 1e12 else None
