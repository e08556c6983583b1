import re

import pytest
import torch

from swarm.models.kinds import build_stage, count_parameters
from swarm.models.presets import NAMES, preset

UNIT = {"m": 1e6, "b": 1e9}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_a_preset_has_the_size_it_is_named_after(name):
    number, unit = re.fullmatch(r"(\d+)([mb])", name).groups()
    assert count_parameters(preset(name)) == pytest.approx(int(number) * UNIT[unit], rel=0.25)


@pytest.mark.parametrize("name", NAMES[:3])
def test_small_presets_take_a_step(name):
    torch.set_num_threads(1)
    module = build_stage(preset(name, stages=1), 0, seed=0)
    tokens = torch.arange(18).view(2, 9)

    def loss():
        return module.loss_sum(module(tokens[:, :-1]), tokens[:, 1:])

    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    before = loss()
    before.backward()
    optimizer.step()
    assert loss() < before


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="no preset is named '7b': use one of 1m, 2m, 5m"):
        preset("7b")
