"""Attacks on real processes: the swarms are those of tests/swarm."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "swarm"))

from conftest import ground, make_group, make_swarm, nursery

__all__ = ["ground", "make_group", "make_swarm", "nursery"]
