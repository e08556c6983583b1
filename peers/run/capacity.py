"""Capacity: the largest stage of layers alone that fits on a card, with the optimizer's state there or on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace

from peers.run.cards import free_of
from peers.runtime.device import SPARE
from swarm.compute.memory_table import Mode, StageCounts, StageMemory, stage_memory
from swarm.manifest import RunManifest

CARD_SIZES = (8, 12, 24)
"""GB of memory with which the cards are sold for which `capacities` looks."""
MIDDLE = 1
"""The stage with all layers but two, of three stages."""


def usable(memory: int) -> int:
    """Bytes of a card with `memory` free bytes that a peer plans with."""
    return memory - min(memory // 8, SPARE)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest stage for a card that is sold with `gigabytes` of memory."""

    gigabytes: int
    offload: bool
    again: bool
    """Whether the layers are recomputed one by one."""
    layers: int
    """0: not even one layer fits."""
    parameters: int
    host: int
    """Bytes of the host's memory that this stage needs besides frames."""


class MiddleStage:
    """The memory of a stage with any number of layers. Only stages of FEW and MORE layers are counted: each further
    layer needs as much as the one before, and counting a large stage takes seconds.
    """

    FEW, MORE = 2, 4

    def __init__(self, run: Callable[[int], RunManifest], mode: Mode) -> None:
        """`run`: the run whose stage MIDDLE has this number of layers. Imports torch."""
        from swarm.compute.graph import count_stages

        self._manifest = run(self.FEW)
        self._mode = mode
        self._few, self._more = (count_stages(each, mode)[MIDDLE] for each in (self._manifest, run(self.MORE)))

    def counts(self, layers: int) -> StageCounts:
        few, more = dataclasses.asdict(self._few), dataclasses.asdict(self._more)
        each = {name: (more[name] - few[name]) // (self.MORE - self.FEW) for name in few}
        return StageCounts(**{name: few[name] + (layers - self.FEW) * each[name] for name in few})

    def memory(self, layers: int, by_layer: bool, offload: bool = False) -> StageMemory:
        counts, mode = self.counts(layers), replace(self._mode, offload=offload)
        return stage_memory(self._manifest, counts.by_layer() if by_layer else counts, mode)

    def largest(self, room: int, by_layer: bool, offload: bool = False) -> int:
        """The largest number of layers that fits into `room` bytes; 0: none."""
        few, step = 0, 1
        while self.memory(few + step, by_layer, offload).device <= room:
            few, step = few + step, 2 * step
        while step > 1:
            step //= 2
            if self.memory(few + step, by_layer, offload).device <= room:
                few += step
        return few


def capacities(manifest: RunManifest, mode: Mode) -> tuple[Capacity, ...]:
    """The largest stages of this run's layers for CARD_SIZES. Empty if its model does not consist of equal layers, or
    if `mode` has no card.
    """
    if manifest.model.kind != "llama" or not mode.own_memory:
        return ()
    stage = MiddleStage(lambda layers: _with_layers(manifest, layers), mode)
    found = []
    for gigabytes in CARD_SIZES:
        room = usable(free_of(gigabytes << 30))
        for offload in (False, True):
            for again in (False, True):
                layers = stage.largest(room, again, offload)
                host = stage.memory(layers, again, offload).host if layers else 0
                parameters = stage.counts(layers).parameters if layers else 0
                found.append(Capacity(gigabytes, offload, again, layers, parameters, host))
    return tuple(found)


def _with_layers(manifest: RunManifest, layers: int) -> RunManifest:
    """The run with three stages, of which the middle one has this number of layers, and each other one has one."""
    model = manifest.model.model_copy(update={"layers": layers + 2, "cuts": (1, layers + 1)})
    return manifest.model_copy(update={"model": model})
