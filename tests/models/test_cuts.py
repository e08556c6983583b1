import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.manifest import ModelSection
from swarm.models.cuts import Costs, flop_costs, measure_costs, propose_cuts, stage_costs
from swarm.models.kinds import build_stage

COST = st.floats(0.0, 100.0)


@given(layers=st.integers(1, 9), stages=st.integers(1, 9), embed=COST, layer=st.floats(0.01, 10.0), head=COST)
def test_no_other_cut_has_a_cheaper_dearest_stage(layers, stages, embed, layer, head):
    model = ModelSection(layers=layers, cuts=())
    costs = Costs(embed, layer, head)
    if stages > layers:
        with pytest.raises(ValueError, match=f"use 1 to {layers} stages"):
            propose_cuts(model, stages, costs)
        return

    def dearest(cuts):
        return max(stage_costs(ModelSection(layers=layers, cuts=cuts), costs))

    cuts = propose_cuts(model, stages, costs)
    best = min(dearest(other) for other in itertools.combinations(range(1, layers), stages - 1))
    assert len(cuts) == stages - 1
    assert dearest(cuts) == pytest.approx(best)


def test_embedding_and_head_are_not_free():
    model = ModelSection(layers=8, cuts=())
    assert propose_cuts(model, 4, Costs(0, 1, 0)) == (2, 4, 6)
    assert propose_cuts(model, 4, Costs(0, 1, 1.5)) == (2, 4, 7)
    assert propose_cuts(model, 2, Costs(4, 1, 0)) == (2,)


def large_head() -> ModelSection:
    return ModelSection(vocab_size=8192, dim=64, layers=2, heads=2, kv_heads=1, ffn_dim=128, context=64, cuts=(1,))


def test_measured_costs_are_told_apart_by_stage(monkeypatch):
    """Embedding and head are what the first and the last of three like stages take more than the middle one."""
    took = {}  # seconds of each stage

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr("swarm.models.cuts.time", clock)
    forward = type(build_stage(large_head(), 0, seed=0)).forward
    runs = []

    def slow_forward(module, x, tokens):
        step = took.setdefault(module, (0.5, 0.25, 1.0)[len(took) % 3])
        runs.append(module)
        clock.now += step * (10 if 6 <= len(runs) <= 8 else 1)
        return forward(module, x, tokens)

    monkeypatch.setattr(type(build_stage(large_head(), 0, seed=0)), "forward", slow_forward)
    costs = measure_costs(large_head(), 2, 64)
    assert costs == Costs(embed=0.25, layer=0.25, head=0.75)
    first, middle, last = took
    assert runs[:6] == [first, middle, last] * 2, "in turn: one busy moment does not fall on one stage alone"


def test_costs_measured_on_this_machine_are_costs():
    costs = measure_costs(large_head(), 2, 64)
    assert costs.layer > 0 and costs.embed >= 0 and costs.head >= 0


def test_counted_costs_see_a_large_head():
    flop = flop_costs(large_head(), 64)
    assert flop.head > 2 * flop.layer > 2 * flop.embed
