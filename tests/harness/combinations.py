"""Combinations of two kinds of cases: each test run takes every case once, `--long` takes all combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_turn(cases: Mapping[str, Any], ways: Sequence[str] | Mapping[str, Any]) -> list[ParameterSet]:
    """Pairs (case, name of a way) for `parametrize`. Each case gets one way, in turn; all other pairs are marked
    `long`.

    If cases and ways hardly depend on each other, this gives as many tests as there are cases, instead of all
    combinations.
    """
    names = list(ways)
    return [
        pytest.param(case, way, id=f"{name}-{way}", marks=() if place == number % len(names) else pytest.mark.long)
        for number, (name, case) in enumerate(cases.items())
        for place, way in enumerate(names)
    ]


def only_long(cases: Sequence[ParameterSet]) -> list[ParameterSet]:
    """The same cases, all marked `long`, because other tests cover them too."""
    return [pytest.param(*case.values, id=case.id, marks=pytest.mark.long) for case in cases]
