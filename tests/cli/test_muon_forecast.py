"""The forecast counts the products of Muon, on a host and on a card."""

from __future__ import annotations

import pytest
from made_up_data import DATA

from peers.run.cards import CARDS
from peers.run.dry_run import dry_run
from peers.run.fleet import HOST_MUON, Kind, Times, muon_flop_per_s
from swarm.compute.memory_table import Mode
from swarm.manifest import RunFile

SHAPE = {
    "vocab_size": 512,
    "dim": 64,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "ffn_dim": 96,
    "context": 64,
    "cuts": [1],
}


@pytest.mark.parametrize("card", [None, "rtx3060"])
def test_the_products_of_muon_take_time(card: str | None) -> None:
    tables = {"model": SHAPE, "optimizer": {"kind": "muon"}, "batch": {"sequence_length": 64}}
    run = RunFile.model_validate(tables).resolve(DATA)
    adamw = run.model_copy(update={"optimizer": run.optimizer.model_copy(update={"kind": "adamw"})})
    mode = Mode() if card is None else Mode("cuda", "bf16")
    rate = HOST_MUON if card is None else muon_flop_per_s(CARDS[card])
    kinds = [
        Kind("", 1 << 40, dry_run(of, mode).stages, [Times(1.0, 2.0)] * 2, muon_flop_per_s=rate) for of in (run, adamw)
    ]
    square, narrow, wide = 5 * 6 * 64**3, 5 * (4 * 32**2 * 64 + 2 * 32**3), 5 * (4 * 64**2 * 96 + 2 * 64**3)
    layer = 2 * square + 2 * narrow + 3 * wide  # queries and output, keys and values, the MLP's three
    for stage, layers in enumerate((1, 3)):
        longer = kinds[0].reduce_s(stage, on_host=False) - kinds[1].reduce_s(stage, on_host=False)
        assert longer == pytest.approx(layers * layer / rate)
