"""What later visits build on: what crossed, or what it lost, at the last visit and in this step so far.

The core says which are kept (swarm/protocol/peer/delta_bases.py). All are fp16, in main memory.
"""

from __future__ import annotations

from torch import Tensor

from swarm.compute.digest import reconstruction_digest
from swarm.manifest import RunManifest
from swarm.protocol.ids import BaseKey, End, Microbatch, StepNumber
from swarm.protocol.peer.io import SettleBases


class BaseStore:
    """Of one stage. What the open step leaves is staged; `settle` makes it the base of the next visit."""

    def __init__(self) -> None:
        self._held: dict[BaseKey, Tensor] = {}
        self._staged: dict[BaseKey, tuple[Tensor | None, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def of(self, key: BaseKey | None) -> Tensor | None:
        """The base of that name; None for none. Raises LookupError."""
        if key is None:
            return None
        if key not in self._held:
            raise LookupError(f"no base of microbatch {key.microbatch} from step {key.visit} ({key.end.name.lower()})")
        return self._held[key]

    def stage(self, key: BaseKey, crossed: Tensor, left: Tensor | None) -> int:
        """Note what crossed, fp32, and what it left, fp16 (None: nothing); returns the digest of what crossed."""
        digest = reconstruction_digest(crossed)
        self._staged[key] = left, digest
        return digest

    def staged_digest(self, key: BaseKey) -> int:
        """0 when nothing is staged under that name."""
        return self._staged[key][1] if key in self._staged else 0

    def discard(self, visit: StepNumber, microbatch: Microbatch) -> None:
        for end in End:
            self._staged.pop(BaseKey(visit, microbatch, end), None)

    def begin(self) -> None:
        """A new pass: what an older one staged is void."""
        self._staged.clear()

    def settle(self, action: SettleBases) -> None:
        for key in action.dropped:
            self._held.pop(key, None)
        for key in action.kept:
            left, _ = self._staged.get(key, (None, 0))
            if left is not None:  # else it is missed when it is to be used
                self._held[key] = left
        self._staged.clear()

    def clear(self) -> None:
        self._held.clear()
        self._staged.clear()


def base_bytes(manifest: RunManifest) -> int:
    """Of one reconstruction."""
    return 2 * manifest.batch.tokens_per_microbatch * manifest.model.boundary_width
