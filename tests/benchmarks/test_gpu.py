"""The script that measures on a GPU, on a CPU at small sizes: every phase runs and says what it has shown."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import results
from benchmarks.gpu import __main__ as script
from benchmarks.gpu import caps, exactness, reference, swarm
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found, Phase, without_paths
from peers.run.capacity import MiddleStage
from swarm.compute.graph import count_stages
from swarm.compute.memory_table import Mode

LAB = Lab(torch.device("cpu"), smoke=True)
WITHOUT_PROCESSES = [phase for phase in script.PHASES if phase.name not in ("swarm", "reference", "shapes")]


@pytest.mark.parametrize("phase", WITHOUT_PROCESSES, ids=lambda phase: phase.name)
def test_every_phase_runs_on_a_cpu_and_no_bit_or_byte_is_missed(phase: Phase) -> None:
    found = phase.measure(LAB)
    assert json.loads(json.dumps(found.as_json())) == found.as_json()
    missed = [aim for aim in found.aims if aim.met is False]
    assert not missed
    assert found.aims or phase.name == "ceilings"


@pytest.mark.swarm
def test_a_killed_peer_comes_back_and_replicas_agree() -> None:
    found = swarm.measure(LAB)
    assert [aim.word for aim in found.aims] == ["met"] * 4, found


@pytest.mark.swarm
@pytest.mark.long  # on a CPU, tests/swarm compares many swarms with their references
def test_a_swarm_equals_the_reference_on_its_device() -> None:
    (aim,) = reference.measure(LAB).aims
    assert aim.met is True and aim.found is True, aim


def test_all_phases_fit_into_eight_minutes_and_what_matters_most_into_four() -> None:
    by_name = {phase.name: phase.about_s for phase in script.PHASES}
    assert sum(by_name.values()) <= script.parser().parse_args([]).limit == 480
    names = list(by_name)
    first = names[: names.index("swarm") + 1]
    assert {"exactness", "speed", "memory", "caps", "swarm"} < set(first)
    assert sum(by_name[name] for name in first) <= 240


def test_what_no_longer_fits_is_left_out_and_what_fails_stops_nothing(tmp_path: Path) -> None:
    def fails(lab: Lab) -> Found:
        raise RuntimeError("no kernel image in /home/someone/.cache/kernels/add.so")

    def works(lab: Lab, name: str) -> Found:
        return Found({"file": f"/tmp/{name}/log"}, (Aim.at_least("rate", 2, 1.0), Aim.holds("equal", True)))

    phases = [
        Phase("broken", fails, 1),
        Phase("late", partial(works, name="late"), 1e6),
        Phase("good", partial(works, name="good"), 1),
    ]
    out, found = tmp_path / "found.json", dict[str, Any]()
    failed = script.measure(phases, Lab(torch.device("cpu"), smoke=False), 100.0, found, out)
    assert failed == ["broken"]
    assert found["broken"]["failed"] == "RuntimeError: no kernel image in add.so"
    assert "skipped" in found["late"] and found["good"]["file"] == "log"
    assert json.loads(out.read_text())["good"] == json.loads(json.dumps(found["good"]))
    told = script.summary(found)
    assert "good: MISSED: rate >= 2: 1.0" in told and "good: met: equal" in told and "broken: RuntimeError" in told


def test_a_result_names_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = without_paths({"a": ["at /usr/lib/x.so, line 3", 7], "b": "8 MB/s, 3/4 and https://a.example/b/c"})
    assert told == {"a": ["at x.so, line 3", 7], "b": "8 MB/s, 3/4 and https://a.example/b/c"}
    out = tmp_path / "found.json"
    for words in (["--out", str(out)], [f"--out={out}"]):
        monkeypatch.setattr(results.sys, "argv", ["script", "--smoke", *words, "--limit=9"])
        results.write_results(out, "gpu", found=1)
        assert json.loads(out.read_text())["command"] == "python -m benchmarks.gpu --smoke --limit=9"
        assert not re.search(re.escape(str(tmp_path)), out.read_text())


def test_the_table_of_a_large_stage_follows_from_two_small_ones() -> None:
    table = MiddleStage(partial(caps.run, LAB), Mode())
    assert table.counts(7) == count_stages(caps.run(LAB, 7), Mode())[1]
    room = 16_000_000
    layers = table.largest(room, by_layer=False)
    assert layers > 4
    assert table.memory(layers, by_layer=False).device <= room < table.memory(layers + 1, by_layer=False).device


def test_an_aim_that_cannot_be_shown_is_neither_met_nor_missed() -> None:
    words = [
        Aim.at_least("x", 0.95, 0.95).word,
        Aim.at_least("x", 0.95, 0.949).word,
        Aim.at_most("x", 0.03, 0.031).word,
        Aim.at_most("x", 0.03, float("nan")).word,
        Aim.holds("x", "an error's text").word,
        Aim.cannot("x", "true", "no card").word,
        Aim.at_most("x", 1, 2).of(LAB).word,
    ]
    assert words == ["met", "MISSED", "MISSED", "MISSED", "MISSED", "not shown", "not shown"]


def test_bits_that_are_apart_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "_same_norm", lambda lab: False)
    (aim,) = exactness.measure(LAB).aims
    assert aim.found == ["norm"] and aim.met is False
