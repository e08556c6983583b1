"""What crosses in the fleet instead of tensors: a size, and which microbatches are in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ballast:
    nbytes: int
    microbatches: int = 0
    """Bit set, of what was added up in it."""

    def __len__(self) -> int:
        return self.nbytes
