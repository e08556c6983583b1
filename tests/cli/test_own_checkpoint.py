"""When a peer may take up a checkpoint of its own disk again, and when it may not."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from peers.stage.keeper import Keeper
from peers.state_request import StateRequest
from swarm.compute.optimizer import StageState
from swarm.manifest import CodecSection, DataSection, RunManifest, Shard


class Engine:
    """Holds a state of one number at version 7."""

    def snapshot(self) -> Future[StageState]:
        future: Future[StageState] = Future()
        future.set_result(StageState(7, 0, "00" * 32, {"param/w": torch.ones(3)}))
        return future


@pytest.mark.parametrize(("codec", "used"), [("int8", True), ("auto", False)])
async def test_where_codecs_are_chosen_it_may_be_of_steps_that_came_out_otherwise(
    codec: str, used: bool, tmp_path: Path
) -> None:
    shard = (Shard(file="train.bin", sha256="0" * 64, tokens=100_000),)
    data = DataSection(
        tokenizer_sha256="1" * 64, vocab_size=4096, train=shard, heldout=shard, unigram_entropy=7.0, bytes_per_token=3.5
    )
    manifest = RunManifest(data=data, codec=CodecSection(forward="int8", backward=codec))
    unused: Any = None
    keeper = Keeper(manifest, tmp_path, unused, unused, unused, lambda event: None)
    keeper.engine, keeper.stage = Engine(), 0  # type: ignore[assignment]
    saved = await keeper.save(7)
    found = keeper.newest_saved()
    assert (found is not None and (found.stage, found.version, found.digest) == (0, 7, saved)) is used
    assert [chunk async for chunk in keeper.serve(StateRequest(0, 7, checkpoint=True))], "the archive may have it"
