"""What is sent in the fleet instead of tensors: a size, and the microbatches that it contains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ballast:
    nbytes: int
    microbatches: int = 0
    """Bit set of the microbatches that were added up in it."""

    def __len__(self) -> int:
        return self.nbytes
