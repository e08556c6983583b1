"""The memory that a stage needs, by the way a peer computes. Coordinators place peers by it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class ComputeKind(enum.Enum):
    """How a peer computes, as far as its memory depends on it. Peers report it, and coordinators look up the needs.

    CARD: the device has its own memory, so part of a reduction is in the host's memory instead. OFFLOAD: the state of
    the optimizer is in the host's memory too. HOST: all other devices. The second word is the precision of matrix
    products.
    """

    HOST_FP32 = "a CPU in fp32"
    HOST_BF16 = "a CPU in bf16"
    HOST_FP16 = "a CPU in fp16"
    CARD_FP32 = "a graphics card in fp32"
    CARD_BF16 = "a graphics card in bf16"
    CARD_FP16 = "a graphics card in fp16"
    OFFLOAD_FP32 = "a graphics card in fp32 with --offload"
    OFFLOAD_BF16 = "a graphics card in bf16 with --offload"
    OFFLOAD_FP16 = "a graphics card in fp16 with --offload"


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """Bytes of memory that a peer of one kind needs on its device, by stage."""

    whole: tuple[int, ...]
    """For a peer that keeps the whole graph of a microbatch."""
    by_layer: tuple[int, ...] = ()
    """For a peer that recomputes its layers one by one. Empty: as `whole`."""

    @property
    def least(self) -> tuple[int, ...]:
        return self.by_layer or self.whole


Needs = Mapping[ComputeKind, StageNeeds]
"""Empty: the needs are unknown, and memory is not checked."""


def needs_of(needs: Needs, kind: ComputeKind) -> StageNeeds | None:
    """The needs of a peer of `kind`. For a kind that `needs` lacks: the largest needs of all kinds. None: unknown."""
    if kind in needs or not needs:
        return needs.get(kind)
    rows = needs.values()
    return StageNeeds(
        tuple(map(max, zip(*(each.whole for each in rows), strict=True))),
        tuple(map(max, zip(*(each.least for each in rows), strict=True))),
    )
