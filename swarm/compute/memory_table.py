"""The memory table: bytes that a peer needs for a stage, on its device and in main memory, by purpose.

The dry run, the coordinator's placement and the budgets of a joining peer all use this table. The memory of autograd
graphs is counted in graph.py, because counting it needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from swarm.manifest import RunManifest
from swarm.protocol.stage_needs import ComputeKind

EXACT_PACKED = 5 / 8
"""Size of packed exact sums relative to their size in memory, as measured in docs/slow-links.md."""
DITHERED_BITS = 3.29
"""Bits of a number in sums with "dither:1", mean of parts and totals with their headers (docs/averaging.md)."""
_GRID = 2 * 4, 8
"""Bytes of a block's grid (block_grid.py): on the device, and in the host's memory."""
_BLOCK = 64
"""Numbers in a block."""
UPDATED_AT_ONCE = 1 << 24
"""Elements that an optimizer step processes at once on a GPU: more would take more memory, but not less time."""
_UPDATED = 4 + 4 + 8
"""Scratch bytes for each of these elements: two fp32 numbers and one fp64 number (adamw.py)."""
STREAMED_AT_ONCE = 1 << 22
"""Elements of a parameter that are on the device at once in a step with offload; a multiple of the blocks of
checksum.py.
"""
_STREAMED = 4 + 4 + 4 + 8
"""Bytes for each of these elements besides the scratch: the parameter, two moments, and the sum of its gradients."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How a peer computes. Its memory depends on this, the run and the stage."""

    device: str = "cpu"
    """torch's name of the device: cpu, cuda, cuda:1, xpu …"""
    precision: str = "fp32"
    """Precision of matrix products: fp32, bf16 or fp16."""
    offload: bool = False
    """Whether the state of the optimizer and the reduced vector are in the host's memory, although the device has its
    own (offload.py).
    """

    @property
    def own_memory(self) -> bool:
        """Whether the device has its own memory whose free size torch can report: a CUDA or ROCm card."""
        return self.device.startswith("cuda")

    @property
    def half(self) -> bool:
        return self.precision != "fp32"

    @property
    def kind(self) -> ComputeKind:
        """The part of the mode on which the memory depends, as a peer reports it to coordinators."""
        card = "OFFLOAD" if self.offload else "CARD"
        return ComputeKind[f"{card if self.own_memory else 'HOST'}_{self.precision.upper()}"]

    @classmethod
    def of_kind(cls, kind: ComputeKind) -> Mode:
        """A mode of this kind. Its device stands for all devices of the kind."""
        place, precision = kind.name.split("_")
        return cls("cpu" if place == "HOST" else "cuda", precision.lower(), place == "OFFLOAD")


ON_CPU = Mode()
"""The default mode on a CPU."""


@dataclass(frozen=True, slots=True)
class StageCounts:
    """The sizes of a stage. `parameters`, `matrices` and `largest` are numbers of parameters, `muon_flop` is a number
    of operations, all others are bytes.
    """

    parameters: int
    matrices: int = 0
    """Parameters in matrices, which are copied to half precision if matrix products use it."""
    graph: int = 0
    """Memory of a microbatch's graph between forward and backward, without the parameters."""
    in_backward: int = 0
    """Additional memory at the peak of a backward, with the gradients."""
    gradients: int = 0
    """Gradients of all parameters for one microbatch."""
    graph_by_layer: int | None = None
    """`graph` with activation checkpointing for each layer; None: the stage has no layers for it."""
    in_backward_by_layer: int = 0
    """`in_backward` with activation checkpointing for each layer."""
    largest: int = 0
    """Parameters of the largest matrix that Muon updates; 0 with AdamW."""
    orthogonalising: int = 0
    """Scratch bytes of Muon for the matrix that needs most."""
    muon_flop: int = 0
    """Floating-point operations of Muon in a step."""

    def by_layer(self) -> StageCounts:
        """The sizes with activation checkpointing for each layer, if the stage has layers for it."""
        if self.graph_by_layer is None:
            return self
        return replace(self, graph=self.graph_by_layer, in_backward=self.in_backward_by_layer)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of memory of a peer with one stage, by purpose."""

    own_memory: bool
    """Whether the device has its own memory; some of the following then is in the host's memory instead."""
    weights: int
    """Parameters in fp32, on the device. With offload: those that have no copy in half precision."""
    copies: int
    """Copies of matrices in half precision."""
    masters: int
    """With offload: all parameters in fp32, in the host's memory."""
    moments: int
    accumulator: int
    """The sums at their largest width: exact sums need half of this as long as all of them fit into 32 bits."""
    reduced: int
    """The reduced vector. A device with its own memory has it only from the first sum of a reduction to the step."""
    graph: int
    """The graph of one microbatch. Further graphs have a separate budget."""
    in_backward: int
    """Additional memory in a backward, with the gradients."""
    ahead: int
    """Memory of the previous microbatch that is not freed yet, on a GPU, which computes asynchronously."""
    on_the_way: int
    """Parts and sums of a reduction, or the sums that are kept for new peers."""
    updating: int
    """Scratch memory of an optimizer step."""
    residuals: int
    """Residuals of compressed averaging, for the last and the open step: of our share and of our reduced buckets."""
    grids: int
    """The grids of blocks on the device, with `sums.averaging = "dither:STEP"`."""
    host_grids: int
    """The same in the host's memory; on a CPU, they are in the same memory."""
    reduces_on_host: bool
    """Whether the reduced vector is in the host's memory although the device has its own."""
    offload: bool
    """Whether the moments are in the host's memory too."""

    @property
    def resident(self) -> int:
        """Bytes that are always allocated on the device."""
        here = self._here(self.reduced + self.residuals + self.host_grids)
        moments = 0 if self.offload else self.moments
        return self.weights + self.copies + moments + self.accumulator + self.grids + here

    @property
    def working(self) -> int:
        """Largest number of additional bytes on the device, in a microbatch or in a reduction, which never overlap."""
        reduced = self.reduced if self.own_memory and not self.reduces_on_host else 0
        return max(
            self.graph + self.in_backward + self.ahead, reduced + max(self._here(self.on_the_way), self.updating)
        )

    @property
    def device(self) -> int:
        """Bytes of the computing device's memory; on a CPU, all bytes."""
        return self.resident + self.working

    @property
    def host(self) -> int:
        """Bytes of the host's memory if the device has its own memory; else 0."""
        if not self.own_memory:
            return 0
        state = self.masters + self.moments if self.offload else 0
        reduced = self.reduced if self.reduces_on_host else 0
        return state + reduced + self.residuals + self.host_grids + self.on_the_way

    def with_graphs(self, count: int) -> int:
        """Bytes on the device in a backward while `count` graphs are kept, if it does not compute asynchronously."""
        return self.resident + count * self.graph + self.in_backward

    def with_gaps(self, graphs: int) -> int:
        """Bytes of a heap that keeps freed memory, while that many bytes of graphs are kept: gaps between used
        blocks are as large as the blocks.
        """
        return self.resident + 2 * (self.working + graphs)

    def _here(self, nbytes: int) -> int:
        """The part of a reduction's `nbytes` that is on the device; on a GPU, they are in the host's memory."""
        return 0 if self.own_memory else nbytes


def stage_memory(manifest: RunManifest, counts: StageCounts, mode: Mode, sent: int | None = None) -> StageMemory:
    """The memory of a peer with one stage. `sent`: bytes of its sums as sent, before packing; None: as in memory."""
    sums, number = manifest.sums, counts.parameters
    width = 8 if sums.mode == "exact" else 4
    # fp16 gradients are scaled: until they are added, each exists twice. A device adds a rounded copy if blocks have
    # their own grids
    copied = (mode.precision == "fp16") + (bool(sums.dither) and mode.device != "cpu")
    scaled = 4 * number * copied
    blocks = -(-number // _BLOCK) if sums.dither else 0
    offload = mode.offload and mode.own_memory
    if offload:  # Muon needs whole matrices
        pieces = (_STREAMED + _UPDATED) * min(number, STREAMED_AT_ONCE)
        updating = max(pieces, _STREAMED * counts.largest + counts.orthogonalising)
    else:
        adamw = _UPDATED * min(number, UPDATED_AT_ONCE) if mode.own_memory else 0
        updating = max(adamw, counts.orthogonalising)
    return StageMemory(
        own_memory=mode.own_memory,
        weights=4 * (number - counts.matrices if offload and mode.half else number),
        copies=2 * counts.matrices if mode.half else 0,
        masters=4 * number if offload else 0,
        moments=8 * number,
        accumulator=width * number,
        reduced=width * number,
        graph=counts.graph,
        in_backward=max(counts.in_backward, counts.gradients + scaled - counts.graph),
        ahead=counts.gradients + scaled if mode.own_memory else 0,
        on_the_way=_on_the_way(manifest, width * number if sent is None else sent, width * number),
        updating=updating,
        residuals=_residuals(manifest, number) if manifest.swarm.replicas > 1 else 0,
        grids=_GRID[0] * blocks,
        host_grids=_GRID[1] * blocks,
        reduces_on_host=offload or sums.mode != "exact" or sums.averaging != "none",
        offload=offload,
    )


def packed(manifest: RunManifest, sums: int) -> int:
    """Bytes on the link for `sums` bytes of a stage's sums in memory; dithered sums: after the first step."""
    if manifest.sums.dither:
        return round(sums * dithered_bits(manifest.sums.dither) / 64)
    exact = manifest.sums.mode == "exact" and not manifest.sums.compresses
    return round(sums * EXACT_PACKED) if exact else sums


def dithered_bits(step: float) -> float:
    """Bits of a number on the link with "dither:STEP", at most: half the step costs at most one bit more."""
    return DITHERED_BITS + max(0.0, -math.log2(step))


def _on_the_way(manifest: RunManifest, sums: int, whole: int) -> int:
    """Bytes of payloads that a peer keeps: its parts and sums in a reduction, or the sums for new peers.

    The latter are `whole` bytes if a sole replica compresses nothing. `sums`: bytes of the sums as sent. Dithered sums
    take the usual bytes in the first step, in which there is no second moment.
    """
    if manifest.swarm.max_replicas == 1:
        return 0
    exact = manifest.sums.mode == "exact"
    sent = round(sums * EXACT_PACKED) if exact and not manifest.sums.compresses else sums
    return max(2 * sent, round(whole * EXACT_PACKED) if exact else whole)


def _residuals(manifest: RunManifest, number: int) -> int:
    """Bytes of the residuals of `number` parameters."""
    if manifest.sums.rank:
        return 12 * number
    return 8 * (number + number // manifest.swarm.replicas) if manifest.sums.compresses else 0
