"""Combinations of two kinds of cases: each test run takes every case once, `--long` takes all combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_turn(cases: Mapping[str, Any], ways: Sequence[str] | Mapping[str, Any]) -> list[ParameterSet]:
    """(case, name of a way), for `parametrize`: the ways take turns with the cases; the other pairs are marked `long`.

    Where cases and ways have little to do with each other, this costs as many tests as there are cases, not products.
    """
    names = list(ways)
    return [
        pytest.param(case, way, id=f"{name}-{way}", marks=() if place == number % len(names) else pytest.mark.long)
        for number, (name, case) in enumerate(cases.items())
        for place, way in enumerate(names)
    ]


def only_long(cases: Sequence[ParameterSet]) -> list[ParameterSet]:
    """The same cases, all marked `long`: for what other tests show, too."""
    return [pytest.param(*case.values, id=case.id, marks=pytest.mark.long) for case in cases]
