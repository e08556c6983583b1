"""Fleet: whether a stage fits on a card, and how long a microbatch takes there.

A card is assumed to reach a fraction of its published rates: the fraction that an H200 reached with stages of this
program, not compiled (docs/gpu.md). No consumer card was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peers.run.cards import CARDS, MINE, Card
from peers.run.dry_run import StageNeed
from swarm.compute.memory_table import Mode, StageMemory
from swarm.compute.work import StageWork, Work
from swarm.protocol.coordinator.passes.assignment import shares

MATRIX_SHARE = 0.78
"""The fraction of the published FLOP/s that products of large matrices reach."""
MOVING_SHARE = 0.57
"""The fraction of the published bandwidth that operations reach if they read and write all of their numbers."""
START_S = 39e-6
"""Seconds to start an operation from one thread of the host."""
HOST_NS = 35.0
"""Nanoseconds per parameter to reduce and apply on a host (docs/gpu.md)."""
CARD_NS = 7.7
"""The same for exact sums on a card."""
HOST_MUON = 45e9
"""FLOP/s of Muon's products in fp64 on one thread of a host (docs/optimizers.md)."""
_PRODUCTS = 4
"""Products in fp32 for each of Muon's products on a card (swarm/compute/muon.py)."""
_OFFLOAD_REDUCE_NS = 23.0
"""Nanoseconds per parameter to reduce exact sums on the host of a card (docs/gpu.md)."""
_OFFLOADED_BYTES = 20 + 12
"""Bytes per parameter that cross the bus in a step with --offload: parameters, moments and reduced sums to the card,
parameters and moments back.
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a microbatch."""

    forward_s: float
    backward_s: float

    @property
    def both_s(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class Kind:
    """All cards of one name: bytes to plan with, and for each stage what it needs and how long a microbatch takes."""

    name: str
    memory: int
    needs: Sequence[StageNeed]
    times: Sequence[Times]
    offloaded: Sequence[StageNeed] = ()
    """What each stage needs with --offload. Empty: these cards have no memory of their own."""
    ns_per_parameter: float = HOST_NS
    """Nanoseconds per parameter to reduce exact sums and to apply them."""
    offload_ns: float = 0.0
    """The same for a stage with --offload, which the host reduces; then its state crosses the bus to the card and back.
    """
    muon_flop_per_s: float = HOST_MUON

    def taken_up(self, stage: int) -> StageMemory:
        """Memory that a peer of a stage uses on this card."""
        return self.needs[stage].within(self.memory)

    def recomputes_layers(self, stage: int) -> bool:
        """True if a whole graph does not fit, so that the peer recomputes layer by layer."""
        offloaded = self.with_offload(stage)
        if offloaded is not None:
            return offloaded != self.offloaded[stage].memory
        return self.taken_up(stage) != self.needs[stage].memory

    def lacks(self, stage: int) -> int:
        """Bytes that are missing for a stage; 0: the stage fits."""
        return max(0, self.taken_up(stage).device - self.memory)

    def with_offload(self, stage: int) -> StageMemory | None:
        """Memory with --offload, if a stage fits only in this way."""
        if not self.offloaded or not self.lacks(stage):
            return None
        memory = self.offloaded[stage].within(self.memory)
        return memory if memory.device <= self.memory else None

    def short(self, stage: int) -> int:
        """As `lacks`, but 0 if the stage fits with --offload."""
        return 0 if self.with_offload(stage) is not None else self.lacks(stage)

    def reduce_s(self, stage: int, *, on_host: bool) -> float:
        """Seconds to reduce and apply a stage. `on_host`: the run's sums are of a kind that only hosts reduce."""
        if self.with_offload(stage) is not None:
            ns = max(self.offload_ns, HOST_NS if on_host else 0.0)
        else:
            ns = HOST_NS if on_host else self.ns_per_parameter
        need = self.needs[stage]
        return 1e-9 * ns * need.parameters + need.muon_flop / self.muon_flop_per_s

    def graphs(self, stage: int) -> int:
        """The number of microbatch graphs that fit at once."""
        memory = self.with_offload(stage) or self.taken_up(stage)
        return 1 + max(0, self.memory - memory.device) // max(1, memory.graph)

    def taken(self, stage: int, stages: int) -> Times:
        """Seconds of a microbatch, including recomputed forwards: of all microbatches if layers are recomputed,
        otherwise of those whose graphs do not fit. The number of microbatches in flight is the number of stages from
        this one to the last.
        """
        times, wanted = self.times[stage], stages - stage
        again = 1.0 if self.recomputes_layers(stage) else max(0.0, 1 - self.graphs(stage) / wanted)
        return Times(times.forward_s, times.backward_s + again * times.forward_s)


def mode_of(name: str) -> Mode:
    return Mode() if name == MINE else Mode("cuda", CARDS[name].precision)


def offload_ns(card: Card) -> float:
    """Nanoseconds per parameter to reduce and apply a stage with --offload; the bus at its published rate."""
    return _OFFLOAD_REDUCE_NS + 1e9 * _OFFLOADED_BYTES / card.bus_bytes_per_s


def muon_flop_per_s(card: Card) -> float:
    """FLOP/s of Muon's products on a card."""
    return MATRIX_SHARE * card.fp32_flop_per_s / _PRODUCTS


def times_on(card: Card, work: Sequence[StageWork]) -> list[Times]:
    """The time of a microbatch on a card, by stage."""
    return [Times(_seconds(card, each.forward), _seconds(card, each.backward)) for each in work]


def _seconds(card: Card, work: Work) -> float:
    computed = work.flop / (MATRIX_SHARE * card.flop_per_s) + work.moved / (MOVING_SHARE * card.bytes_per_s)
    return max(computed, START_S * work.operations)


def reduce_s(kinds: Mapping[str, Kind], crews: Sequence[Sequence[str]], *, on_host: bool) -> float:
    """Seconds to reduce and apply the stage that takes longest, on its slowest card. `on_host`: as in Kind.reduce_s."""
    return max(kinds[name].reduce_s(stage, on_host=on_host) for stage, crew in enumerate(crews) for name in crew)


def row_of(
    kinds: Mapping[str, Kind], crews: Sequence[Sequence[str]], microbatches: int | None
) -> tuple[list[Times], int]:
    """The time of a microbatch at each stage, for one replica of each stage; and the number of such rows of replicas.

    The stage with the fewest cards determines the number of rows. Additional cards of another stage make that stage of
    a row faster. `microbatches`: of a step. A stage takes until the card with the longest share is done; cards without
    a microbatch do not help. None: a step so long that shares are exactly in proportion to speed.
    """
    stages, rows = len(crews), min(map(len, crews))
    found = []
    for stage, crew in enumerate(crews):
        each = [kinds[name].taken(stage, stages) for name in crew]
        rates = [1 / times.both_s for times in each]
        if microbatches is None:
            counts, longest = rates, rows / sum(rates)
        else:
            counts = list(map(float, shares(rates, microbatches)))
            longest = max(count * times.both_s for count, times in zip(counts, each, strict=True))
            longest /= -(-microbatches // rows)
        forward = sum(count * times.forward_s for count, times in zip(counts, each, strict=True))
        share = forward / sum(count * times.both_s for count, times in zip(counts, each, strict=True))
        found.append(Times(longest * share, longest * (1 - share)))
    return found, rows
