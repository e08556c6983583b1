"""The host's memory of a stage with offload: locked for a card, exactly as large as needed, and unlocked at the end."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
import torch

from swarm.compute import checksum, offload
from swarm.compute.layout import Layout
from swarm.compute.memory_table import STREAMED_AT_ONCE
from swarm.compute.optimizer import StageOptimizer
from swarm.manifest import OptimizerSection

CARD = torch.device("cuda:1")


class Driver:
    """Stands for the driver of a card. `refuses`: it locks nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self._refuses = refuses
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())

    def cudaHostRegister(self, pointer: int, nbytes: int, flags: int) -> int:
        if not self._refuses:
            self.locked[pointer] = nbytes
        return int(self._refuses)

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.locked[pointer]
        return 0


def test_pages_are_locked_as_long_as_a_tensor_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    shapes = {"a": torch.empty(100, 30, device="meta"), "b": torch.empty(1, device="meta")}
    tensors = offload.host_zeros(shapes, CARD)
    ((pointer, nbytes),) = driver.locked.items()
    assert pointer % 4096 == 0 and nbytes == 12288, "three pages hold 3,001 numbers of 4 bytes"
    assert tensors["a"].data_ptr() == pointer and not tensors["a"].any() and tensors["b"].shape == (1,)
    last = tensors.pop("b").add_(1.0)
    del tensors
    gc.collect()
    assert driver.locked and last.item() == 1.0
    del last
    gc.collect()
    assert not driver.locked


def test_memory_that_cannot_be_locked_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, refuses=True)
    asked = []

    def ones(*shape: int, device: torch.device) -> None:
        asked.append(device)
        raise RuntimeError("the driver's earlier refusal")

    monkeypatch.setattr(torch, "ones", ones)
    vector = offload.host_vector(1000, torch.int64, CARD)
    assert vector.shape == (1000,) and vector.dtype == torch.int64 and not driver.locked
    assert asked == [CARD], "what the driver said is not left for a later operation"
    del vector
    gc.collect()


def test_a_cpu_locks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    assert offload.host_vector(1000, torch.int64, torch.device("cpu")).shape == (1000,)
    assert not driver.locked


def test_a_state_that_is_read_in_pieces_has_the_checksum_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STREAMED_AT_ONCE % checksum._BLOCK == 0, "else pieces would have other checksums"
    monkeypatch.setattr(offload, "STREAMED_AT_ONCE", 2 * checksum._BLOCK)
    parameters = {"a": torch.randn(3, 100_001), "b": torch.randn(7), "c": torch.randn(5 * checksum._BLOCK)}
    layout = Layout.of(parameters, with_loss=False)
    whole, read = (
        StageOptimizer(parameters, layout, OptimizerSection(), "ab" * 32, elsewhere=elsewhere)
        for elsewhere in (None, torch.device("cpu"))
    )
    assert whole.checksum() == read.checksum() and whole.checksum(5) == read.checksum(5) != whole.checksum()
    assert not read.condition().spoilt
    parameters["c"][-1] = torch.inf
    assert read.condition() == whole.condition() and read.condition().spoilt
