"""What a run asks of a machine: bytes and seconds, worked out from the sizes that a manifest names."""

from __future__ import annotations

import math
from dataclasses import dataclass

BUCKET_NUMBERS = 1 << 18
"""As swarm/compute divides a stage's gradient."""
PACKED_BYTES = 4.0
"""Of a number in an exact sum (docs/slow-links.md: 3.5 to 4.8)."""
PACK_S, UNPACK_S = 40e-9, 13e-9
"""Of a number, on one core (docs/slow-links.md)."""
STATE_BYTES = 12
"""Of a parameter with the two moments of AdamW."""
TOKEN_BYTES = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """Of one stage and one microbatch. Seconds are those of a machine of speed 1."""

    tokens: int
    """In a microbatch."""
    forward_s: float
    backward_s: float
    token_bytes: int
    frame_bytes: int
    """Of an activation, and of its gradient, as it crosses a boundary."""
    state_bytes: int
    buckets: int
    bucket_bytes: int
    """Of a share, and of a sum."""
    pack_s: float
    """To encode a bucket; the others' shares are unpacked in `unpack_s` each."""
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
        sum_bytes: float = PACKED_BYTES,
    ) -> Workload:
        """A stage of `layers` layers of 12 · hidden² parameters: 2 and 4 operations per parameter and token.

        `codec_bytes`: of an element that crosses (int8: 1). `sum_bytes`: of a number in a share and in a sum; less than
        exact ones have is how compressed averaging weighs, whose residuals are not modelled. `flops_per_s`: what a
        machine of speed 1 really does.
        """
        parameters = 12 * hidden * hidden * layers
        tokens = sequence * sequences
        buckets = math.ceil(parameters / BUCKET_NUMBERS)
        numbers = parameters / buckets
        return cls(
            tokens=tokens,
            forward_s=2 * parameters * tokens / flops_per_s,
            backward_s=4 * parameters * tokens / flops_per_s,
            token_bytes=TOKEN_BYTES * tokens,
            frame_bytes=int(tokens * (hidden * codec_bytes + TOKEN_BYTES)),
            state_bytes=STATE_BYTES * parameters,
            buckets=buckets,
            bucket_bytes=int(numbers * sum_bytes),
            pack_s=numbers * PACK_S,
            unpack_s=numbers * UNPACK_S,
            apply_s=parameters * 5e-9,
        )

    @property
    def seconds(self) -> float:
        """Forward and backward of a microbatch."""
        return self.forward_s + self.backward_s
