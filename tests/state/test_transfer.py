"""A shard as chunks: what arrives is what was sent, or nothing."""

import dataclasses
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from given_state import saved
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.state.checkpoints import CheckpointStore
from swarm.state.error import StateError
from swarm.state.layout import ShardMeta, state_shapes
from swarm.state.room import SPARE_BYTES
from swarm.state.transfer import (
    CHUNK_BYTES,
    HEADER_BYTES,
    ChunkReader,
    ShardReceiver,
    TransferHeader,
    iter_chunks,
    iter_file_chunks,
)

RUN = "ab" * 32
META = ShardMeta(RUN, 1, 40, 40, "cd" * 32, "ef" * 32)
PARAMETERS = {"w": (7, 9), "b": (9,)}
BIG = {"w": (300, 1000)}
FOLDER = tempfile.TemporaryDirectory()


def state(parameters: dict[str, tuple[int, ...]] = PARAMETERS) -> dict[str, torch.Tensor]:
    return {name: torch.rand(shape) for name, shape in state_shapes(parameters).items()}


def wire(tensors: dict[str, torch.Tensor], meta: ShardMeta = META) -> bytes:
    return b"".join(iter_chunks(tensors, meta))


def receiver(parameters: dict[str, tuple[int, ...]] = PARAMETERS) -> ShardReceiver:
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    return ShardReceiver(RUN, 1, 40, parameters, folder / "incoming", "peer Qm123")


class Nowhere:
    def open(self, size: int) -> None: ...

    def write(self, part: memoryview) -> None: ...


def test_nothing_is_written_on_a_disk_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = wire(state(BIG))
    free = [SPARE_BYTES + len(raw) - HEADER_BYTES - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    full = receiver(BIG)
    with pytest.raises(OSError, match="No space left on device"):
        full.feed(raw[:CHUNK_BYTES])
    assert not full._path.exists()
    full.close()
    free[0] += 1
    receiver(BIG).feed(raw[:CHUNK_BYTES])


def test_a_shard_may_be_as_large_as_the_stage_makes_it_and_no_larger() -> None:
    raw = wire(state())
    size = len(raw) - HEADER_BYTES
    whole = ChunkReader(RUN, 1, 40, size, Nowhere(), "peer Qm123")
    whole.feed(raw)
    assert whole.finish().size == size
    with pytest.raises(StateError, match=f"a shard of {size} bytes; this stage has at most {size - 1}"):
        ChunkReader(RUN, 1, 40, size - 1, Nowhere(), "peer Qm123").feed(raw)


def test_memory_to_disk_leaves_no_file() -> None:
    tensors = state(BIG)
    receiving = receiver(BIG)
    sizes = []
    for chunk in iter_chunks(tensors, META):
        sizes.append(len(chunk))
        receiving.feed(chunk)
    shard = receiving.finish()
    assert max(sizes) == CHUNK_BYTES
    assert shard.meta == META
    assert shard.tensors.keys() == tensors.keys()
    assert all(torch.equal(shard.tensors[name], tensors[name]) for name in tensors)
    assert not receiving._path.exists()


def test_disk_and_memory_send_the_same_bytes(tmp_path: Path) -> None:
    tensors = state(BIG)
    checkpoint = saved(CheckpointStore(tmp_path, RUN, 1), 1, 40, tensors, META.digest, updates=40, chain=META.chain)
    assert b"".join(iter_file_chunks(checkpoint, RUN)) == wire(tensors)
    checkpoint.path.unlink()
    with pytest.raises(StateError, match="stage-1"):
        list(iter_file_chunks(checkpoint, RUN))


@given(cuts=st.lists(st.integers(1, 300), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_chunks_may_be_cut_anywhere(cuts: list[int]) -> None:
    tensors = state()
    raw = wire(tensors)
    receiving, place = receiver(), 0
    for size in cuts:
        receiving.feed(raw[place : place + size])
        place += size
    receiving.feed(raw[place:])
    assert torch.equal(receiving.finish().tensors["param/w"], tensors["param/w"])


def test_every_flipped_byte_is_refused() -> None:
    raw = wire(state())
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 0x04
        with pytest.raises(StateError, match="peer Qm123"):
            receiving = receiver()
            receiving.feed(damaged)
            receiving.finish()


def test_every_truncation_is_refused() -> None:
    raw = wire(state())
    for size in range(len(raw)):
        receiving = receiver()
        receiving.feed(raw[:size])
        with pytest.raises(StateError, match="ended after"):
            receiving.finish()


def test_too_much_is_refused() -> None:
    receiving = receiver()
    receiving.feed(wire(state()))
    with pytest.raises(StateError, match="more than the announced"):
        receiving.feed(b"\0")
    with pytest.raises(StateError, match="a chunk of"):
        receiver().feed(bytes(CHUNK_BYTES + 1))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (dataclasses.replace(META, run_hash="cd" * 32), "run_hash"),
        (dataclasses.replace(META, stage=2), "stage is 2, expected 1"),
        (dataclasses.replace(META, version=39, updates=39), "version is 39, expected 40"),
    ],
)
def test_another_state_is_refused_at_its_header(meta: ShardMeta, message: str) -> None:
    with pytest.raises(StateError, match=message):
        receiver().feed(wire(state(), meta)[:HEADER_BYTES])


def test_a_huge_announcement_allocates_nothing() -> None:
    header = TransferHeader(RUN, 1, 40, 2**50, "00" * 32).encode()
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match="at most"):
            receiver().feed(header)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("parameters", [{"w": (9, 7), "b": (9,)}, {"w": (7, 9)}, {"w": (7, 9), "c": (9,)}])
def test_another_models_state_is_refused(parameters: dict[str, tuple[int, ...]]) -> None:
    receiving = receiver()
    receiving.feed(wire(state(parameters)))
    with pytest.raises(StateError, match="tensor"):
        receiving.finish()


def test_state_that_is_not_finite_is_refused() -> None:
    bad = state()
    bad["param/b"][0] = float("nan")
    receiving = receiver()
    receiving.feed(wire(bad))
    shard = receiving.finish()
    assert shard.tensors["param/w"].isfinite().all()
    with pytest.raises(StateError, match="peer Qm123: tensor param/b contains NaN"):
        shard.tensors["param/b"]


def test_a_shard_whose_own_metadata_differs_from_the_header_is_refused() -> None:
    raw = wire(state(), dataclasses.replace(META, version=39, updates=39))
    old = TransferHeader.decode(raw[:HEADER_BYTES], "x")
    lie = TransferHeader(RUN, 1, 40, old.size, old.hash).encode() + raw[HEADER_BYTES:]
    receiving = receiver()
    receiving.feed(lie)
    with pytest.raises(StateError, match="version is 39"):
        receiving.finish()


@given(raw=st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(StateError):
        receiving = receiver()
        receiving.feed(raw)
        receiving.finish()
