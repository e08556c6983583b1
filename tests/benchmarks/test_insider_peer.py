"""The benchmark's insiders misbehave, and do not fail: a peer that fails shows nothing about lies."""

from __future__ import annotations

import pytest
import torch

from benchmarks.insider_peer import FACTORS, misbehave
from swarm.compute.layout import Layout
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection


@pytest.mark.parametrize("kind", ["negated", "a quarter more", "exaggerated"])
def test_its_gradients_are_false_from_a_step_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accumulator, "add_one", Accumulator.add_one)  # restored afterwards
    misbehave(kind, since=3)
    layout = Layout(("all",), (torch.Size((4,)),), with_loss=False)
    sums = Accumulator(layout, SumSection(), torch.device("cpu"))
    added = []
    for step in (2, 3):
        before = sums.numbers(slice(0, 4)).clone()
        sums.add([torch.ones(4)], step=step, microbatch=0)
        added.append((sums.numbers(slice(0, 4)) - before).double())
    torch.testing.assert_close(added[1], added[0] * FACTORS[kind])
