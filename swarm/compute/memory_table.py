"""The memory table: bytes that a peer of a stage takes, on its device and beside it, by what they are for.

The one place that says so: the dry run, the coordinator's placement and a joining peer's budgets all ask here. What a
graph holds is counted elsewhere (graph.py), since that takes torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarm.manifest import RunManifest

EXACT_PACKED = 5 / 8
"""What is left of exact sums when they are packed: measured, docs/slow-links.md."""
UPDATED_AT_ONCE = 1 << 24
"""Elements that an optimizer's step works on at once on a GPU: more take no less time, but memory."""
_UPDATED = 4 + 4 + 8
"""Bytes of each: two numbers in fp32 and one in fp64 (adamw.py)."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How a peer computes: what its memory depends on besides the run and the stage."""

    device: str = "cpu"
    """As torch names it: cpu, cuda, cuda:1, xpu …"""
    precision: str = "fp32"
    """What matrices are multiplied in: fp32, bf16 or fp16."""

    @property
    def own_memory(self) -> bool:
        """Whether the device has memory of its own, of which torch says how much is free: a card of CUDA or ROCm."""
        return self.device.startswith("cuda")

    @property
    def half(self) -> bool:
        return self.precision != "fp32"


ON_CPU = Mode()
"""What is usual there."""


@dataclass(frozen=True, slots=True)
class StageCounts:
    """What is counted of a stage. `parameters` and `matrices` are numbers, all else is bytes."""

    parameters: int
    matrices: int = 0
    """Parameters that a copy in half precision is made of, where products are made in it."""
    graph: int = 0
    """What the graph of a microbatch holds between forward and backward, beyond the parameters."""
    in_backward: int = 0
    """What a backward takes at its peak beyond `graph`, gradients included."""
    gradients: int = 0
    """Of all parameters, of one microbatch."""
    graph_by_layer: int | None = None
    """As `graph`, where a backward computes layer by layer again. None: the stage has no layers that it could."""
    in_backward_by_layer: int = 0
    """As `in_backward`, there."""

    def by_layer(self) -> StageCounts:
        """Those of a stage that computes layer by layer again, if it can."""
        if self.graph_by_layer is None:
            return self
        return replace(self, graph=self.graph_by_layer, in_backward=self.in_backward_by_layer)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a peer of one stage, by what they are for."""

    own_memory: bool
    """Whether the device has memory of its own; then some of it lies in the host's instead."""
    weights: int
    copies: int
    """Of matrices, in half precision."""
    moments: int
    accumulator: int
    """Sums, as wide as they may become: exact ones take half of this while none needs more than 32 bits."""
    reduced: int
    """The vector that a reduce ends with. A device with memory of its own holds it from its first sum to the step."""
    graph: int
    """Of one microbatch. Further ones have a budget of their own."""
    in_backward: int
    """What a backward takes beyond that, gradients included."""
    ahead: int
    """What the microbatch before has left, on a GPU, which computes ahead of its host."""
    on_the_way: int
    """Parts and sums of a reduce, or what is kept for newcomers."""
    updating: int
    """What an optimizer's step takes while it goes through a tensor."""
    residuals: int
    """What compressed averaging loses: of the last step and of the open one; of shares, and of the buckets reduced."""
    reduces_on_host: bool
    """Whether the reduced vector lies in the host's memory although the device has its own."""

    @property
    def resident(self) -> int:
        """On the device, whatever it does."""
        return self.weights + self.copies + self.moments + self.accumulator + self._here(self.reduced + self.residuals)

    @property
    def working(self) -> int:
        """On the device while it works, at most: no graph is left when a reduce begins."""
        reduced = self.reduced if self.own_memory and not self.reduces_on_host else 0
        return max(
            self.graph + self.in_backward + self.ahead, reduced + max(self._here(self.on_the_way), self.updating)
        )

    @property
    def device(self) -> int:
        """Of the memory of what computes: on a CPU all there is."""
        return self.resident + self.working

    @property
    def host(self) -> int:
        """Of the host's memory, where the device has its own; else 0."""
        if not self.own_memory:
            return 0
        return self.residuals + self.on_the_way + (self.reduced if self.reduces_on_host else 0)

    def with_graphs(self, count: int) -> int:
        """On the device in a backward with so many graphs kept, if it does not compute ahead."""
        return self.resident + count * self.graph + self.in_backward

    def _here(self, nbytes: int) -> int:
        """Of what a reduce has in hand: on a GPU it lies in the host's memory."""
        return 0 if self.own_memory else nbytes


def stage_memory(manifest: RunManifest, counts: StageCounts, mode: Mode, sent: int | None = None) -> StageMemory:
    """`sent`: bytes of the stage's sums as they are sent, not packed; None: as many as in memory."""
    sums, number = manifest.sums, counts.parameters
    width = 8 if sums.mode == "exact" else 4
    # fp16's gradients are scaled: before they are added there are two of each
    scaled = 4 * number if mode.precision == "fp16" else 0
    return StageMemory(
        own_memory=mode.own_memory,
        weights=4 * number,
        copies=2 * counts.matrices if mode.half else 0,
        moments=8 * number,
        accumulator=width * number,
        reduced=width * number,
        graph=counts.graph,
        in_backward=max(counts.in_backward, counts.gradients + scaled - counts.graph),
        ahead=counts.gradients + scaled if mode.own_memory else 0,
        on_the_way=_on_the_way(manifest, width * number if sent is None else sent, width * number),
        updating=_UPDATED * min(number, UPDATED_AT_ONCE) if mode.own_memory else 0,
        residuals=_residuals(manifest, number) if manifest.swarm.replicas > 1 else 0,
        reduces_on_host=sums.mode != "exact" or sums.averaging != "none",
    )


def packed(manifest: RunManifest, sums: int) -> int:
    """Bytes of `sums` bytes of a stage's sums, as they cross a link."""
    exact = manifest.sums.mode == "exact" and not manifest.sums.compresses
    return round(sums * EXACT_PACKED) if exact else sums


def _on_the_way(manifest: RunManifest, sums: int, whole: int) -> int:
    """Bytes of a stage's sums in a peer's hands: its parts and the sums in a reduce, or what it keeps for newcomers,
    which is `whole` where a sole replica compresses nothing. `sums`: as they are sent.
    """
    if manifest.swarm.max_replicas == 1:
        return 0
    return max(2 * packed(manifest, sums), round(whole * EXACT_PACKED) if manifest.sums.mode == "exact" else whole)


def _residuals(manifest: RunManifest, number: int) -> int:
    """Of `number` parameters."""
    if manifest.sums.rank:
        return 12 * number
    return 8 * (number + number // manifest.swarm.replicas) if manifest.sums.compresses else 0
