"""What a machine can do is measured once for each model, device and release, and kept in its home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_data import DATA

from peers.stage import means
from peers.stage.means import LINK_LASTS_S, MeansFile
from swarm.compute.arithmetic import Arithmetic
from swarm.compute.precision import Precision
from swarm.compute.speed import Speed
from swarm.manifest import RunFile, RunManifest

ONE = Arithmetic.of("cpu", 1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Arithmetic]:
    """What was measured."""
    done: list[Arithmetic] = []

    def measure(manifest: RunManifest, arithmetic: Arithmetic, memory: int | None) -> Speed:
        done.append(arithmetic)
        return Speed(0.1, 0.2, 3.0 / len(done))

    monkeypatch.setattr(means, "measure_speed", measure)
    return done


def test_speed_is_measured_once_for_each_model_and_number_of_threads(
    tmp_path: Path, measured: list[Arithmetic], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, small = MeansFile(tmp_path / "means.json"), RunFile().resolve(DATA)
    assert kept.speed(small, ONE) == (Speed(0.1, 0.2, 3.0), True)
    assert MeansFile(tmp_path / "means.json").speed(small, ONE) == (Speed(0.1, 0.2, 3.0), False)
    kept.speed(small, Arithmetic.of("cpu", 2))
    kept.speed(small.model_copy(update={"model": small.model.model_copy(update={"dim": 384})}), ONE)
    assert measured == [ONE, Arithmetic.of("cpu", 2), ONE]
    halved = Arithmetic.of("cpu", 1, Precision.BF16)
    assert kept.speed(small, halved)[1] and not kept.speed(small, halved)[1]
    monkeypatch.setattr(means, "version", lambda name: "another release")
    assert kept.speed(small, ONE)[1]


@pytest.mark.parametrize("text", ["", "[]", '{"speed": 3}', '{"speed": {}, "link": {"c": {"up": "x"}}}'])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, measured: list[Arithmetic], text: str) -> None:
    path = tmp_path / "means.json"
    path.write_text(text)
    assert MeansFile(path).link("c") is None
    assert MeansFile(path).speed(RunFile().resolve(DATA), ONE)[1]
    assert not MeansFile(path).speed(RunFile().resolve(DATA), ONE)[1]
    assert json.loads(path.read_text())


def test_a_link_is_known_for_a_day(tmp_path: Path) -> None:
    now = [1000.0]
    kept = MeansFile(tmp_path / "means.json", lambda: now[0])
    assert kept.link("c") is None
    kept.keep_link("c", None, 1e6)
    now[0] += LINK_LASTS_S - 1
    found = kept.link("c")
    assert found is not None and (found.up, found.down) == (None, 1e6)
    assert kept.link("another") is None
    now[0] += 2
    assert kept.link("c") is None
