"""What a run requires of a machine: bytes and seconds, computed from the sizes in a manifest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.compute.memory_table import dithered_bits

BUCKET_NUMBERS = 1 << 18
"""Number of values in a bucket, as swarm/compute divides a stage's gradient."""
EXACT = "none"
DITHERED = "dither:1"
SUM_BYTES = {EXACT: 4.0, DITHERED: dithered_bits(1.0) / 8, "int8": 8.25 / 8, "int4": 4.25 / 8, "int2": 2.25 / 8}
"""Bytes per number in a sum, by `sums.averaging` (docs/averaging.md; exact sums take 3.5 to 4.8:
docs/slow-links.md).
"""
LOW_RANK = "powersgd:"
PACK_S, UNPACK_S = 40e-9, 13e-9
"""Seconds per number to pack and to unpack, on one core (docs/slow-links.md)."""
TOUCH_S = 5e-9
"""Seconds to read or change a number once."""
STATE_BYTES = 12
"""Bytes per parameter, with the two moments of AdamW."""
TOKEN_BYTES = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of one stage for one microbatch. Seconds are those of a machine of speed 1."""

    tokens: int
    """Number of tokens in a microbatch."""
    forward_s: float
    backward_s: float
    token_bytes: int
    frame_bytes: int
    """Bytes of an activation, and of its gradient, as it crosses a boundary."""
    state_bytes: int
    buckets: int
    first_round: int
    """Number of buckets, from the lowest, that are summed before the others. 0: all are summed at once."""
    bucket_bytes: int
    """Bytes of a bucket in a share, and in a sum."""
    compressed: bool
    """True if sums are compressed, so that replicas keep residuals."""
    pack_s: float
    """Seconds to encode a bucket. Unpacking a bucket of another replica takes `unpack_s`."""
    unpack_s: float
    apply_s: float

    @classmethod
    def of(
        cls,
        *,
        hidden: int,
        layers: int,
        sequence: int,
        sequences: int,
        flops_per_s: float,
        codec_bytes: float = 1.0,
        averaging: str = EXACT,
    ) -> Workload:
        """The work of a stage of `layers` layers of 12 · hidden² parameters: 2 and 4 operations per parameter and
        token.

        `codec_bytes`: bytes per element that crosses (int8: 1). `flops_per_s`: what a machine of speed 1 reaches.
        `averaging`: as `sums.averaging`, one of `SUM_BYTES` or powersgd:R. Raises ValueError for others.
        """
        parameters = 12 * hidden * hidden * layers
        tokens = sequence * sequences
        rounds = _rounds(hidden, layers, averaging)
        first_round = math.ceil(rounds[0] / BUCKET_NUMBERS) if len(rounds) > 1 else 0
        buckets = sum(math.ceil(numbers / BUCKET_NUMBERS) for numbers in rounds)
        crossing = sum(rounds) / buckets
        return cls(
            tokens=tokens,
            forward_s=2 * parameters * tokens / flops_per_s,
            backward_s=4 * parameters * tokens / flops_per_s,
            token_bytes=TOKEN_BYTES * tokens,
            frame_bytes=int(tokens * (hidden * codec_bytes + TOKEN_BYTES)),
            state_bytes=STATE_BYTES * parameters,
            buckets=buckets,
            first_round=first_round,
            bucket_bytes=int(crossing * SUM_BYTES.get(averaging, 4.0)),
            compressed=averaging not in (EXACT, DITHERED),
            pack_s=crossing * PACK_S + (parameters * TOUCH_S if first_round else 0.0),  # each round reads the gradient
            unpack_s=crossing * UNPACK_S,
            apply_s=parameters * TOUCH_S,
        )

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward of a microbatch."""
        return self.forward_s + self.backward_s


def _rounds(hidden: int, layers: int, averaging: str) -> tuple[int, ...]:
    """Number of values that a replica sends in each round of a reduce."""
    if averaging in SUM_BYTES:
        return (12 * hidden * hidden * layers,)
    rank = averaging.removeprefix(LOW_RANK)
    if rank == averaging or not rank.isdigit() or not int(rank):
        raise ValueError(f"averaging {averaging!r} is none of {', '.join(SUM_BYTES)}, {LOW_RANK}RANK")
    # columns and rows of four matrices: into the attention and out of it, into the wider layer and out of it
    return 9 * hidden * layers * int(rank), 7 * hidden * layers * int(rank)
