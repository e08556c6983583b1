"""Chooses how the replicas of a stage average their gradients, as the manifest says: one row for each method."""

from __future__ import annotations

from swarm import codecs
from swarm.compute import dithered, rice
from swarm.compute.block_grid import BlockGrid
from swarm.compute.coded import HEAD_BYTES, CodedBuckets, CodedReduction
from swarm.compute.layout import Layout
from swarm.compute.low_rank import LowRank
from swarm.compute.low_rank_reduction import LowRankBuckets, LowRankReduction
from swarm.compute.reduction import BUCKET_ELEMENTS, Buckets, Reduction, largest_exact
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection


def buckets_of(layout: Layout, sums: SumSection) -> Buckets:
    """The buckets of a stage's sums. Raises codecs.UnknownCodec."""
    if sums.rank:
        return LowRankBuckets(layout, sums)
    if sums.dither:
        return dithered.DitheredBuckets(layout, sums)
    return CodedBuckets(layout, sums, codecs.averaging(sums.averaging)) if sums.compresses else Buckets(layout, sums)


def reduction_of(
    accumulator: Accumulator, sums: SumSection, grid: BlockGrid | None = None, *, on_host: bool = False
) -> Reduction:
    """The reduction of a stage. grid: the grid of the accumulator. Raises codecs.UnknownCodec.

    on_host: the reduced vector is in the host's memory, as it always is with compression.
    """
    if grid is not None:
        return dithered.DitheredReduction(accumulator, sums, grid)
    if sums.rank:
        return LowRankReduction(accumulator, sums)
    if sums.compresses:
        return CodedReduction(accumulator, sums)
    return Reduction(accumulator, Buckets(accumulator.layout, sums), sums, on_host=on_host)


def largest_bucket(sums: SumSection) -> int:
    """Largest size of a part or sum, bytes. Raises codecs.UnknownCodec."""
    if sums.dither:
        return dithered.HEAD_BYTES + rice.largest(BUCKET_ELEMENTS)
    if not sums.compresses:
        return largest_exact(sums)
    codec = codecs.get("none") if sums.rank else codecs.averaging(sums.averaging)
    return HEAD_BYTES + codec.max_bytes((BUCKET_ELEMENTS,))


def sent_bytes(layout: Layout, sums: SumSection) -> int:
    """Largest total size of a stage's sums when each bucket is sent once, bytes; exact sums count as not packed.

    Raises codecs.UnknownCodec.
    """
    if sums.rank:
        ranks = LowRank(layout, sums.rank)
        return 4 * int(ranks.first + ranks.second)
    if sums.compresses:
        return codecs.averaging(sums.averaging).max_bytes((layout.length,))
    return layout.length * (8 if sums.mode == "exact" else 4)
