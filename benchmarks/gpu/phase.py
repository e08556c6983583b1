"""A phase of the measurement: what it measures, and the aims that its figures are held against."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.lab import Lab

_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.+@-]+/)+")


@dataclass(frozen=True, slots=True)
class Aim:
    """Something that must be shown. `met` None: this device or machine cannot show it; `found` then says why."""

    what: str
    aim: str
    found: Any
    met: bool | None

    @classmethod
    def at_least(cls, what: str, aim: float, found: float) -> Aim:
        return cls(what, f">= {aim:g}", found, math.isfinite(found) and found >= aim)

    @classmethod
    def at_most(cls, what: str, aim: float, found: float) -> Aim:
        return cls(what, f"<= {aim:g}", found, math.isfinite(found) and found <= aim)

    @classmethod
    def holds(cls, what: str, found: object) -> Aim:
        """`found` must be True: anything else, such as the text of an error, is a miss."""
        return cls(what, "true", found, found is True)

    @classmethod
    def cannot(cls, what: str, aim: str, why: str) -> Aim:
        return cls(what, aim, why, None)

    def of(self, lab: Lab) -> Aim:
        """The same; without a verdict if `lab` uses small sizes, whose times say nothing."""
        return dataclasses.replace(self, met=None) if lab.smoke else self

    @property
    def word(self) -> str:
        return {True: "met", False: "MISSED", None: "not shown"}[self.met]


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of a phase, as JSON takes them, and its aims."""

    figures: dict[str, Any]
    aims: tuple[Aim, ...] = ()

    def as_json(self) -> dict[str, Any]:
        aims = [{**dataclasses.asdict(aim), "verdict": aim.word} for aim in self.aims]
        told: dict[str, Any] = without_paths({"aims": aims, **self.figures})
        return told


@dataclass(frozen=True, slots=True)
class Phase:
    """`measure` may raise: the phase then counts as failed, and the next one begins."""

    name: str
    measure: Callable[[Lab], Found]
    about_s: float
    """Seconds that it takes on a large card, by which a phase that no longer fits into the time is left out."""


def without_paths(value: Any) -> Any:
    """The value with folders cut off all file names in its texts: results name no folder of the machine."""
    if isinstance(value, str):
        return _PATH.sub("", value)
    if isinstance(value, dict):
        return {without_paths(key): without_paths(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(each) for each in value]
    return value
