"""Buckets that SQLite computes equal those that are computed from all steps."""

from __future__ import annotations

import math
import random

import pytest

from peers.dashboard.history import series
from peers.dashboard.history.store import Store

STEP = f"INSERT OR REPLACE INTO steps VALUES ({','.join('?' * 14)})"


def filled(chance: random.Random, steps: int) -> Store:
    """Steps with equal times, pauses, missing figures and, now and then, times that go back."""
    store, at = Store(None), chance.choice((0.0, 100.0, 1_795_000_000.123))

    def some(value: float) -> float | None:
        return None if chance.random() < rare else value

    rare = chance.choice((0.0, 0.1, 0.97))
    for step in range(steps):
        at += chance.choice((0.0, 1.0, chance.random(), chance.random() * 1e-6))
        at += 500.0 * (chance.random() < 0.003) - 3.0 * (chance.random() < 0.01)
        figures = [some(chance.gauss(3.0, 1.0)) for _ in range(7)]
        store.add(STEP, (step, f"1:{step}", at - 1, at, *figures, chance.randrange(9), 1000 * step, 8000))
    store.commit()
    return store


def spans(store: Store, chance: random.Random) -> list[tuple[float, float]]:
    first, last = store.rows("SELECT min(decided_at), max(decided_at) FROM steps")[0]
    inner = sorted(chance.uniform(first, last) for _ in range(2))
    return [(first, last), (first - 9.0, last + 1.0), (inner[0], inner[1]), (first, first), (last, first)]


@pytest.mark.parametrize("seed", range(12))
def test_they_are_the_same_for_random_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    store = filled(chance, chance.randrange(1, 1500))
    for start, end in spans(store, chance):
        for points in (1, 7, chance.randrange(1, 400), 1000):
            for name in series.NAMES:
                monkeypatch.setattr(series, "DENSE", math.inf)
                whole = series.series(store, name, start, end, points)
                monkeypatch.setattr(series, "DENSE", -math.inf)
                assert series.series(store, name, start, end, points) == whole
    store.close()


def test_they_are_the_same_for_times_on_the_edges_of_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the rounding of a division and of a product differ."""
    store, start, end = Store(None), 0.3, 1_000.7
    edges = {points: [start + number * (end - start) / points for number in range(points)] for points in (7, 49, 300)}
    times = {near for each in edges.values() for at in each for near in (math.nextafter(at, 0.0), at)}
    for step, at in enumerate(sorted(times)):
        store.add(STEP, (step, f"1:{step}", at - 1, at, *[float(step)] * 7, 1, 0, 0))
    store.commit()
    for points in edges:
        monkeypatch.setattr(series, "DENSE", math.inf)
        whole = series.series(store, "loss", start, end, points)
        monkeypatch.setattr(series, "DENSE", -math.inf)
        assert series.series(store, "loss", start, end, points) == whole
    store.close()


def test_a_page_of_curves_reads_the_steps_once_and_a_new_step_is_seen() -> None:
    store = filled(random.Random(1), 2000)
    asked: list[str] = []
    store._base.set_trace_callback(asked.append)
    span = 0.0, 1e10
    first = series.series(store, "loss", *span, 10)
    assert len(first["t"]) and any("min(loss)" in query for query in asked)
    asked.clear()
    for name in ("tokens_per_second", "step_seconds", "peers"):
        series.series(store, name, *span, 10)
    assert len(asked) <= 6 and not any("min(" in query for query in asked)
    store.add(STEP, (2000, "1:2000", 1e10, 1e10, *[0.5] * 7, 1, 0, 0))
    store.commit()
    assert series.series(store, "loss", *span, 10)["last"][-1] == 0.5
    store.close()
